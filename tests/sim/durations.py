"""How long each file of tests took, so that a run begins with the longest.

`make test-all ARGS=--record-durations` writes it down. A file without a line is short.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/durations.json"
LEAST_S = 0.5  # shorter files fill the gaps in any order


def file_of(nodeid: str) -> str:
    """The file that a test stands in."""
    return nodeid.partition("::")[0]


def recorded() -> dict[str, float]:
    """Seconds by file."""
    found: dict[str, float] = json.loads(RECORDED.read_text())
    return found


def longest_first(items: list[pytest.Item]) -> None:
    """Order tests by what their files took; a file's tests stay in order."""
    seconds = recorded()
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0.0))


class Recorder:
    """A plugin that adds up what ran and writes it over what was recorded before."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup and teardown count, too: many files wait for one world."""
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep what did not run, as long as it exists."""
        found = {**recorded(), **self._seconds}
        kept = {
            name: round(seconds, 1)
            for name, seconds in sorted(found.items())
            if seconds >= LEAST_S and (ROOT / name).is_file()
        }
        RECORDED.write_text(json.dumps(kept, indent=0) + "\n")
