"""The demo's last screen: what fits a terminal, and what it tells."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sealift.demo.holders import BEYOND_LEASE, PREVIOUS_KEY
from sealift.demo.outcome import Outcome
from sealift.demo.progress import AttackSeen
from sealift.demo.tasks import TEXT, Sample
from sealift.demo.views import print_summary
from tests.unit.demo.test_report import outcome

WRITTEN = "\n".join(f"    line {number} of what it writes" for number in range(40))


def screen(shown: Outcome, width: int = 100) -> list[str]:
    text = io.StringIO()
    print_summary(shown, Console(file=text, width=width, highlight=False))
    return text.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("sample", [False, True])
def test_it_fits_a_terminal(tmp_path: Path, sample: bool) -> None:
    shown = outcome(tmp_path)
    shown.verdict.failures.clear()
    shown.progress.attacks += [
        AttackSeen(BEYOND_LEASE, "north", "b", "outside-lease", "", 138_600),
        AttackSeen(PREVIOUS_KEY, "north", "c", "authentication", "", 138_600),
    ]
    if sample:
        bits = {
            name: {"bits_per_byte": 3.0, "loss": 2.0, "accuracy": 0.4}
            for name in shown.alone
        }
        shown = replace(
            shown,
            task=TEXT,
            alone=bits,
            together={"bits_per_byte": 2.0, "loss": 1.0, "accuracy": 0.5},
            sample=Sample("What it writes", "def f(", f"x):\n{WRITTEN}"),
        )
    lines = screen(shown)
    assert len(lines) <= 24
    ending = [line for line in lines if not line.startswith(("report", "model  "))]
    assert all(len(line) <= 100 for line in ending)
    assert any("def f(x):" in line for line in lines) is sample
    assert sum("line" in line and "writes" in line for line in lines) <= 4


def test_it_tells_what_happened_to_whoever_has_read_nothing(tmp_path: Path) -> None:
    told = "\n".join(screen(outcome(tmp_path)))
    assert "North, east and south trained one model" in told
    assert "digits read correctly" in told
    assert "north sends a record a second time: refused [frame-order]" in told
    assert "DEVELOPMENT" in told
