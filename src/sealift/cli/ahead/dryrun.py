"""What a command would do, as lines for people or one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sealift.cli.ahead.checks import Checks
from sealift.cli.ahead.planned import say_machines, say_work
from sealift.errors import SealiftError, visible
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import explain
from sealift.train.job.settings import JobTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would be.

    Attributes:
        runs: Processes, by whose machine they run on.
        sight: Who can see what.
        receives: What each party gets.
        checks: What the command checks before it starts.
        work: How much there is to do, and how long it takes as far as that is known.
    """

    runs: Mapping[str, tuple[str, ...]]
    sight: tuple[str, ...]
    receives: Mapping[str, tuple[str, ...]]
    checks: Checks
    work: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield "a dry run: nothing was started, dialled, written or released"
        yield from _section("what runs where", _pairs(self.runs))
        yield from _section("who can see what", self.sight)
        yield from _section("who receives what", _pairs(self.receives))
        refused = [each.line for each in self.checks.refused]
        nothing = "nothing that can be known beforehand"
        yield from _section("what is refused", refused or [nothing])
        yield from _section("about how long", self.work)

    def show(self, *, as_json: bool) -> int:
        """Print it; the exit code of what would be refused first."""
        if as_json:
            print(json.dumps(self._plain()))
        else:
            print("\n".join(map(visible, self.lines())))
        return self.checks.exit_code

    def _plain(self) -> dict[str, object]:
        return {
            "dry_run": True,
            "runs": dict(self.runs),
            "sight": self.sight,
            "receives": dict(self.receives),
            "refused": [
                {"check": each.name, "line": each.line, "code": each.error.code}
                for each in self.checks.refused
                if each.error is not None
            ],
            "work": self.work,
        }


def of_job(job: JobTable, agreement: Agreement, checks: Checks) -> DryRun:
    """Of a job whose agreement is there."""
    meaning = explain(agreement)
    try:
        work = tuple(say_work(agreement, job.settings))
    except SealiftError:
        work = ("not known: the visits cannot be planned",)
    return DryRun(
        runs=say_machines(job, agreement),
        sight=meaning.sight,
        receives={each.name: each.receives for each in meaning.parties},
        checks=checks,
        work=work,
    )


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield f"{title}:"
    yield from (f"  - {line}" for line in lines)


def _pairs(found: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    return (f"{whose}: {what}" for whose, each in found.items() for what in each)
