"""`python -m benchmarks growth`: every part in turn, in one report."""

from __future__ import annotations

import importlib
from typing import Final

from benchmarks.report import BenchReport, start_report

PARTS: Final = ("models", "rounds", "owners", "holders", "tables", "clients")


def run(*, quick: bool = False) -> BenchReport:
    """Measure every part; with ``quick`` smaller ones."""
    whole = start_report("growth")
    for name in PARTS:
        part = importlib.import_module(f"benchmarks.growth.{name}").run(quick=quick)
        whole.real += [each for each in part.real if each not in whole.real]
        whole.modelled += part.modelled
        whole.rows += [{"part": name, **row} for row in part.rows]
        whole.ratios |= part.ratios
    return whole
