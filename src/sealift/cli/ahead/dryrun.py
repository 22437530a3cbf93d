"""Checks that go on after one fails, and what a command would do: lines, or one of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sealift.cli.ahead.planned import say_processes, say_work
from sealift.errors import SealiftError, visible
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import explain
from sealift.train.job.settings import JobTable

TITLES: Final = {
    "runs": "what runs where",
    "terms": "what the agreement means",
    "refused": "what is refused",
    "work": "about how long",
}


class Unknown(str):
    """A line about what cannot be known yet, or is not asked for; no failure."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one check: its name, what was found, what it failed with."""

    name: str
    line: str
    error: SealiftError | None = None

    def __str__(self) -> str:
        known = "--" if isinstance(self.line, Unknown) else "ok"
        return f"{'no' if self.error else known}  {self.name:<11} {self.line}"


class Checks:
    """What was checked so far, in order."""

    def __init__(self) -> None:
        self.done: list[Checked] = []

    def look(self, name: str, at: Callable[[], str | None]) -> None:
        """Check one thing; what it raises is kept."""
        try:
            self.done.append(Checked(name, at() or "correct"))
        except SealiftError as error:
            lines = (*getattr(error, "problems", ()), f"{error} [{error.code}]")
            self.done += [Checked(name, line, error) for line in lines]

    @property
    def refused(self) -> list[str]:
        """Lines of those that failed."""
        return [each.line for each in self.done if each.error]

    @property
    def exit_code(self) -> int:
        """Of the first that failed; 0 if none did."""
        return next((e.error.exit_code for e in self.done if e.error), 0)

    def show(self) -> int:
        """Print a line for each; the exit code."""
        print("\n".join(visible(str(each)) for each in self.done))
        return self.exit_code


def show(
    said: Mapping[str, Iterable[str]], checks: Checks, *, as_json: bool = False
) -> int:
    """Print what would be, by the names of ``TITLES``; the exit code."""
    found = {name: list(lines) for name, lines in said.items()}
    found["refused"] = checks.refused
    if as_json:
        print(json.dumps({"dry_run": True, **found}))
    else:
        found["refused"] = checks.refused or ["nothing, as far as can be known now"]
        print("this is a dry run: nothing was started, connected, written or released")
        print("\n".join(map(visible, _sections(found))))
    return checks.exit_code


def _sections(found: Mapping[str, list[str]]) -> Iterator[str]:
    for name, title in TITLES.items():
        if name in found:
            yield from ("", f"{title}:", *(f"  - {line}" for line in found[name]))


def show_job(
    job: JobTable, agreement: Agreement, checks: Checks, *, as_json: bool = False
) -> int:
    """Print what a job would do whose agreement is there; the exit code."""
    said = {
        "runs": say_processes(job, agreement),
        "terms": [each.text for each in explain(agreement)],
        "work": say_work(agreement, job.settings),
    }
    return show(said, checks, as_json=as_json)
