"""A step of a model's products: float32 in, float32 out, integers between, then a verdict.

The same steps with ``PlainProducts`` and with ``MaskedProducts`` give the same bits. What is
not finite is noted and counted as zeros until the verdict, so that neither order nor sizes
tell of it (rules C2 and M3).
Source: spec/shares.md section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import JobError, quote_foreign
from sealift.numeric.kernels import Kernels
from sealift.numeric.loops import F32
from sealift.outsource.inputscales import InputScales
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.plain import PlainProducts
from sealift.outsource.quantize import Operand, OperandId, Quantizer
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind, StepTrace

Products = PlainProducts | MaskedProducts
Observe = Callable[[OperandId, F32, Operand], None]


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
