"""What every benchmark writes: rows, ratios, and what in them is real; and how it repeats.

The format is the same for all, so that results can be compared over
commits and machines. Arms of one comparison run in turn, again and again, and a figure is
a median, so that what else the machine does meanwhile meets all of them alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TypeVar

from sealift.demo.report import this_machine
from sealift.errors import UnavailableError

Row = dict[str, str | int | float | bool]
Arm = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


@dataclass(slots=True)
class BenchReport:
    """The result of one benchmark.

    Attributes:
        real: What was measured on this machine.
        modelled: What was computed from a model, each with its source.
        recorded: What was read from files of other machines.
        ratios: By name.
    """

    bench: str
    commit: str
    machine: dict[str, str | int | float]
    real: list[str] = field(default_factory=list)
    modelled: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    def keep_worst(self, name: str, ratio: float) -> None:
        """A ratio that is the lowest of all sizes."""
        self.ratios[name] = round(min(ratio, self.ratios.get(name, ratio)), 3)

    def keep_highest(self, name: str, ratio: float) -> None:
        """Where less is better, the worst of all sizes."""
        self.ratios[name] = round(max(ratio, self.ratios.get(name, ratio)), 3)

    def to_text(self) -> str:
        """What is real and what is not, rows and ratios, a line each."""
        said = {"modelled": self.modelled, "recorded": self.recorded}
        notes = (f"{name}: {each}" for name, found in said.items() for each in found)
        rows = (
            "  ".join(f"{name}={value}" for name, value in row.items())
            for row in self.rows
        )
        ratios = (f"{name} {ratio:.2f}" for name, ratio in self.ratios.items())
        return "\n".join((*notes, *rows, *ratios))

    def write(self, path: str | Path) -> None:
        """Write it as one JSON document.

        Raises:
            UnavailableError: if the file cannot be written.
        """
        try:
            Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n")
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise UnavailableError(f"cannot write {path}", why=why) from error


def start_report(bench: str) -> BenchReport:
    """An empty report about this commit and this machine."""
    load = round(os.getloadavg()[0], 2)
    return BenchReport(bench, _commit(), {**this_machine(), "load_1min": load})


@dataclass(slots=True)
class Spent:
    """Seconds of every repeat of one arm, and processor seconds of this process."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of the repeat in the middle."""
        return median(self.seconds)

    def gb_per_s(self, nbytes: int, digits: int = 2) -> float:
        """Goodput of so many bytes a repeat."""
        return round(nbytes / self.median / 1e9, digits)


def interleaved(
    arms: Mapping[Name, Arm],
    repeats: int,
    *,
    warm_up: int = 1,
    budget_s: float = 0.0,
    most: int = sys.maxsize,
) -> dict[Name, Spent]:
    """Every arm, one repeat of each in turn; the first ones warm up and do not count.

    Args:
        arms: Each is timed from its call to its return, or returns a float: what it took.
        repeats: That count.
        warm_up: How many do not.
        budget_s: As many more as there is time for, in changing order, so that nobody
            always comes after the same one.
        most: But no more than that.
    """
    spent, turn, done = {name: Spent() for name in arms}, deque(arms), 0
    until = time.perf_counter() + budget_s
    while done < warm_up + repeats or (
        done < warm_up + most and time.perf_counter() < until
    ):
        turn.rotate(bool(budget_s))
        for name in turn:
            cpu, start = time.process_time(), time.perf_counter()
            own = arms[name]()
            took = time.perf_counter() - start
            if done >= warm_up:
                spent[name].seconds.append(own if isinstance(own, float) else took)
                spent[name].cpu_s.append(time.process_time() - cpu)
        done += 1
    return spent


def distribution(spent_ms: Sequence[float]) -> dict[str, float]:
    """Median and tail, in milliseconds."""
    cut = quantiles(spent_ms, n=100, method="inclusive")
    named = {"p50_ms": cut[49], "p90_ms": cut[89], "p99_ms": cut[98]}
    return {name: round(value, 2) for name, value in named.items()}


def _commit() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    folder = Path(__file__).parent
    try:
        found = subprocess.run(  # noqa: S603 - fixed command
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"
