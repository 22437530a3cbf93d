"""The first step of its form: its products are made here, in float32, and its trace is kept.

Servers hear of a form of steps when the trace is known, and see every later step of that
form as the same one. Nothing is sent before. Source: security rule N2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sealift.numeric.loops import F32
from sealift.outsource.float32 import Float32Products
from sealift.outsource.terms import Backward, Exchange, Forward
from sealift.outsource.trace import Trace


class StepRehearsal(Float32Products):
    """Takes down what a step asks for, and in which call of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[Exchange] = []
        self._parts: list[int] = []  # of each forward call: in which call of the model
        self._part = 0

    def begin_part(self) -> None:
        """The model is called, perhaps once more in the same step."""
        self._part += 1

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``."""
        self._asked.append(exchange)
        self._parts.append(self._part)
        return super().forward(exchange, x, w)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """Gradients."""
        self._asked.append(exchange)
        return super().backward(exchange, dy)

    def edges(self) -> frozenset[str]:
        """The modules that were called first and last."""
        names = [each.layer.name for each in self._asked if isinstance(each, Forward)]
        return frozenset((*names[:1], *names[-1:]))

    def trace(self, edges: frozenset[str]) -> Trace:
        """What was asked for and used.

        Calls of the model that nobody differentiated, though it could be, were no part of
        the step. Operands of a call without gradients are not kept.
        """
        answered = {e.call for e in self._asked if isinstance(e, Backward)}
        used = {self._parts[call] for call in answered}
        numbers: dict[int, int] = {}
        found: list[Exchange] = []
        for call, each in self._numbered():
            if isinstance(each, Backward):
                found.append(Backward(numbers[call], each.wants))
            elif self._parts[call] in used or not self._could_be_used(call):
                numbers[call] = len(numbers)
                layer = replace(each.layer, edge=each.layer.name in edges)
                later = each.later if call in answered else ()
                found.append(Forward(layer, later))
        return tuple(found)

    def _could_be_used(self, call: int) -> bool:
        """Whether the model's call that it is in could be differentiated."""
        part = self._parts[call]
        return any(self._parts[other] == part for other in self.operands)

    def _numbered(self) -> Iterator[tuple[int, Exchange]]:
        forward = 0
        for each in self._asked:
            yield (each.call if isinstance(each, Backward) else forward), each
            forward += isinstance(each, Forward)
