"""Checks that go on after one fails, and what a command would do: lines, or one of JSON.

What a job will do, by agreement and job alone: whose processes, and how much work.

How long it takes cannot be known from that. Visits are counted with the largest buffer that
makes sense, so there may be more of them; rows and steps of an epoch stay as many.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sealift.errors import SealiftError, UsageError, visible
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import explain
from sealift.release.agreement.phrases import count
from sealift.train.job.settings import JobTable
from sealift.train.plans import PlannedWork
from sealift.travel.settings import JobSettings

TITLES: Final = {
    "runs": "what runs where",
    "terms": "what the agreement means",
    "refused": "what is refused",
    "work": "about how long",
}


UNMEASURED: Final = "the time is unknown; `sealift try` measures a step"


ORCHESTRATOR: Final = "orchestrator, to which all others connect"
BROKER: Final = "broker, which releases this owner's keys as the agreement allows"
RANK: Final = "rank, with a sandboxed worker that runs the recipe on its own rows"


def _say_processes(job: JobTable, agreement: Agreement) -> Iterator[str]:
    """Each, behind the name of whose machine it runs on."""
    operator = agreement.operator
    if job.plan == "local":
        yield "this machine: one process, which reads the sealed files of all owners"
        yield "this machine: a sandboxed worker, which runs the recipe"
        return
    yield f"{operator}: {ORCHESTRATOR}, at {job.orchestrator}"
    if not agreement.rows_at_home:
        many = count(agreement.ranks, "accelerator")
        yield f"{operator}: {many}, with a sandboxed worker that runs the recipe"
    servers = agreement.servers.parties if agreement.servers else {}
    for share, party in servers.items():
        address = job.servers.addresses[share] or "an address that is not set yet"
        yield f"{party}: server of share {share}, at {address}"
    for owner in agreement.holders:
        yield f"{owner}: {BROKER}"
        if agreement.rows_at_home:
            yield f"{owner}: {RANK}"
        elif job.plan != "ddp":
            yield f"{owner}: holder, which sends its encrypted rows"


def _say_work(agreement: Agreement, settings: JobSettings) -> Iterator[str]:
    """How much there is to do, and that nobody knows yet how long it takes."""
    visits, rows, steps = Counter[str](), Counter[str](), 0
    training, fewest = settings.training, "" if settings.visits.buffer_bytes else "+"
    try:
        work = PlannedWork.of(settings, agreement.resources)
    except UsageError:
        work = PlannedWork((), {})  # it is refused, and why is said there
    for batch in work.batches:
        times = work.passes[batch.purpose]
        seen = sum(stop.rows for stop in batch.stops)
        visits[batch.purpose] += times * len(batch.stops)
        rows[batch.purpose] += times * seen
        if batch.purpose == "train":
            steps -= times * (-training.trained_rows(seen) // training.batch_rows)
    for purpose, number in visits.items():
        yield f"{purpose}: {number:,}{fewest} visits, {rows[purpose]:,} rows in all"
    slices = settings.slices.count
    beside = f", in {slices} parallel slices" if slices > 1 else ""
    each = f"of at most {training.batch_rows:,} rows"
    yield f"{count(training.epochs, 'epoch')}, {steps:,}{fewest} steps {each}{beside}"
    yield UNMEASURED


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
        found["refused"] = checks.refused or ["nothing, as far as is known now"]
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
        "runs": _say_processes(job, agreement),
        "terms": [each.text for each in explain(agreement)],
        "work": _say_work(agreement, job.settings),
    }
    return show(said, checks, as_json=as_json)
