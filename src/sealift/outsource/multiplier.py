"""A step of a model's products: float32 in, float32 out, integers between, then a verdict.

The same steps with ``PlainProducts`` and with ``MaskedProducts`` give the same bits. What is
not finite is noted and counted as zeros until the verdict, so that neither order nor sizes
tell of it (rules C2 and M3).
Source: spec/shares.md section 4.

Rows and columns of an input get scales of their own, which are taken back afterwards.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import JobError, quote_foreign
from sealift.numeric.kernels import Kernels
from sealift.numeric.residues import F32
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.plain import PlainProducts
from sealift.outsource.quantize import Operand, OperandId, Quantizer
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind, StepTrace

Products = PlainProducts | MaskedProducts
Observe = Callable[[OperandId, F32, Operand], None]


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


@dataclass(frozen=True, slots=True)
class _Call:
    """A call whose gradients may be asked for."""

    layer: Layer
    images: Operand
    weights: Operand
    scales: InputScales | None


class Multiplier:
    """The products of one job's model.

    Args:
        products: Where they are made.
        kernels: Compute.
        seed: Of the job; decides rounding, and nothing else.
        observe: Called with each operand, as numbers and as integers.

    Attributes:
        products: Where they are made.
    """

    def __init__(
        self,
        products: Products,
        kernels: Kernels,
        seed: int,
        observe: Observe | None = None,
    ) -> None:
        material = labelled(Label.ROUNDING_NOISE.value, str(seed).encode())
        self._kernels = kernels
        self._quantizer = Quantizer(kernels, SecretKey(material))
        self.products, self._observe = products, observe

    def begin(self, kind: StepKind, step: int, trace: StepTrace | Recorder) -> None:
        """A step begins, or begins again: under new masks, with the same rounding."""
        self._step, self._trace = step, trace
        self._calls: list[_Call] = []
        self._odd = ""
        self.products.begin(kind, step)

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y`` of a layer's next call, without its bias.

        Args:
            x: Contiguous, of the layer's shape; ``w`` too.

        Raises:
            JobError: ``other-operations``.
            PeerError: ``server-gone``.
        """
        self._trace.expect(exchange)
        layer, call = exchange.layer, len(self._calls)
        scales = InputScales.of(x, self._kernels, has_slope="input" in exchange.later)
        if scales is not None:
            x, w = scales.scale(x, w)
        weights = self._operand(w, OperandId(layer, self._step, call, "w"))
        images = self._operand(
            x, OperandId(layer, self._step, call, "x"), (("forward", weights),)
        )
        self._calls.append(_Call(layer, images, weights, scales))
        scale = 2.0 ** (images.exponent + weights.exponent)
        y = self.products.forward(exchange, images.ints, weights.ints, scale)
        return y if scales is None else scales.restore_output(y)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients of a call that it wants: of ``x``, of ``w``, or of both.

        Raises:
            See ``forward``.
        """
        self._trace.expect(exchange)
        call = self._calls[exchange.call]
        layer, images, weights = call.layer, call.images, call.weights
        if call.scales is not None:
            dy = call.scales.scale_slope(dy)
        others: dict[Direction, Operand] = {"input": weights, "weight": images}
        against = tuple((each, others[each]) for each in exchange.wants)
        place = OperandId(layer, self._step, exchange.call, "dy")
        found = self._operand(dy, place, against)
        scales = tuple(2.0 ** (found.exponent + other.exponent) for _, other in against)
        slopes = self.products.backward(exchange, found.ints, scales)
        if call.scales is None:
            return slopes
        back = {
            "input": call.scales.restore_input,
            "weight": call.scales.restore_weight,
        }
        asked = zip(exchange.wants, slopes, strict=True)
        return [back[wanted](each) for wanted, each in asked]

    def settle(self) -> None:
        """The step's verdict: before it, no weight may change and no number leave.

        Raises:
            IntegrityError: ``wrong-product``; MalformedError: ``bad-share``.
            JobError: ``operand-not-finite``, with the layer; ``other-operations``.
        """
        self._calls = []
        self.products.settle()
        self._trace.end()
        if self._odd:
            raise JobError(
                f"{self._odd} in step {self._step} contains infinity or NaN",
                why="infinity and NaN cannot be secret-shared",
                code="operand-not-finite",
            )

    def _operand(
        self,
        values: F32,
        place: OperandId,
        against: tuple[tuple[Direction, Operand], ...] = (),
    ) -> Operand:
        shape = place.layer.shape(place.tensor)
        if values.dtype != np.float32 or values.shape != shape:
            raise ValueError(f"{values.dtype} of {values.shape} for {place.tensor}")
        found = self._quantizer.operand(values, place, against)
        if self._observe is not None:
            self._observe(place, values, found)
        if not found.finite and not self._odd:
            self._odd = f"{place.tensor} of {quote_foreign(place.layer.name)}"
        return found
