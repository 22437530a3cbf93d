"""The timeline: who is inside when. One buffer shows as no two bars at one time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sealift.demo.parties import OWNERS
from sealift.demo.progress import VisitSeen
from sealift.demo.report.charts import LABEL, WIDTH, figure, text
from sealift.demo.report.markup import Markup, element
from sealift.demo.words import say_s

LANE: Final = 38.0
BAR: Final = 22.0
RIGHT: Final = WIDTH - 12
PHASES: Final = ("handshake", "load", "train", "scrub", "receipt")


def all_visits(visits: Sequence[VisitSeen]) -> Markup:
    """Every visit of the run, one lane per holder."""
    return _lanes(visits, [_whole(visit) for visit in visits], "All visits")


def first_visits(visits: Sequence[VisitSeen]) -> Markup:
    """A closer look, with phases."""
    parts = [part for visit in visits for part in _phases(visit)]
    return _lanes(visits, parts, "The first visits, by phase")


Part = tuple[VisitSeen, float, float, str, str]


def _whole(visit: VisitSeen) -> Part:
    style = f"fill-{visit.holder}" if visit.verified else "fill-refused"
    if visit.verified and visit.purpose == "heldout":
        style += " pale"
    return visit, visit.began_s, visit.ended_s, style, _say(visit)


def _phases(visit: VisitSeen) -> Iterator[Part]:
    """One part per phase; a refused visit is red until its scrub."""
    ends = [began for _, began in visit.marks[1:]] + [visit.ended_s]
    for (phase, began), ended in zip(visit.marks, ends, strict=True):
        failed = not visit.verified and phase == "load"
        style = "fill-refused" if failed else f"phase-{phase}"
        title = f"{_say(visit)} · {phase} {say_s(ended - began)}"
        yield visit, began, ended, style, title


def _lanes(visits: Sequence[VisitSeen], parts: Sequence[Part], label: str) -> Markup:
    start = min(visit.began_s for visit in visits)
    span = max(visit.ended_s for visit in visits) - start
    bottom = LANE * len(OWNERS) + 4

    def x(seconds: float) -> float:
        return LABEL + (RIGHT - LABEL) * (seconds - start) / span

    bars = [
        element(
            "rect", element("title", title), x=x(began), y=_top(visit.holder),
            width=max(1.2, x(ended) - x(began) - 0.6), height=BAR, class_=style,
        )
        for visit, began, ended, style, title in parts
    ]  # fmt: skip
    names = [
        text(LABEL - 14, _top(owner) + BAR * 0.7, owner, class_="label end")
        for owner in OWNERS
    ]
    return figure(bottom + 26, _ticks(span, bottom), names, bars, label=label)


def _ticks(span: float, bottom: float) -> Iterator[Markup]:
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 60) if span / s <= 12)
    for index in range(int(span / step) + 1):
        x = LABEL + (RIGHT - LABEL) * index * step / span
        yield element("line", x1=x, y1=0, x2=x, y2=bottom, class_="rule")
        yield text(x, bottom + 18, f"{index * step:g} s", class_="tick middle")


def _top(owner: str) -> float:
    return LANE * OWNERS.index(owner) + 8


def _say(visit: VisitSeen) -> str:
    what = "held-out rows" if visit.purpose == "heldout" else "training"
    end = "" if visit.verified else f", refused [{visit.reason}]"
    return f"visit {visit.number}, {visit.holder}, {what}, {visit.rows} rows{end}"
