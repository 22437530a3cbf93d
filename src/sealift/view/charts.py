"""Figures that fit any width: shapes stretch, words do not.

Shapes are SVG with ``preserveAspectRatio="none"`` and lines of fixed width; words are
HTML, placed in per cent of the figure. So a figure reads the same on a telephone, on a
desk and on paper, and needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.view.markup import Markup, element, join

UNITS: Final = 1000.0  # a figure's width and height in its own units
PLOT_PX: Final = 240
LABEL_PX: Final = 19  # between two words that must not touch
MOST_NAMED: Final = 12
WORD_UNITS: Final = 60.0  # of a figure's width, for a word below it
THINNEST: Final = 2.0  # units; what is shorter would vanish
ROUND: Final = (1, 2, 5, 10)
LARGEST: Final = 1e300  # beyond it nothing is drawn


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: what is said stands behind the bar."""

    name: str
    share: float
    said: Sequence[str]
    style: str


@dataclass(frozen=True, slots=True)
class BarPart:
    """A piece of a stacked bar, or of a lane (from ``began`` to ``ended``)."""

    began: float
    ended: float
    style: str
    title: str
    track: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of a timeline; ``tracks`` many parts can stand at one time."""

    name: str
    parts: Sequence[BarPart]
    tracks: int = 1
    style: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, named at its end."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    titles: Sequence[str]


def say_number(value: float) -> str:
    """A number on an axis: thousands are separated, and short ones stay short."""
    if abs(value) >= 1000 and float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:g}"


def bars(rows: Iterable[Bar]) -> Markup:
    """Horizontal bars on one scale; a share of 1 is full."""
    return element("div", [_bar(row) for row in rows], class_="bars")


def stack(parts: Sequence[BarPart], whole: float) -> Markup:
    """One bar of several pieces, each as long as its part of the whole."""
    pieces = [
        element("span", class_=part.style, title=part.title, style=_width(part, whole))
        for part in parts
        if part.ended > part.began
    ]
    return element("div", pieces, class_="stack")


def lanes(
    rows: Sequence[Lane], start: float, end: float, bands: Sequence[BarPart] = ()
) -> Markup:
    """Who does what when: one lane per row, one axis of seconds for all.

    Args:
        rows: From top to bottom.
        start: Left end, in the same seconds as the parts.
        end: Right end.
        bands: Stretches that are marked in every lane.
    """
    span = max(end - start, 1e-9)
    drawn = [_lane(row, start, span, bands) for row in rows]
    ticks = [
        element("span", f"{at:g} s", style=f"left:{_percent(at / span)}")
        for at in _ticks(0.0, span, most=7)
    ]
    axis = element("div", ticks, class_="axis")
    return element("div", join(*drawn), element("i"), axis, class_="lanes")


def plot(
    curves: Sequence[Curve],
    label: str,
    *,
    floor: float | None = None,
    say: Callable[[float], str] = say_number,
) -> Markup:
    """Lines over numbered points.

    Args:
        curves: What is drawn, the most important last.
        label: What the horizontal axis counts.
        floor: Lowest value of the vertical axis; by default just below the points.
        say: A value of the vertical axis in words.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    box = _Box(min(xs), max(xs), *_range(min(ys), max(ys), floor))
    grid = [
        element("path", d=f"M0 {box.y(y):.1f}H{UNITS:g}", class_="rule")
        for y in _ticks(box.low, box.high, most=6)
    ]
    lines = [_curve(curve, box) for curve in curves]
    shapes = element(
        "svg",
        grid,
        lines,
        viewBox=f"0 0 {UNITS:g} {UNITS:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
    words = join(_y_words(box, say), _x_words(box, xs), _end_words(curves, box))
    figure = element("div", shapes, words, class_="plot", style=f"height:{PLOT_PX}px")
    return join(figure, element("p", label, class_="axis-name"))


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Colours and what they stand for: (words, style)."""
    items = [
        element("li", element("span", class_=f"swatch {style}"), name)
        for name, style in entries
    ]
    return element("ul", items, class_="legend")


@dataclass(frozen=True, slots=True)
class _Box:
    """From values to the units of a figure."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return UNITS * (value - self.left) / max(self.right - self.left, 1e-9)

    def y(self, value: float) -> float:
        return UNITS * (self.high - value) / max(self.high - self.low, 1e-9)


def _bar(row: Bar) -> Markup:
    fill = element("span", class_=row.style, style=f"width:{_percent(row.share)}")
    first, *more = row.said
    return element(
        "div",
        element("span", row.name, class_="name"),
        element("span", fill, class_="rail"),
        element("b", first),
        [element("span", word, class_="also") for word in more],
        class_="bar",
    )


def _lane(row: Lane, start: float, span: float, bands: Sequence[BarPart]) -> Markup:
    height = UNITS / row.tracks

    def rectangle(part: BarPart, y: float, tall: float) -> Markup:
        x = UNITS * (part.began - start) / span
        width = max(THINNEST, UNITS * (part.ended - part.began) / span - 0.4)
        return element(
            "rect", element("title", part.title), x=x, y=y, width=width, height=tall,
            class_=part.style,
        )  # fmt: skip

    behind = [rectangle(band, 0.0, UNITS) for band in bands]
    shapes = [rectangle(part, part.track * height, height - 40) for part in row.parts]
    svg = element(
        "svg",
        behind,
        shapes,
        viewBox=f"0 0 {UNITS:g} {UNITS:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=row.name,
        style=f"height:{20 * row.tracks + 4}px",
    )
    return join(element("span", row.name, class_=f"name {row.style}".strip()), svg)


def _curve(curve: Curve, box: _Box) -> Markup:
    places = [(box.x(x), box.y(y)) for x, y in curve.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = [
        # A line without length and with round ends: a dot that never stretches.
        element("path", element("title", title), d=f"M{x:.1f} {y:.1f}h0", class_="dot")
        for (x, y), title in zip(places, curve.titles, strict=True)
    ]
    line = element("path", d=path, class_="line")
    return element("g", line, dots, class_=curve.style)


def _y_words(box: _Box, say: Callable[[float], str]) -> Iterator[Markup]:
    for value in _ticks(box.low, box.high, most=6):
        top = _percent(box.y(value) / UNITS)
        yield element("span", say(value), class_="y", style=f"top:{top}")


def _x_words(box: _Box, points: Sequence[float]) -> Iterator[Markup]:
    """Numbers at the points themselves if they are few, else round ones."""
    few, ticks = sorted(set(points)), _ticks(box.left, box.right, most=12)
    free = 0.0  # from here on no word is touched
    for value in few if len(few) <= MOST_NAMED else ticks:
        x = box.x(value)
        if x < free:
            continue
        free = x + WORD_UNITS
        left = _percent(x / UNITS)
        yield element("span", say_number(value), class_="x", style=f"left:{left}")


def _end_words(curves: Sequence[Curve], box: _Box) -> Iterator[Markup]:
    """Names at the ends of their lines, pushed apart where they would touch."""
    ends = sorted(
        (box.y(curve.points[-1][1]) / UNITS * PLOT_PX, curve.name, curve.style)
        for curve in curves
    )
    lowest = PLOT_PX - LABEL_PX * (len(ends) - 1)
    top = float("-inf")
    for wanted, name, style in ends:
        top = max(top + LABEL_PX, min(wanted, lowest))
        lowest += LABEL_PX
        yield element("span", name, class_=f"end {style}", style=f"top:{top:.0f}px")


def _range(low: float, high: float, floor: float | None) -> tuple[float, float]:
    room = 0.06 * max(high - low, 1e-6)
    return (low - room if floor is None else floor), high + room


def _ticks(low: float, high: float, *, most: int) -> list[float]:
    """Round numbers from low to high, at most so many."""
    span = high - low
    if not 0 < span < LARGEST:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * each for each in ROUND if span / (power * each) <= most)
    first = math.ceil(low / step)
    count = math.floor(high / step) - first + 1
    return [float(f"{(first + index) * step:.12g}") for index in range(count)]


def _width(part: BarPart, whole: float) -> str:
    return f"width:{_percent((part.ended - part.began) / whole)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
