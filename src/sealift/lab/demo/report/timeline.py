"""The timeline: who is inside when, and what the accelerator does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.progress import PHASES, Span, VisitSeen
from sealift.lab.demo.report.charts import Lane, Part, lanes, legend
from sealift.lab.demo.report.markup import Markup, element, join, section
from sealift.lab.demo.spending import CHECKPOINT, Spending
from sealift.lab.demo.words import say_s
from sealift.lab.worlds.folder import OWNERS

CLOSER_LOOK: Final = 9  # visits
MOST_DRAWN: Final = 900  # visits; of a longer run the first ones


def timeline(outcome: Outcome, spending: Spending) -> Markup:
    """All visits, then the first ones by phase."""
    visits = [visit for visit in outcome.progress.visits if not visit.under_way]
    visits = visits[:MOST_DRAWN]
    return section(
        "Who is inside when",
        _lead(outcome),
        _overview(visits),
        legend(
            [
                *((owner, f"fill-{owner}") for owner in OWNERS),
                ("paler: held-out rows", "fill-joint pale"),
                ("refused", "fill-refused"),
            ]
        ),
        element("h3", f"The first {min(CLOSER_LOOK, len(visits))} visits, by phase"),
        _closer(visits[:CLOSER_LOOK], spending, mixed=outcome.travel.mixed),
    )


def _lead(outcome: Outcome) -> str:
    if outcome.travel.mixed:
        return (
            "Mixed cargo: one slice of every owner is inside at one time, and batches are "
            "drawn across all of them. Marked stretches are groups that were trained on "
            "together. Nothing can read another visit's rows."
        )
    if outcome.travel.buffers == 2:
        return (
            "Two buffers: the next owner's rows load while one owner's are trained on, so "
            "bars of different owners overlap. Nothing can read another visit's rows."
        )
    return (
        "One buffer: a holder's rows are overwritten and read back before the next "
        "holder is met, so no two bars stand at the same time."
    )


def _overview(visits: Sequence[VisitSeen]) -> Markup:
    rows = []
    for owner in OWNERS:
        own = [visit for visit in visits if visit.holder == owner]
        tracks = _tracks(own)
        parts = [_whole(visit, tracks[visit.visit]) for visit in own]
        rows.append(Lane(owner, parts, _count(tracks), f"ink-{owner}"))
    return lanes(rows, *_window(visits))


def _closer(visits: Sequence[VisitSeen], spending: Spending, *, mixed: bool) -> Markup:
    start, end = _window(visits)
    rows = [Lane("accelerator", _segments(spending.segments, start, end))]
    for owner in OWNERS:
        own = [visit for visit in visits if visit.holder == owner]
        tracks = _tracks(own)
        parts = [part for visit in own for part in _phases(visit, tracks[visit.visit])]
        rows.append(Lane(owner, parts, _count(tracks), f"ink-{owner}"))
    seen = {part.style.removeprefix("phase-") for row in rows for part in row.parts}
    named = [name for name in (*PHASES, CHECKPOINT) if name in seen]
    return join(
        lanes(rows, start, end, _groups(visits) if mixed else ()),
        legend(
            [
                ("refused", "fill-refused"),
                *((name, f"phase-{name}") for name in named),
                *([("trained on together", "band")] if mixed else []),
            ]
        ),
    )


def _window(visits: Sequence[VisitSeen]) -> tuple[float, float]:
    return min(v.began_s for v in visits), max(v.ended_s for v in visits)


def _whole(visit: VisitSeen, track: int) -> Part:
    style = f"fill-{visit.holder}" if visit.verified else "fill-refused"
    if visit.verified and visit.purpose == "heldout":
        style += " pale"
    return Part(visit.began_s, visit.ended_s, style, _say(visit), track)


def _phases(visit: VisitSeen, track: int) -> Iterator[Part]:
    """One part per phase; a refused visit is red until its scrub."""
    for span in visit.spans:
        failed = not visit.verified and span.phase in ("load", "check", "wait")
        style = "fill-refused" if failed else f"phase-{span.phase}"
        spent = say_s(span.ended_s - span.began_s)
        title = f"{_say(visit)} · {span.phase} {spent}"
        yield Part(span.began_s, span.ended_s, style, title, track)


def _segments(segments: Sequence[Span], start: float, end: float) -> list[Part]:
    return [
        Part(
            max(start, each.began_s),
            min(end, each.ended_s),
            f"phase-{each.phase}",
            f"accelerator: {each.phase} {say_s(each.ended_s - each.began_s)}",
        )
        for each in segments
        if each.began_s < end and each.ended_s > start
    ]


def _groups(visits: Sequence[VisitSeen]) -> list[Part]:
    """Stretches in which several visits were trained on together."""
    positions = sorted({visit.position for visit in visits})
    bands = []
    for position in positions:
        group = [visit for visit in visits if visit.position == position]
        spans = [s for visit in group for s in visit.spans if s.phase == "train"]
        if len({visit.holder for visit in group if visit.verified}) > 1 and spans:
            began, ended = min(s.began_s for s in spans), max(s.ended_s for s in spans)
            bands.append(Part(began, ended, "band", f"group {position}"))
    return bands


def _tracks(visits: Sequence[VisitSeen]) -> dict[str, int]:
    """A track for each visit, so that visits which overlap stand below each other."""
    free_from: list[float] = []
    found = {}
    for visit in sorted(visits, key=lambda each: each.began_s):
        open_tracks = [i for i, at in enumerate(free_from) if at <= visit.began_s]
        track = open_tracks[0] if open_tracks else len(free_from)
        free_from[track : track + 1] = [visit.ended_s]
        found[visit.visit] = track
    return found


def _count(tracks: dict[str, int]) -> int:
    return max(tracks.values(), default=0) + 1


def _say(visit: VisitSeen) -> str:
    what = {"heldout": "held-out rows", "prepare": "sums"}.get(
        visit.purpose, "training"
    )
    end = "" if visit.verified else f", refused [{visit.reason}]"
    return f"visit {visit.number}, {visit.holder}, {what}, {visit.rows} rows{end}"
