"""What a machine can do as an owner's, a host's or an operator's, from the findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sealift.cli.doctor.probe import Finding

_KEPT: Final = ("fsync", "disk space")


@dataclass(frozen=True, slots=True)
class Task:
    """Something that people do with a machine.

    Attributes:
        what: In words; after "this machine can".
        needs: Names of findings without which it cannot be done.
        wants: Names of findings without which it can be done, and should not be yet.
    """

    what: str
    needs: tuple[str, ...]
    wants: tuple[str, ...] = ()


_TRAINS: Final = ("torch", "sandbox", "fsync")
TASKS: Final[Mapping[str, Sequence[Task]]] = {
    "owner": (
        Task(
            "seal tables, release keys, keep logs, verify receipts",
            ("fsync",),
            ("disk space", "clock"),
        ),
        Task(
            "take part in a meeting and train on its rows (sealift join)",
            _TRAINS,
            ("disk space", "clock", "proxy"),
        ),
        Task("seal image folders", ("pillow", *_KEPT)),
        Task("verify evidence of NVIDIA GPUs", ("lxml",), ("clock",)),
    ),
    "host": (
        Task(
            "lead a meeting on this machine alone (sealift host)",
            _TRAINS,
            ("disk space", "clock"),
        ),
        Task(
            "lead a meeting that others reach (sealift host --listen --address)",
            (*_TRAINS, "port 7420"),
            ("disk space", "clock"),
        ),
        Task("train on its GPU", (*_TRAINS, "GPU", "GPU for train")),
        Task("train modules on servers that nobody trusts", (*_TRAINS, "numba")),
    ),
    "operator": (
        Task(
            "run the orchestrator and its relay",
            ("fsync", "port 7420"),
            ("disk space", "clock"),
        ),
        Task("run an accelerator at level development", _TRAINS, ("clock",)),
        Task("train on its GPU", (*_TRAINS, "GPU", "GPU for train")),
        Task("serve a sealed model", _TRAINS, ("clock",)),
        Task(
            "multiply shares for others (sealift share-server)",
            ("torch", "numba"),
            ("clock",),
        ),
        Task("multiply shares on its GPU", ("GPU", "GPU for share server")),
    ),
}


class Verdict(NamedTuple):
    """Whether a task can be done here; what is lacking, or should be put right first."""

    task: Task
    lacks: list[Finding]
    warns: list[Finding]


def judge(role: str, findings: Sequence[tuple[str, Finding]]) -> list[Verdict]:
    """Judge each task of a role: ``owner``, ``host`` or ``operator``."""
    by_name = {each.name: each for _, each in findings}

    def bad(names: Sequence[str]) -> list[Finding]:
        found = (by_name.get(name, _not_checked(name)) for name in names)
        return [each for each in found if each.state in ("limits", "missing")]

    verdicts = []
    for task in TASKS[role]:
        # A slow disk slows a task down and does not forbid it.
        lacks = [e for e in bad(task.needs) if (e.name, e.state) != ("fsync", "limits")]
        known = [each for each in lacks if each.found]
        verdicts.append(Verdict(task, known or lacks, bad(task.wants)))
    return verdicts


def to_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The verdicts as plain values."""
    return [
        {
            "task": each.task.what,
            "can": not each.lacks,
            "lacks": [finding.name for finding in each.lacks],
            "warns": [finding.name for finding in each.warns],
            "advice": [e.advice for e in (*each.lacks, *each.warns) if e.advice],
        }
        for each in verdicts
    ]


def to_lines(role: str, verdicts: Sequence[Verdict]) -> list[str]:
    """The verdicts for people: a line each, then each thing to put right once."""
    lines = [f"as {'a' if role == 'host' else 'an'} {role}, this machine can"]
    first: dict[str, Finding] = {}
    others: dict[str, Finding] = {}
    for each in verdicts:
        names = ", ".join(finding.name for finding in each.lacks)
        can = f"  {'no' if names else 'yes':<5}{each.task.what}"
        lines.append(f"{can}; missing: {names}" if names else can)
        first |= {finding.name: finding for finding in each.warns}
        others |= {finding.name: finding for finding in each.lacks}
    others = {name: each for name, each in others.items() if name not in first}
    for title, wrong in (
        ("fix first", first),
        ('needed only for what is marked "no"', others),
    ):
        lines += ["", title] if wrong else []
        for name, finding in wrong.items():
            lines.append(f"  {name}: {finding.found or 'not checked'}")
            if finding.advice:
                lines.append(f"    -> {finding.advice}")
    return lines


def _not_checked(name: str) -> Finding:
    return Finding(name, "", state="missing")
