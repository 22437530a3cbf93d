"""One page of how cost grows: a picture and a table for each part, ratios beside their bars.

Pictures have logarithmic scales, so a straight line is a power of the size; its exponent
stands beside its name: 1 is in proportion, 0 does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from benchmarks.report import BenchReport, Row

WIDE, HIGH, EDGE = 420, 220, 34
COLOURS: Final = ("#0b6", "#36c", "#c60", "#909", "#666")


@dataclass(frozen=True, slots=True)
class Chart:
    """What of a part's rows is drawn.

    Attributes:
        part: Of the report.
        title: What is seen.
        size: The column that grows.
        cost: The column that follows it.
        line: The column that tells lines apart; empty for one line.
        only: What a row must have besides.
    """

    part: str
    title: str
    size: str
    cost: str
    line: str = ""
    only: tuple[tuple[str, object], ...] = ()

    def lines(self, rows: list[Row]) -> dict[str, list[tuple[float, float]]]:
        """Points of each line, by its name, the smallest size first."""
        found: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            fits = all(row.get(name) == wanted for name, wanted in self.only)
            if row["part"] == self.part and fits and self.cost in row:
                point = float(row[self.size]), float(row[self.cost])
                name = str(row[self.line]) if self.line else self.cost
                found.setdefault(name, []).append(point)
        return {name: sorted(points) for name, points in found.items()}


CHARTS: Final = (
    Chart("models", "Memory of a rank in models", "million_parameters", "rank_models", "plan"),
    Chart("owners", "Seconds from start to model", "owners", "to_model_s"),
    Chart("holders", "Milliseconds of a visit", "holders", "visit_ms"),
    Chart("tables", "Seconds for a table of 20 columns", "rows", "seconds", "arm", (("columns", 20),)),
    Chart("clients", "Answers in a second", "connections", "answers_per_s", "arm", (("load", "closed"),)),
)  # fmt: skip
# The highest that is asked for; of ``serve_per_s`` the lowest.
BARS: Final = {
    "parent_models_local": 2, "parent_models_travel": 2, "parent_models_ddp": 2,
    "worker_models_ddp": 6, "rank_models_ddp": 8, "schema_vs_pandas": 3,
    "seal_vs_pandas": 3, "round_s_late_vs_early": 1.1, "owners16_vs_4": 3,
    "serve_per_s": 3000,
}  # fmt: skip


def draw_page(report: BenchReport) -> str:
    """The page, as HTML that needs nothing else."""
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    notes = [*report.real, *(f"modelled: {each}" for each in report.modelled)]
    parts = dict.fromkeys(str(row["part"]) for row in report.rows)
    body = "".join(
        f"<h2>{escape(part)}</h2>{_pictures(part, report.rows)}{_table(part, report.rows)}"
        for part in parts
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>How cost grows</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 8px;text-align:right}"
        "svg{background:#f8f8f8}</style><h1>How cost grows</h1>"
        f"<p>Commit {escape(report.commit)}; {escape(machine)}</p>"
        f"<ul>{''.join(f'<li>{escape(each)}' for each in notes)}</ul>"
        f"<table><tr><th>ratio<th>measured<th>bar{''.join(_ratios(report))}</table>{body}"
        "</html>\n"
    )


def exponent(points: list[tuple[float, float]]) -> float:
    """Of the power of the size that a line's ends follow."""
    (first, low), (last, high) = points[0], points[-1]
    return math.log(high / low) / math.log(last / first)


def _ratios(report: BenchReport) -> Iterator[str]:
    for name, value in report.ratios.items():
        bar = BARS.get(name, "")
        yield f"<tr><th>{escape(name)}<td>{value:,.2f}<td>{bar}"


def _table(part: str, rows: list[Row]) -> str:
    own = [
        {k: v for k, v in row.items() if k != "part"}
        for row in rows
        if row["part"] == part
    ]
    names = list(dict.fromkeys(name for row in own for name in row))
    head = "".join(f"<th>{escape(name)}" for name in names)
    lines = (
        "<tr>" + "".join(f"<td>{escape(str(row.get(name, '')))}" for name in names)
        for row in own
    )
    return f"<table><tr>{head}{''.join(lines)}</table>"


def _pictures(part: str, rows: list[Row]) -> str:
    return "".join(_picture(chart, rows) for chart in CHARTS if chart.part == part)


def _picture(chart: Chart, rows: list[Row]) -> str:
    lines = {
        name: points
        for name, points in chart.lines(rows).items()
        if len({size for size, _ in points}) > 1
        and min(points, key=lambda p: p[1])[1] > 0
    }
    if not lines:
        return ""
    every = [point for points in lines.values() for point in points]
    across, up = (_scale([point[axis] for point in every]) for axis in (0, 1))
    drawn = []
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{EDGE + across(size) * (WIDE - 2 * EDGE):.0f},{HIGH - EDGE - up(cost) * (HIGH - 2 * EDGE):.0f}"
            for size, cost in points
        )
        drawn.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        said = f"{name}: {chart.size}^{exponent(points):.2f}"
        drawn.append(
            f'<text x="{EDGE}" y="{14 + 14 * number}" fill="{colour}">{escape(said)}</text>'
        )
    sizes = [size for size, _ in every]
    costs = [cost for _, cost in every]
    drawn.append(
        _label(EDGE, HIGH - 8, min(sizes))
        + _label(WIDE - 2 * EDGE, HIGH - 8, max(sizes))
    )
    drawn.append(_label(2, HIGH - EDGE, min(costs)) + _label(2, EDGE, max(costs)))
    return (
        f"<h3>{escape(chart.title)}, by {escape(chart.size)}</h3>"
        f'<svg width="{WIDE}" height="{HIGH}" font-size="11">{"".join(drawn)}</svg>'
    )


def _label(x: int, y: int, value: float) -> str:
    return f'<text x="{x}" y="{y}">{value:,.4g}</text>'


def _scale(values: list[float]) -> Any:
    """From a value to its place between 0 and 1, by its logarithm."""
    low, high = math.log(min(values)), math.log(max(values))
    return lambda value: (math.log(value) - low) / ((high - low) or 1.0)
