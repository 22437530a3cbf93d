"""Two figures as SVG: who gets how many right, and the loss of every visit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sealift.demo.outcome import Outcome
from sealift.demo.parties import OWNERS
from sealift.demo.progress import VisitSeen
from sealift.demo.report.markup import Markup, element
from sealift.demo.words import say_s

WIDTH: Final = 920.0
LABEL: Final = 118.0  # room at the left
BAR: Final = 26.0
STEP: Final = 42.0


def result_bars(outcome: Outcome) -> Markup:
    """One bar per model, on one scale from 0 to 100 %."""
    name = outcome.task.headline.name
    rows = [
        (f"{owner} alone", found[name], owner) for owner, found in outcome.alone.items()
    ]
    rows.append(("together", outcome.together[name], "joint"))
    height = STEP * len(rows) + 26
    marks = [_bar(index, *row) for index, row in enumerate(rows)]
    return figure(height, _percents(STEP * len(rows)), marks, label="Accuracy by model")


def loss_curves(visits: Sequence[VisitSeen]) -> Markup:
    """Mean loss of each training visit, one line per holder."""
    height, bottom = 300.0, 262.0
    top = max((v.metrics.get("loss", 0.0) for v in visits), default=1.0) * 1.05
    last = max((v.number for v in visits), default=1)

    def at(visit: VisitSeen) -> tuple[float, float]:
        x = 46 + (WIDTH - 120) * (visit.number - 1) / max(1, last - 1)
        return x, bottom - (bottom - 14) * visit.metrics.get("loss", 0.0) / top

    curves = [
        _curve(owner, [v for v in visits if v.holder == owner], at) for owner in OWNERS
    ]
    grid = _loss_grid(top, bottom)
    axis = text(46, height - 12, "key epoch (number of the visit)", class_="tick")
    return figure(height, grid, curves, axis, label="Loss by visit and holder")


def figure(height: float, *children: object, label: str) -> Markup:
    """An SVG as wide as the page."""
    return element(
        "svg",
        *children,  # type: ignore[arg-type]
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=label,
    )


def text(x: float, y: float, words: str, **attributes: str | float | None) -> Markup:
    """A piece of text."""
    return element("text", words, x=x, y=y, **attributes)


def _bar(index: int, name: str, share: float, style: str) -> Markup:
    y, length = STEP * index + 6, (WIDTH - LABEL - 70) * share
    return element(
        "g",
        text(LABEL - 14, y + BAR * 0.69, name, class_="label end"),
        element(
            "rect", x=LABEL, y=y, width=length, height=BAR, rx=3, class_=f"fill-{style}"
        ),
        text(LABEL + length + 10, y + BAR * 0.69, f"{share:.1%}", class_="value"),
    )


def _percents(bottom: float) -> Iterator[Markup]:
    for percent in (0, 25, 50, 75, 100):
        x = LABEL + (WIDTH - LABEL - 70) * percent / 100
        yield _rule(x, 0, x, bottom)
        yield text(x, bottom + 18, f"{percent} %", class_="tick middle")


def _loss_grid(top: float, bottom: float) -> Iterator[Markup]:
    step = 0.5 if top < 3 else 1.0
    for index in range(int(top / step) + 1):
        y = bottom - (bottom - 14) * index * step / top
        yield _rule(46, y, WIDTH - 74, y)
        yield text(38, y + 4, f"{index * step:g}", class_="tick end")


def _curve(owner: str, visits: Sequence[VisitSeen], at: object) -> Markup:
    assert callable(at), "gives a visit's place"
    points = [at(visit) for visit in visits]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [
        element(
            "circle", element("title", _say(visit)), cx=x, cy=y, r=3,
            class_=f"fill-{owner}",
        )
        for visit, (x, y) in zip(visits, points, strict=True)
    ]  # fmt: skip
    return element(
        "g",
        element("polyline", points=path, class_=f"line line-{owner}"),
        dots,
    )


def _say(visit: VisitSeen) -> str:
    loss = visit.metrics.get("loss", 0.0)
    train = say_s(visit.phases_s.get("train", 0.0))
    return f"visit {visit.number}, {visit.holder}: loss {loss:.3f}, trained {train}"


def _rule(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="rule")
