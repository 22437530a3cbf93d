"""The page of growth: pictures of what was measured, and nothing from elsewhere."""

from __future__ import annotations

import pytest

from benchmarks.growth.page import BARS, CHARTS, draw_page, exponent
from benchmarks.report import Row, start_report


def test_a_line_in_proportion_has_the_exponent_one() -> None:
    assert exponent([(10.0, 3.0), (100.0, 20.0), (1000.0, 300.0)]) == pytest.approx(1)
    assert exponent([(4.0, 7.0), (16.0, 7.0)]) == 0


def test_the_page_has_a_picture_for_each_part_and_every_ratio() -> None:
    report = start_report("growth")
    for chart in CHARTS:
        for size in (10, 1000):
            row: Row = {"part": chart.part, chart.size: size, chart.cost: size * 2.0}
            row |= {
                name: str(value) if isinstance(value, str) else 20
                for name, value in chart.only
            }
            report.rows.append(row | ({chart.line: "<sealed>"} if chart.line else {}))
    report.rows.append({"part": "rounds", "rounds": 200, "early_ms": 61.5})
    report.ratios = dict.fromkeys(BARS, 1.5)
    page = draw_page(report)
    assert page.count("<svg") == len(CHARTS)
    assert page.count("^1.00") == len(CHARTS)
    assert all(f"<th>{name}<td>1.50<td>{bar}" in page for name, bar in BARS.items())
    assert "61.5" in page
    assert "<sealed>" not in page
    assert "&lt;sealed&gt;" in page
    assert "<script" not in page
    assert "http" not in page.replace("http_", "")


def test_a_part_of_one_size_has_its_table_alone() -> None:
    report = start_report("growth")
    report.rows = [{"part": "owners", "owners": 4, "to_model_s": 3.5}]
    page = draw_page(report)
    assert "<svg" not in page
    assert "<td>4<td>3.5" in page
