"""From float32 to the integers that are multiplied, with scales that are powers of two.

A tensor's peak decides its scale. Where shapes alone do not promise that a product stays
below Q / 2, exact norms do: its last operand is rounded to fewer bits until the largest
row norm times the largest column norm is small enough (rules C2 and H9). What servers see
does not depend on it. Rounding is stochastic, from a stream that a redone step draws again.
Source: spec/shares.md section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.crypto.keys import SecretKey
from sealift.numeric.kernels import Kernels
from sealift.numeric.keystream import rounding_noise
from sealift.numeric.residues import F32, I16, I64
from sealift.numeric.windows import KernelWindow
from sealift.outsource.terms import OPERANDS, Direction, Layer, Tensor

_MOST_SCALE: Final = 110  # as a power of two; below it a float32 has bits enough
Squares = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Operand:
    """A quantized tensor: ``ints * 2**exponent``.

    Attributes:
        ints: Of the tensor's shape.
        finite: Whether the numbers were; zeros stand for a tensor that was not.
    """

    ints: I16
    exponent: int
    finite: bool = True


class Quantizer:
    """Quantizes the operands of one job.

    Args:
        kernels: Compute.
        seed: Of the rounding; never that of a mask.
    """

    def __init__(self, kernels: Kernels, seed: SecretKey) -> None:
        self._kernels, self._seed = kernels, seed

    def operand(
        self,
        values: F32,
        place: OperandId,
        against: tuple[tuple[Direction, Operand], ...] = (),
    ) -> Operand:
        """Quantize one tensor.

        Args:
            values: Contiguous, of the layer's shape.
            place: Which tensor this is.
            against: What it is multiplied with: the products that must not wrap.
        """
        shape = place.layer.shape(place.tensor)
        peak = self._kernels.peak(values.reshape(-1))
        if not math.isfinite(peak):
            return Operand(np.zeros(shape, np.int16), 0, finite=False)
        limit = (1 << (place.layer.bits(place.tensor) - 1)) - 1
        exponent = _exponent(peak, limit)
        found = self._round(values, place, limit, exponent)
        for direction, other in against:
            while (more := _excess(self._kernels, place, direction, found, other)) > 0:
                exponent += more
                found = self._round(values, place, limit, exponent)
        return found

    def _round(
        self, values: F32, place: OperandId, limit: int, exponent: int
    ) -> Operand:
        out = np.empty(place.layer.shape(place.tensor), np.int16)
        noise = rounding_noise(self._seed, place.step, place.call, place.tensor)
        flat, scale = values.reshape(-1), 2.0**-exponent
        self._kernels.quantize(flat, scale, limit, noise, out.reshape(-1))
        return Operand(out, exponent)


@dataclass(frozen=True, slots=True)
class OperandId:
    """Where in a job a tensor stands; together unlike any other's."""

    layer: Layer
    step: int
    call: int
    tensor: Tensor


def _exponent(peak: float, limit: int) -> int:
    """The least of which ``peak * 2**-exponent`` is at most the limit."""
    if not peak:
        return 0
    mantissa, exponent = math.frexp(peak / limit)
    return max(exponent - (mantissa == 0.5), -_MOST_SCALE)


def _excess(
    kernels: Kernels,
    place: OperandId,
    direction: Direction,
    own: Operand,
    other: Operand,
) -> int:
    """By how many bits more ``own`` has to be rounded; 0 if the product cannot wrap."""
    layer = place.layer
    most = layer.basis(direction).modulus // 2
    limits = [(1 << (layer.bits(t) - 1)) - 1 for t in OPERANDS[direction]]
    if layer.depth(direction) * math.prod(limits) <= most:
        return 0
    first = place.tensor == OPERANDS[direction][0]
    a, b = (own, other) if first else (other, own)
    rows, columns = _norms(kernels, layer, direction, a.ints, b.ints)
    product = rows * columns  # squares, as Python's integers
    if product <= most * most:
        return 0
    return max(1, (math.isqrt(product) // most).bit_length() - 1)


def _norms(
    kernels: Kernels, layer: Layer, direction: Direction, a: I16, b: I16
) -> tuple[int, int]:
    """The largest squared norms of a product's rows and columns, or bounds of them."""
    window = window_of(layer)
    match direction:
        case "forward":
            rows = _pixel_squares(kernels, a)
            for axis, side in enumerate((layer.height, layer.width)):
                rows = _sums_between(rows, 1 + axis, *window.seen_from(axis, side))
            columns = kernels.row_squares(b.reshape(layer.outputs, -1))
        case "input":
            rows = _pixel_squares(kernels, a)
            for axis, side in enumerate((layer.height, layer.width)):
                rows = _sums_between(rows, 1 + axis, *window.seen_by(axis, side))
            columns = kernels.column_squares(b.reshape(-1, layer.inputs))
        case _:  # of the weight
            rows = kernels.column_squares(a.reshape(-1, layer.outputs))
            columns = kernels.column_squares(b.reshape(-1, layer.inputs))
    return int(rows.max()), int(columns.max())


def window_of(layer: Layer) -> KernelWindow:
    """How its kernel walks."""
    return KernelWindow(layer.kernel, layer.stride, layer.padding)


def _sums_between(numbers: Squares, axis: int, first: I64, end: I64) -> Squares:
    """Sums along an axis, each from a first place to an end; ``numbers`` are used up.

    So the time does not grow with the kernel: a recipe chooses that.
    """
    np.cumsum(numbers, axis=axis, out=numbers)
    shape = tuple(-1 if each == axis else 1 for each in range(numbers.ndim))
    found = numbers.take(end - 1, axis, mode="clip")
    found *= (end > 0).reshape(shape)
    before = numbers.take(first - 1, axis, mode="clip")
    before *= (first > 0).reshape(shape)
    found -= before
    return found


def _pixel_squares(kernels: Kernels, images: I16) -> Squares:
    channels = images.shape[-1]
    return kernels.row_squares(images.reshape(-1, channels)).reshape(images.shape[:-1])
