"""`python -m benchmarks growth`: every part in turn, in one report and on one page."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from benchmarks.growth.page import draw_page
from benchmarks.report import BenchReport, start_report

PARTS: Final = ("models", "rounds", "owners", "holders", "tables", "clients")

PAGE: Final = Path("build") / "growth.html"


def run(*, quick: bool = False) -> BenchReport:
    """Measure every part, and draw the page; with ``quick`` smaller ones."""
    whole = start_report("growth")
    for name in PARTS:
        part = importlib.import_module(f"benchmarks.growth.{name}").run(quick=quick)
        whole.real += [each for each in part.real if each not in whole.real]
        whole.modelled += part.modelled
        whole.rows += [{"part": name, **row} for row in part.rows]
        whole.ratios |= part.ratios
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(draw_page(whole), encoding="utf-8")
    print(f"page: {PAGE}")
    return whole
