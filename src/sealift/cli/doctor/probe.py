"""Findings about this machine, and how rates are measured in a short time.

Used by `sealift doctor`. A thing that is missing is a finding, never an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final, Literal

State = Literal["good", "limits", "missing", "fact"]
Figure = str | int | float | bool | None
Clock = Callable[[], float]

WINDOW_S: Final = 0.12
_LEAST_CALLS: Final = 5
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about this machine.

    Attributes:
        name: What was checked.
        found: The result; figures have units.
        meaning: What follows from the result.
        advice: What to do about it; empty if there is nothing to do.
        state: good; limits (it limits this machine); missing; or a plain fact.
        figures: The numbers of ``found``, units in their names.
    """

    name: str
    found: str
    meaning: str = ""
    advice: str = ""
    state: State = "fact"
    figures: dict[str, Figure] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Probe:
    """One check of this machine.

    Attributes:
        topic: The heading that its findings stand under.
        label: What the progress line shows while it runs.
        look: Runs the check; it may measure for some tenths of a second.
    """

    topic: str
    label: str
    look: Callable[[], Iterable[Finding]]


def measure_rate(
    step: Callable[[], object], nbytes: int, clock: Clock = time.perf_counter
) -> float:
    """Bytes a second of a step that works on ``nbytes``: the median call's."""
    step()
    took: list[float] = []
    end = clock() + WINDOW_S
    while len(took) < _LEAST_CALLS or clock() < end:
        start = clock()
        step()
        took.append(clock() - start)
    return nbytes / max(median(took), 1e-9)


def say_rate(bytes_per_s: float) -> str:
    """Format a rate for people, in GB/s (10^9 bytes)."""
    return f"{bytes_per_s / GB:.3g} GB/s"


def say_time(seconds: float) -> str:
    """Format a duration for people, in the unit that fits."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError
