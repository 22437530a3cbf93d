"""Products that a worker asks its parent for: the messages, and what is believed of them.

``Forward`` and ``Backward`` are messages as they are; their float32 operands are the
request's buffer, end to end, and the products are the reply's. The parent checks lengths
against the shapes that are said, and what is said against the step's trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from sealift.errors import MalformedError
from sealift.ids import Buffer
from sealift.numeric.residues import F32
from sealift.outsource.terms import Backward, Forward, Layer
from sealift.train.loop.tasks import TaskParent

GOES_ON: Final = b"\1"
AGAIN: Final = b"\0"


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Says that the task's next step begins, or the last one again."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Asks for the verdict of a step's products; the reply is ``GOES_ON`` or ``AGAIN``."""


ProductRequest = BeginStep | Forward | Backward | Settle


class ProductAnswers:
    """What of a task's requests for products is believed, and answered.

    Args:
        outsourced: Whether the task may ask at all.
    """

    def __init__(self, outsourced: bool) -> None:
        self._outsourced = outsourced
        self._calls: list[Layer] = []

    def length_of(self, message: Forward | Backward) -> int:
        """How long the operands of a request are; none where the job asks for no products.

        Raises:
            MalformedError: if its call is unknown.
        """
        if not self._outsourced:
            return 0
        if isinstance(message, Forward):
            shapes = [message.layer.shape("x"), message.layer.shape("w")]
        else:
            shapes = [self._layer_of(message.call).shape("dy")]
        return 4 * sum(map(math.prod, shapes))

    def reply(
        self, message: ProductRequest, buffer: bytes, parent: TaskParent
    ) -> Buffer:
        """Have it made.

        Raises:
            MalformedError: if it makes no sense.
            SealiftError: see ``StepProducts``.
        """
        products = parent.products
        if not self._outsourced or products is None:
            raise _odd("products that the job does not use")
        match message:
            case BeginStep():
                self._calls = []
                products.begin()
                return b""
            case Forward(layer):
                x, w = cut_operands(buffer, layer.shape("x"), layer.shape("w"))
                y = products.forward(message, x, w)
                self._calls.append(layer)
                return y.tobytes()
            case Backward(call):
                (dy,) = cut_operands(buffer, self._layer_of(call).shape("dy"))
                found = products.backward(message, dy)
                return b"".join(each.tobytes() for each in found)
            case Settle():
                return GOES_ON if products.settle() else AGAIN

    def _layer_of(self, call: int) -> Layer:
        if not 0 <= call < len(self._calls):
            raise _odd("gradients of an unknown call")
        return self._calls[call]


def cut_operands(buffer: bytes, *shapes: tuple[int, ...]) -> list[F32]:
    """Arrays that lie end to end; a copy may be written to."""
    sizes = [math.prod(shape) for shape in shapes]
    if len(buffer) != 4 * sum(sizes):
        raise _odd("another length than the shapes have")
    flat = np.split(np.frombuffer(bytearray(buffer), np.float32), np.cumsum(sizes)[:-1])
    return [each.reshape(shape) for each, shape in zip(flat, shapes, strict=True)]


def _odd(why: str) -> MalformedError:
    return MalformedError("the message is not a request", why=why, code="bad-message")
