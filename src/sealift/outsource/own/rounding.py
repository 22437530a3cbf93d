"""What rounding to integers did to a model's operands: measured, shown, and said if it is much.

Measured at one step of many, here, from what this process has; no server hears of it. Only
in a user's own process: in a job it would be a result that no owner agreed to.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from sealift.errors import quote_foreign
from sealift.numeric.loops import F32
from sealift.outsource.quantize import Operand, OperandId
from sealift.outsource.terms import Tensor

EVERY: Final = 64  # steps; the first one of them is measured
_MUCH: Final = 0.5  # of the rows, or of the columns
_NAMES: Final[dict[Tensor, str]] = {"x": "input", "w": "weight", "dy": "gradient"}


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Of one operand of a module, the last time that it was measured.

    Attributes:
        relative: The error's root mean square, divided by the numbers'.
        rows_lost: Share of the rows (images; of a weight, outputs) that are not zero, but
            smaller than one step of the integers.
        columns_lost: The same of the columns (channels).
    """

    relative: float
    rows_lost: float
    columns_lost: float


class RoundingWatch:
    """Measures the operands of one model.

    Attributes:
        errors: Of each module and operand.
    """

    def __init__(self) -> None:
        self.errors: dict[str, dict[Tensor, RoundingError]] = {}
        self._warned: set[str] = set()

    def note(self, place: OperandId, values: F32, operand: Operand) -> None:
        """Measure an operand, if it is its turn; warn once of a module's input."""
        if place.step % EVERY or not operand.finite:
            return
        name, step = place.layer.name, math.ldexp(1.0, operand.exponent)
        error = values - operand.ints * step
        whole = float(np.linalg.norm(values.astype(np.float64)))
        found = RoundingError(
            float(np.linalg.norm(error)) / whole if whole else 0.0,
            _lost(values.reshape(len(values), -1), step, axis=1),
            _lost(values.reshape(-1, values.shape[-1]), step, axis=0),
        )
        self.errors.setdefault(name, {})[place.tensor] = found
        if place.tensor == "x" and name not in self._warned:
            self._warn(name, found)

    def _warn(self, name: str, found: RoundingError) -> None:
        sides = {"rows": found.rows_lost, "columns": found.columns_lost}
        for what, lost in sides.items():
            if lost >= _MUCH:
                self._warned.add(name)
                warnings.warn(
                    f"{lost:.0%} of the {what} of the input of {quote_foreign(name)} are "
                    f"rounded away beside larger {what}. Bring the {what} to similar sizes "
                    "(standardize the columns, clip outliers), or leave this module on "
                    "this machine.",
                    stacklevel=2,
                )
                return


def describe(errors: Mapping[Tensor, RoundingError]) -> str:
    """As a line of a report says it."""
    each = (f"{_NAMES[t]} {e.relative:.2%}" for t, e in errors.items())
    return "rounding error: " + ", ".join(each)


def _lost(table: F32, step: float, axis: int) -> float:
    """Share of rows or columns that are smaller than one step, of those that are something."""
    peaks = np.abs(table).max(axis=axis)
    some = peaks > 0
    return float((peaks[some] < step).mean()) if some.any() else 0.0
