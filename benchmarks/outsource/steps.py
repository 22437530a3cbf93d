"""One model's step, its products by servers or here, and the seconds that they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sealift.numeric.kernels import best_kernels
from sealift.numeric.residues import F32
from sealift.outsource.convert import Route, convert
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import Backward, Forward
from sealift.outsource.trace import Recorder, StepKind, StepTrace, Trace

_Found = TypeVar("_Found")


class Timed:
    """A model's step: its products by whoever, the rest here.

    Args:
        model: Converted in place.
        x: A batch, the same in every step.
        y: Its labels.

    Attributes:
        trace: Of every step.
        products_s: Seconds of each step so far that were its products'.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self._model, self._x, self._y = model, x, y
        self._route = Route()
        names = convert(model, self._route)
        self._route.edges = frozenset((names[0], names[-1]))
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self._number = 0
        self.kind = StepKind("train", len(x))
        self.products_s: list[float] = []
        self.trace = self._rehearsed()

    def step(self, multiplier: Multiplier) -> None:
        """Forward, backward, verdict, optimizer; notes the products' seconds."""
        self._make(multiplier, StepTrace(self.trace))

    def fp32(self) -> None:
        """The same on one thread, without servers."""
        self._route.begin()
        self._backward()
        self._optimizer.step()

    def _rehearsed(self) -> Trace:
        recorder = Recorder()
        self._make(Multiplier(PlainProducts(), best_kernels(), 0), recorder)
        return recorder.trace()

    def _make(self, multiplier: Multiplier, trace: StepTrace | Recorder) -> None:
        watched = Watched(multiplier)
        self._route.begin()
        multiplier.begin(self.kind, self._number, trace)
        self._number += 1
        with self._route.to(watched, keeps=True):
            self._backward()
        watched.settle()
        self._optimizer.step()
        self.products_s.append(watched.seconds)

    def _backward(self) -> None:
        self._optimizer.zero_grad()
        cross_entropy(self._model(self._x), self._y).backward()


class Watched:
    """Counts the seconds that products take."""

    def __init__(self, inner: Multiplier) -> None:
        self._inner, self.seconds = inner, 0.0

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """See ``Multiplier``."""
        return self._count(partial(self._inner.forward, exchange, x, w))

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """See ``Multiplier``."""
        return self._count(partial(self._inner.backward, exchange, dy))

    def settle(self) -> None:
        """See ``Multiplier``."""
        self._count(self._inner.settle)

    def _count(self, work: Callable[[], _Found]) -> _Found:
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds += time.perf_counter() - began
