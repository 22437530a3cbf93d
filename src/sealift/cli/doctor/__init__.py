"""`sealift doctor`: what limits this machine, what that means, and what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from sealift.cli.doctor import cipher, gpu, host
from sealift.cli.doctor.probe import Finding, Probe, State
from sealift.errors import UnavailableError, visible

WIDTH: Final = 88
_INDENT: Final = 9
_MARKS: Final[dict[State, str]] = {
    "good": "ok", "limits": "limits", "missing": "none", "fact": "",
}  # fmt: skip
_COLOURS: Final[dict[State, str]] = {
    "good": "32", "limits": "33", "missing": "2", "fact": "0",
}  # fmt: skip
REQUIRED: Final = {
    "gpu": "GPU",
    "pinned": "pinned memory",
    "cc": "GPU protection",
    "sandbox": "sandbox",
    "tpm": "TPM 2.0",
}
# What the evidence of a level needs here: of each group one finding that is good.
_TEE: Final = (("Intel TDX", "AMD SEV-SNP"), ("TSM reports",), ("sandbox",))
_NEEDS: Final = {
    "attested-host": (("TPM 2.0",), ("sandbox",)),
    "tee": _TEE,
    "gpu-tee": (*_TEE, ("GPU protection",)),
    "untrusted-gpu": _TEE,
}
HERE: Final = "what its evidence needs is here: try `sealift attest collect`"
AZURE: Final = (
    "in a confidential guest of Azure its virtual TPM is enough for level tee"
)
Found = list[tuple[str, Finding]]


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        run=run,
        description="Measures ciphers, copies, disk and GPU in a few seconds, and looks "
        "for what protects: sandbox, TPM, TEE, confidential GPU. What is missing is "
        "said and is no error; the exit code is 0 unless --require asks for it.",
    )
    parser.add_flag("--json", "print one JSON document")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        choices=sorted(REQUIRED),
        help="exit with 3 if this is missing or limited; may be repeated",
    )
    parser.add_path(
        "--folder", default=Path(), metavar="DIR", help="where fsync is tried"
    )


def run(args: argparse.Namespace) -> int:
    """Look, print, and require; the exit code.

    Raises:
        UnavailableError: code ``doctor-requires``, after everything was printed.
    """
    found = look(probes(args.folder), sys.stderr)
    if args.json:
        print(_to_json(found))
    else:
        print(to_text(found, colours=_wants_colours(sys.stdout)))
    require(found, args.require)
    return 0


def probes(folder: Path) -> list[Probe]:
    """All of them, in the order they are looked at; ``folder`` is where the disk is."""
    return [
        Probe("Machine", "cores and memory", host.look_at_machine),
        Probe("Copies", "memory", host.look_at_copies),
        Probe("Copies", "a private memory file", host.look_at_memfd),
        Probe("Machine", "the disk", partial(host.look_at_disk, folder)),
        Probe("Protection", "the sandbox", host.look_at_sandbox),
        Probe("Protection", "TPM and TEE", host.look_at_devices),
        Probe("Ciphers", "the processor's AES", cipher.look_at_flags),
        Probe("Ciphers", "cryptography", cipher.look_at_cryptography),
        Probe("Ciphers", "the system's libcrypto", cipher.look_at_system_library),
        Probe("Ciphers", "two threads", cipher.look_at_threads),
        Probe("GPU", "the GPU", gpu.look_at_gpu),
        Probe("GPU", "confidential computing", gpu.look_at_protection),
        Probe("GPU", "who else is there", gpu.look_at_company),
        Probe("GPU", "the kernel compiler", gpu.look_at_compilers),
        Probe("GPU", "what a GPU is used for", gpu.look_at_uses),
    ]


def look(probes: Sequence[Probe], talk: TextIO) -> Found:
    """Look at everything; a terminal is told what is being looked at."""
    found: Found = []
    for number, probe in enumerate(probes, 1):
        if talk.isatty():
            line = f"looking at {probe.label} ({number} of {len(probes)})"
            print(f"\r\x1b[K{line}", end="", file=talk, flush=True)
        found += [(probe.topic, each) for each in probe.look()]
    if talk.isatty():
        print("\r\x1b[K", end="", file=talk, flush=True)
    return found


def _to_json(found: Found) -> str:
    """One document: findings in order, each with its topic."""
    findings = [{"topic": topic, **each.to_json()} for topic, each in found]
    return json.dumps({"findings": findings}, indent=2)


def to_text(found: Found, *, colours: bool) -> str:
    """Findings by topic; without colours for whatever is no terminal."""
    blocks = []
    for topic in dict.fromkeys(topic for topic, _ in found):
        lines = [_paint(topic, "1", colours)]
        for each in (finding for its, finding in found if its == topic):
            lines += _lines(each, colours)
        blocks.append("\n".join(lines))
    summary = []
    for said, state in (("limits here", "limits"), ("not here", "missing")):
        names = ", ".join(each.name for _, each in found if each.state == state)
        summary.append(textwrap.fill(f"{said}: {names or 'nothing'}", WIDTH))
    return "\n\n".join((*blocks, "\n".join(summary), "\n".join(verdict(found))))


def verdict(found: Found) -> list[str]:
    """At which levels this machine can run an accelerator, and what it lacks for others."""
    good = _good(found)
    lines = ["level development: everything is here; it keeps nobody out"]
    for level in _NEEDS:
        lacks = lacking(level, found)
        said = f"lacks {', '.join(lacks)}" if lacks else HERE
        lines.append(f"level {level}: {said}")
    if "TPM 2.0" in good and not good.intersection(*_TEE[:1]):
        lines.append(AZURE)
    return lines


def lacking(level: str, found: Found) -> list[str]:
    """What the evidence of a level needs and this machine has not."""
    good = _good(found)
    return [" or ".join(e) for e in _NEEDS.get(level, ()) if not good.intersection(e)]


def _good(found: Found) -> set[str]:
    return {each.name for _, each in found if each.state == "good"}


def require(found: Found, names: Sequence[str]) -> None:
    """Fail for what was asked for and is not good.

    Raises:
        UnavailableError: code ``doctor-requires``.
    """
    for name in names:
        wanted = REQUIRED[name]
        asked = [each for _, each in found if each.name == wanted]
        if not any(each.state == "good" for each in asked):
            raise UnavailableError(
                f"this machine lacks what --require {name} asks for",
                why=asked[0].found if asked else "it was not found",
                code="doctor-requires",
            )


def _lines(finding: Finding, colours: bool) -> list[str]:
    mark = _paint(
        f"{_MARKS[finding.state]:<{_INDENT - 2}}", _COLOURS[finding.state], colours
    )
    first = _wrapped(f"{finding.name}: {visible(finding.found)}")
    lines = [f"  {mark}{first[0]}", *(f"{'':{_INDENT}}{each}" for each in first[1:])]
    for text in (finding.meaning, f"-> {finding.advice}" if finding.advice else ""):
        lines += [f"{'':{_INDENT + 2}}{each}" for each in _wrapped(visible(text))]
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - _INDENT - 2)


def _paint(text: str, colour: str, colours: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colours and text.strip() else text


def _wants_colours(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
