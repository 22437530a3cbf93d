"""Rows and columns of an input get scales of their own, which are taken back afterwards.

A tensor has one scale, which its largest number decides: beside a column of incomes the
ages are rounded away, and beside one outlier all other rows. So small rows and columns
are multiplied by powers of two, which is exact. Columns of the weight get the inverse of
the input's, and so does each row of ``dy``; every product is multiplied back. What one
operand gains another loses. Where the input's gradient is not asked for (which shapes
decide), rows gain all bits that they lack, and columns half of them. Where it is, it would
lose what they gain: rows gain half, which is better than an input of zeros, columns none.
The scales follow from data, and are secret like every scale (rule C2).
Source: spec/shares.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from sealift.numeric.kernels import Kernels
from sealift.numeric.loops import F32

NEAR_BITS: Final = 6  # rows and columns as near to the largest stay as they are
_MOST_BITS: Final = 100  # of a factor; what is smaller than that is lost


@dataclass(frozen=True, slots=True)
class InputScales:
    """Powers of two that an input was multiplied with.

    Attributes:
        rows: One for each image: (batch, 1, 1, 1).
        columns: One for each channel: (inputs).
    """

    rows: F32
    columns: F32

    @classmethod
    def of(cls, x: F32, kernels: Kernels, *, has_slope: bool) -> Self | None:
        """Those of an input (N, H, W, C); none where its rows and columns are alike.

        Args:
            kernels: Compute.
            has_slope: Whether its gradient will be asked for.
        """
        row_peaks = kernels.row_peaks(x.reshape(len(x), -1))
        if not np.isfinite(row_peaks).all():
            return None
        rows = _bits_below(row_peaks) // (2 if has_slope else 1)
        columns = np.zeros(x.shape[-1], np.int32)
        if not has_slope:
            peaks = kernels.column_peaks(x.reshape(len(x), -1, x.shape[-1]))
            columns = _bits_below(np.ldexp(peaks, rows[:, None]).max(axis=0)) // 2
        if not rows.any() and not columns.any():
            return None
        one = np.float32(1)
        return cls(np.ldexp(one, rows).reshape(-1, 1, 1, 1), np.ldexp(one, columns))

    def scale(self, x: F32, w: F32) -> tuple[F32, F32]:
        """Input and weight, as they are rounded and multiplied."""
        return x * self.rows * self.columns, w / self.columns

    def scale_slope(self, dy: F32) -> F32:
        """The gradient of ``y``, as it is multiplied with the scaled input."""
        return dy / self.rows

    def restore_output(self, y: F32) -> F32:
        """``y`` of the input as it was."""
        return y / self.rows

    def restore_input(self, dx: F32) -> F32:
        """The gradient of the input as it was."""
        return dx * self.rows * self.columns

    def restore_weight(self, dw: F32) -> F32:
        """The gradient of the weight as it was."""
        return dw / self.columns


def _bits_below(peaks: F32) -> npt.NDArray[np.int32]:
    """By how many bits each is below the largest; 0 where it is near, or nothing."""
    bits = np.frexp(peaks)[1]
    some = peaks > 0
    below = bits.max(where=some, initial=-_MOST_BITS * 2) - bits
    below[(below <= NEAR_BITS) | ~some] = 0
    return np.minimum(below, _MOST_BITS)
