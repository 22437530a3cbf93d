"""A step of a model's products: float32 in, float32 out, integers between, then a verdict.

The same steps with ``PlainProducts`` and with ``MaskedProducts`` give the same bits. What is
not finite is noted and counted as zeros until the verdict, so that neither order nor sizes
tell of it (rules C2 and M3).
Source: spec/shares.md section 4.
"""

from __future__ import annotations

import numpy as np

from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import JobError, quote_foreign
from sealift.numeric.kernels import Kernels
from sealift.numeric.loops import F32
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.plain import PlainProducts
from sealift.outsource.quantize import Operand, OperandId, Quantizer
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind, StepTrace

Products = PlainProducts | MaskedProducts


class Multiplier:
    """The products of one job's model.

    Args:
        products: Where they are made.
        kernels: Compute.
        seed: Of the job; decides rounding, and nothing else.
    """

    def __init__(self, products: Products, kernels: Kernels, seed: int) -> None:
        material = labelled(Label.ROUNDING_NOISE.value, str(seed).encode())
        self._quantizer = Quantizer(kernels, SecretKey(material))
        self._products = products

    def begin(self, kind: StepKind, step: int, trace: StepTrace | Recorder) -> None:
        """A step begins, or begins again: under new masks, with the same rounding."""
        self._step, self._trace = step, trace
        self._calls: list[tuple[Layer, Operand, Operand]] = []
        self._odd = ""
        self._products.begin(kind, step)

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
        weights = self._operand(w, OperandId(layer, self._step, call, "w"))
        images = self._operand(
            x, OperandId(layer, self._step, call, "x"), (("forward", weights),)
        )
        self._calls.append((layer, images, weights))
        scale = 2.0 ** (images.exponent + weights.exponent)
        return self._products.forward(exchange, images.ints, weights.ints, scale)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients of a call that it wants: of ``x``, of ``w``, or of both.

        Raises:
            See ``forward``.
        """
        self._trace.expect(exchange)
        layer, images, weights = self._calls[exchange.call]
        others: dict[Direction, Operand] = {"input": weights, "weight": images}
        against = tuple((each, others[each]) for each in exchange.wants)
        place = OperandId(layer, self._step, exchange.call, "dy")
        found = self._operand(dy, place, against)
        scales = tuple(2.0 ** (found.exponent + other.exponent) for _, other in against)
        return self._products.backward(exchange, found.ints, scales)

    def settle(self) -> None:
        """The step's verdict: before it, no weight may change and no number leave.

        Raises:
            IntegrityError: ``wrong-product``; MalformedError: ``bad-share``.
            JobError: ``operand-not-finite``, with the layer; ``other-operations``.
        """
        self._calls = []
        self._products.settle()
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
        if not found.finite and not self._odd:
            self._odd = f"{place.tensor} of {quote_foreign(place.layer.name)}"
        return found
