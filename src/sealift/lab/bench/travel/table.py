"""The arithmetic of the travel table: lines through small cargoes, shares, ratios. Pure.

``RECORDED`` is the table of the paper (GPT-2 in llm.c, 512 MiB, TDX and H100), as decoded
in the field notes: its rows are caps of the network between the two machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

CARGO_BYTES: Final = 512 << 20
PAPER_TRAIN_S: Final = 1230.0


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One row of the paper's table.

    Attributes:
        cap: Mbit/s; 0 is uncapped.
        ship_s: Transfer when the data set is shipped.
        travel_s: Transfer when the accelerator travels.
    """

    cap: int
    ship_s: float
    travel_s: float

    @property
    def ratio(self) -> float:
        """How much longer shipping takes."""
        return self.ship_s / self.travel_s


RECORDED: Final = (
    RecordedRow(4, 1115.88, 1.01),
    RecordedRow(20, 230.84, 1.03),
    RecordedRow(100, 60.36, 1.02),
    RecordedRow(500, 15.86, 0.98),
    RecordedRow(0, 7.34, 0.98),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a cargo: a fixed part, and seconds per byte."""

    fixed_s: float
    s_per_byte: float

    def at(self, cargo_bytes: int) -> float:
        """Seconds of a cargo of this size."""
        return self.fixed_s + self.s_per_byte * cargo_bytes


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of the whole cargo, measured or scaled from smaller ones."""

    seconds: float
    scaled: bool


def fit_line(points: Mapping[int, Sequence[float]]) -> Line:
    """The straight line through the medians at two cargo sizes.

    Args:
        points: Seconds by cargo bytes, two sizes.
    """
    (low, low_s), (high, high_s) = sorted(
        (size, statistics.median(seconds)) for size, seconds in points.items()
    )
    slope = (high_s - low_s) / (high - low)
    return Line(low_s - slope * low, slope)


def whole_cargo(points: Mapping[int, Sequence[float]], cargo_bytes: int) -> Timed:
    """Seconds of the whole cargo: its median if it was measured, else by the line."""
    if cargo_bytes in points:
        return Timed(statistics.median(points[cargo_bytes]), scaled=False)
    return Timed(fit_line(points).at(cargo_bytes), scaled=True)


def share(transfer_s: float, train_s: float) -> float:
    """The paper's column: transfer / (train + transfer), per cent."""
    return 100 * transfer_s / (train_s + transfer_s)


def cap_name(cap: int) -> str:
    """``4 Mbit/s``, ``uncapped``."""
    return f"{cap} Mbit/s" if cap else "uncapped"
