"""Where the time went: of the command, of the accelerator, of each holder's visits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.progress import PHASES, VisitSeen, timed_phases
from sealift.lab.demo.report.charts import Part, legend, stack
from sealift.lab.demo.report.markup import Markup, element, join, section, table
from sealift.lab.demo.spending import CHECKPOINT, IDLE, Spending
from sealift.lab.demo.words import say_bytes, say_s
from sealift.lab.demo.world import ONE_BUFFER
from sealift.lab.worlds.folder import OWNERS

_OVERLAPPING: Final = element(
    "p",
    "Visits overlap here, so together they took longer than the accelerator did.",
    class_="small",
)
USES: Final = (*PHASES, CHECKPOINT, IDLE)


def hours(outcome: Outcome, spending: Spending) -> Markup:
    """Three bars and a table."""
    lead = (
        f"Of the accelerator's {say_s(spending.whole_s)} between its first and its last "
        f"visit, {_share(spending.seconds.get('train', 0.0), spending)} went into the "
        f"work itself. Bringing cargo took {say_s(spending.transfer_s)}; "
        f"{say_s(spending.exposed_s)} of that, {_share(spending.exposed_s, spending)} of "
        "the time, was exposed: nothing else was done meanwhile."
    )
    return section(
        "Where the time went",
        lead,
        element("h3", f"The command, {outcome.seconds:.1f} s"),
        _stages(outcome, spending),
        element("h3", f"The accelerator, {say_s(spending.whole_s)}"),
        _uses(spending),
        element("h3", "A visit, by holder"),
        _phase_table(outcome),
        _OVERLAPPING if outcome.travel != ONE_BUFFER else "",
    )


def _stages(outcome: Outcome, spending: Spending) -> Markup:
    progress = outcome.progress
    starting = max(0.0, outcome.roles_up_s - outcome.world_s)
    releasing = max(0.0, progress.ready_s - progress.gathered_s)
    told = outcome.world_s + starting + releasing + spending.whole_s
    stages = [
        ("keys and sealed data", outcome.world_s, "tone-1"),
        ("starting eight processes", starting, "tone-2"),
        ("evidence and release of keys", releasing, "tone-3"),
        ("visits", spending.whole_s, "tone-4"),
        ("output and verification", max(0.0, outcome.seconds - told), "tone-5"),
    ]
    return _stacked(stages)


def _uses(spending: Spending) -> Markup:
    found = spending.seconds
    return _stacked([(n, found[n], f"phase-{n}") for n in USES if n in found])


def _stacked(stages: Sequence[tuple[str, float, str]]) -> Markup:
    whole = sum(seconds for _, seconds, _ in stages) or 1.0
    parts = [
        Part(0.0, seconds, style, f"{name}: {say_s(seconds)}")
        for name, seconds, style in stages
    ]
    words = [
        (f"{name} {say_s(seconds)}, {seconds / whole:.0%}", style)
        for name, seconds, style in stages
    ]
    return join(stack(parts, whole), legend(words))


def _phase_table(outcome: Outcome) -> Markup:
    verified = outcome.progress.verified
    names = timed_phases(verified)
    rows: list[list[Markup | str]] = [
        [element("b", owner, class_=f"ink-{owner}"), *_cells(own, names, median)]
        for owner in OWNERS
        for own in [[visit for visit in verified if visit.holder == owner]]
        if own
    ]
    rows.append([element("b", "all, added up"), *_cells(verified, names, sum)])
    headings = ["median of a visit", "visits", *names, "whole", "sealed"]
    return table(headings, rows, numbers_from=1)


def _cells(
    visits: Sequence[VisitSeen],
    names: Sequence[str],
    merge: Callable[[list[float]], float],
) -> Iterator[str]:
    yield str(len(visits))
    for name in names:
        yield say_s(merge([visit.phases_s.get(name, 0.0) for visit in visits]))
    yield say_s(merge([sum(visit.phases_s.values()) for visit in visits]))
    yield say_bytes(round(merge([float(visit.sealed_bytes) for visit in visits])))


def _share(seconds: float, spending: Spending) -> str:
    return f"{seconds / spending.whole_s:.0%}" if spending.whole_s else "0%"
