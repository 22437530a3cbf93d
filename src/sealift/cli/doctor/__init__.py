"""`sealift doctor` reports what limits this machine, what that means and what to do."""

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

from sealift.cli.doctor import cipher, gpu, host, roles, setup
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
# By level: of each group one finding must be good, or the evidence cannot be made.
_TEE: Final = (("Intel TDX", "AMD SEV-SNP"), ("TSM reports",), ("sandbox",))
_NEEDS: Final = {
    "attested-host": (("TPM 2.0",), ("sandbox",)),
    "tee": _TEE,
    "gpu-tee": (*_TEE, ("GPU protection",)),
    "untrusted-gpu": _TEE,
}
HERE: Final = "this machine has what the evidence needs; try `sealift attest collect`"
DEVELOPMENT: Final = (
    "level development: nothing is missing; this level protects data from nobody"
)
AZURE: Final = "level tee: in a confidential VM on Azure, its virtual TPM is enough"
Findings = list[tuple[str, Finding]]


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        run=run,
        description=(
            "Measures ciphers, memory copies, the disk and the GPU in a few seconds, "
            "and checks what can protect data here: sandbox, TPM, TEE, confidential "
            "GPU. A missing part is reported and is not an error: the exit code is 0 "
            "unless --require names it. With --as it ends with what this machine can "
            "do for an owner of data, a host of meetings, or an operator of services."
        ),
    )
    parser.add_flag("--json", "print one JSON document")
    parser.add_argument(
        "--as",
        dest="role",
        choices=sorted(roles.TASKS),
        help="end with what this machine can do as one, and what is missing",
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        choices=sorted(REQUIRED),
        help="exit with code 3 if this is missing or limited; may be repeated",
    )
    parser.add_path(
        "--folder",
        default=Path(),
        metavar="DIR",
        help="folder in which the time of fsync is measured",
    )


def run(args: argparse.Namespace) -> int:
    """Run the probes, print their findings, check --require; return the exit code.

    Raises:
        UnavailableError: code ``doctor-requires``, after everything was printed.
    """
    findings = look(probes(args.folder), sys.stderr)
    verdicts = roles.judge(args.role, findings) if args.role else None
    if args.json:
        print(_to_json(findings, verdicts))
    else:
        print(to_text(findings, colours=_wants_colours(sys.stdout)))
        if verdicts is not None:
            print("\n".join(["", *_tasks(roles.to_lines(args.role, verdicts))]))
    require(findings, args.require)
    return 0


def probes(folder: Path) -> list[Probe]:
    """Return all probes in their order; ``folder`` is on the disk to measure."""
    return [
        Probe("Machine", "processor and memory", host.look_at_machine),
        Probe("Copies", "memory", host.look_at_copies),
        Probe("Copies", "shared memory", host.look_at_memfd),
        Probe("Machine", "the disk", partial(host.look_at_disk, folder)),
        Probe("Machine", "room on the disk", partial(setup.look_at_space, folder)),
        Probe("Machine", "the clock", setup.look_at_clock),
        Probe("Machine", "port and proxy", setup.look_at_network),
        Probe("Installed", "packages", setup.look_at_packages),
        Probe("Protection", "sandbox", host.look_at_sandbox),
        Probe("Protection", "TPM and TEE", host.look_at_devices),
        Probe("Ciphers", "AES instructions", cipher.look_at_flags),
        Probe("Ciphers", "cryptography", cipher.look_at_cryptography),
        Probe("Ciphers", "system libcrypto", cipher.look_at_system_library),
        Probe("Ciphers", "two threads", cipher.look_at_threads),
        Probe("Ciphers", "sealed link", cipher.look_at_link),
        Probe("GPU", "GPU", gpu.look_at_gpu),
        Probe("GPU", "confidential computing", gpu.look_at_protection),
        Probe("GPU", "other processes on the GPU", gpu.look_at_company),
        Probe("GPU", "kernel compiler", gpu.look_at_compilers),
        Probe("GPU", "uses of the GPU", gpu.look_at_uses),
    ]


def look(probes: Sequence[Probe], talk: TextIO) -> Findings:
    """Run all probes; a terminal shows which one runs."""
    findings: Findings = []
    for number, probe in enumerate(probes, 1):
        if talk.isatty():
            line = f"checking {probe.label} ({number} of {len(probes)})"
            print(f"\r\x1b[K{line}", end="", file=talk, flush=True)
        findings += [(probe.topic, each) for each in probe.look()]
    if talk.isatty():
        print("\r\x1b[K", end="", file=talk, flush=True)
    return findings


def _to_json(findings: Findings, verdicts: list[roles.Verdict] | None) -> str:
    """Return one JSON document: the findings in order, each with its topic, and tasks."""
    listed = [{"topic": topic, **each.to_json()} for topic, each in findings]
    document: dict[str, Any] = {"findings": listed}
    if verdicts is not None:
        document["tasks"] = roles.to_json(verdicts)
    return json.dumps(document, indent=2)


def _tasks(lines: Sequence[str]) -> list[str]:
    """The lines within the width; what continues stands as far in as what it continues."""
    wrapped: list[str] = []
    for line in map(visible, lines):
        room = " " * (len(line) - len(line.lstrip()) + 2)
        wrapped += textwrap.wrap(line, WIDTH, subsequent_indent=room) or [""]
    return wrapped


def to_text(findings: Findings, *, colours: bool) -> str:
    """Return the findings as text, by topic; colours are for terminals."""
    blocks = []
    for topic in dict.fromkeys(topic for topic, _ in findings):
        lines = [_paint(topic, "1", colours)]
        for each in (finding for its, finding in findings if its == topic):
            lines += _lines(each, colours)
        blocks.append("\n".join(lines))
    summary = []
    for said, state in (
        ("limited on this machine", "limits"),
        ("missing on this machine", "missing"),
    ):
        names = ", ".join(each.name for _, each in findings if each.state == state)
        summary.append(textwrap.fill(f"{said}: {names or 'nothing'}", WIDTH))
    return "\n\n".join((*blocks, "\n".join(summary), "\n".join(verdict(findings))))


def verdict(findings: Findings) -> list[str]:
    """Say for each level what this machine lacks to run an accelerator at it."""
    good = _good(findings)
    lines = [DEVELOPMENT]
    for level in _NEEDS:
        lacks = lacking(level, findings)
        said = f"missing: {', '.join(lacks)}" if lacks else HERE
        lines.append(f"level {level}: {said}")
    if "TPM 2.0" in good and not good.intersection(*_TEE[:1]):
        lines.append(AZURE)
    return lines


def lacking(level: str, findings: Findings) -> list[str]:
    """Return what the evidence of a level needs and this machine does not have."""
    good = _good(findings)
    return [" or ".join(e) for e in _NEEDS.get(level, ()) if not good.intersection(e)]


def _good(findings: Findings) -> set[str]:
    return {each.name for _, each in findings if each.state == "good"}


def require(findings: Findings, names: Sequence[str]) -> None:
    """Raise for each required finding that is not good.

    Raises:
        UnavailableError: code ``doctor-requires``.
    """
    for name in names:
        wanted = REQUIRED[name]
        asked = [each for _, each in findings if each.name == wanted]
        if not any(each.state == "good" for each in asked):
            raise UnavailableError(
                f"this machine does not have what --require {name} asks for",
                why=asked[0].found if asked else "it was not checked",
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
