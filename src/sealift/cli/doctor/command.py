"""`sealift doctor`: what limits this machine, what that means, and what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from sealift.cli.doctor.cipher import cipher_probes
from sealift.cli.doctor.gpu import gpu_probes
from sealift.cli.doctor.host import host_probes
from sealift.cli.doctor.probe import Finding, Probe, State
from sealift.errors import UnavailableError
from sealift.release.visible import visible

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
Found = list[tuple[str, Finding]]


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what limits this machine, what that means, and what to do",
        description="Measures ciphers, copies, disk and GPU in a few seconds, and looks "
        "for what protects: sandbox, TPM, TEE, confidential GPU. What is missing is "
        "said and is no error; the exit code is 0 unless --require asks for it.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        choices=sorted(REQUIRED),
        help="exit with 3 if this is missing or limited; may be repeated",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where fsync is tried",
    )


def run(args: argparse.Namespace) -> int:
    """Look, print, and require; the exit code.

    Raises:
        UnavailableError: code ``doctor-requires``, after everything was printed.
    """
    probes = [*host_probes(args.folder), *cipher_probes(), *gpu_probes()]
    found = look(probes, sys.stderr)
    if args.json:
        print(to_json(found))
    else:
        print(to_text(found, colours=_wants_colours(sys.stdout)))
    require(found, args.require)
    return 0


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


def to_json(found: Found) -> str:
    """One document: findings in order, each with its topic."""
    findings = [{"topic": topic, **each.to_json()} for topic, each in found]
    return json.dumps({"findings": findings}, indent=2)


def to_text(found: Found, *, colours: bool) -> str:
    """Findings by topic; without colours for whatever is no terminal."""
    topics = list(dict.fromkeys(topic for topic, _ in found))
    blocks = []
    for topic in topics:
        lines = [_paint(topic, "1", colours)]
        for _, each in (pair for pair in found if pair[0] == topic):
            lines += _lines(each, colours)
        blocks.append("\n".join(lines))
    return "\n\n".join((*blocks, _summary(found)))


def require(found: Found, names: Sequence[str]) -> None:
    """Fail for what was asked for and is not good.

    Raises:
        UnavailableError: code ``doctor-requires``.
    """
    for name in names:
        wanted = REQUIRED[name]
        good = any(each.name == wanted and _is_good(name, each) for _, each in found)
        if not good:
            said = [each.found for _, each in found if each.name == wanted]
            raise UnavailableError(
                f"this machine lacks what --require {name} asks for",
                why=said[0] if said else "it was not found",
                code="doctor-requires",
            )


def _is_good(name: str, finding: Finding) -> bool:
    return finding.state == "good" and (
        name != "cc" or finding.figures.get("confidential") is True
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


def _summary(found: Found) -> str:
    limits = [each.name for _, each in found if each.state == "limits"]
    missing = [each.name for _, each in found if each.state == "missing"]
    lines = [
        f"limits here: {', '.join(limits) or 'nothing'}",
        f"not here: {', '.join(missing) or 'nothing'}",
    ]
    return "\n".join(textwrap.fill(line, WIDTH) for line in lines)


def _paint(text: str, colour: str, colours: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colours and text.strip() else text


def _wants_colours(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
