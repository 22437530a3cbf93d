"""What failed in a run, written down for `scripts/rerun.py`.

A test that starts real processes depends on what else the machine does; one that does
not, fails for a reason of its own. The markers of the first kind are listed here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

STARTS_PROCESSES = {"distributed", "guest", "hosts", "swtpm", "chromium", "ray"}


def starts_processes(item: pytest.Item) -> bool:
    """Whether a marker says so."""
    return any(mark.name in STARTS_PROCESSES for mark in item.iter_markers())


class Recorder:
    """A plugin that writes a run's failures and its exit status to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test may fail in more than one phase; a crash has no marker."""
        if not report.failed:
            return
        starts = getattr(report, "starts_processes", False)
        empty = {"test": report.nodeid, "phases": [], "starts_processes": starts}
        failure = self._failed.setdefault(report.nodeid, empty)
        failure["phases"].append(report.when)
        failure["starts_processes"] &= starts

    def write(self, exit_status: int, left: list[str]) -> None:
        """Say how the run ended."""
        failed = list(self._failed.values())
        record = {"exit_status": int(exit_status), "left": left, "failed": failed}
        self._path.write_text(json.dumps(record))
