"""The servers as a model in its user's process has them, shut by what they did wrong.

Servers take a job's traces once, before its first step. Here a form of steps is known when
its first was made, so a form that is new ends the sessions, and opens others.

Which modules are faster here than by servers is measured on zeros, so that no row decides:
a step of a known form is made of zeros, by the servers and here. What decides is what
everybody may know, the shapes, and how fast this machine, the servers and the way between
them are; servers see those steps, and later that some products are not asked for.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch.nn import functional

from sealift.errors import JobError, PeerError, SealiftError, require_value
from sealift.numeric.kernels import Kernels
from sealift.numeric.residues import F32
from sealift.outsource.convert import Outsourced
from sealift.outsource.multiplier import Multiplier, Observe, Products
from sealift.outsource.terms import Backward, Forward, Layer, Tensor
from sealift.outsource.trace import (
    Phase,
    StepKind,
    StepTrace,
    Trace,
    Traces,
    calls_of,
    tabulate,
    without,
)

PASSES: Final = 3  # steps of zeros: the first finds nothing prepared


class Reach(Protocol):
    """How the servers are reached."""

    def open(self, traces: Traces) -> Products:
        """Open sessions in which these are all forms of steps; former ones end."""
        ...

    def close(self) -> None:
        """End them. Idempotent."""
        ...


@dataclass(slots=True)
class LayerCost:
    """What a layer's products took so far.

    Attributes:
        here_s: In this process: rounding, masking, checking.
        there_s: From the first share sent to the last answer: servers, and the way.
        crossed_bytes: Of operands and answers.
        exchanges: How many there were.
    """

    here_s: float = 0.0
    there_s: float = 0.0
    crossed_bytes: int = 0
    exchanges: int = 0

    def __str__(self) -> str:
        each = self.exchanges or 1
        return (
            f"each of {self.exchanges:,} exchanges took {self.here_s / each * 1e3:.2f} ms "
            f"here, {self.there_s / each * 1e3:.2f} ms at the servers and on the way, "
            f"{self.crossed_bytes / each / 1e6:.2f} MB"
        )


class StepRunner:
    """What the steps of one model go through.

    Args:
        reach: The servers.
        kernels: Compute.
        seed: Of the rounding.
        on_begin: Called before a step begins: remembers the model's state.
        on_failure: Called when a step fails: puts it back, and forgets gradients.
        on_rounding: Called with each operand, as numbers and as integers.

    Attributes:
        settled: Steps whose verdict was good.
        costs: Of each layer, by its name.
    """

    def __init__(
        self,
        reach: Reach,
        kernels: Kernels,
        seed: int,
        *,
        on_begin: Callable[[], None],
        on_failure: Callable[[], None],
        on_rounding: Observe | None = None,
    ) -> None:
        self._reach, self._kernels, self._seed = reach, kernels, seed
        self._on_begin, self._on_failure = on_begin, on_failure
        self._on_rounding = on_rounding
        self._traces: dict[StepKind, Trace] = {}
        self._multiplier: Multiplier | None = None
        self._failed: SealiftError | None = None
        self.settled = 0
        self.costs: dict[str, LayerCost] = {}
        self._layers: list[Layer] = []

    def learn(self, kind: StepKind, trace: Trace) -> None:
        """A form of steps has this trace from now on."""
        self._traces[kind] = trace
        self._multiplier = None

    def forget(self, phase: Phase) -> None:
        """Let all forms of a phase be new."""
        self._traces = {k: t for k, t in self._traces.items() if k.phase != phase}

    def trace(self, kind: StepKind) -> Trace | None:
        """Of the form, if one was made."""
        return self._traces.get(kind)

    def begin(self, kind: StepKind) -> None:
        """A step begins; one after one that failed has the same number, and masks anew."""
        self._on_begin()
        with self._watching():
            trace = self._traces[kind]
            self._layers = [each.layer for each in calls_of(trace)]
            self._opened().begin(kind, self.settled, StepTrace(trace))

    def measure(self, kind: StepKind) -> dict[str, LayerSpeed]:
        """How long each layer of a form of steps takes, here and by servers.

        Raises:
            SealiftError: if a server is gone, or answers wrongly.
        """
        trace = self._traces[kind]
        self._on_begin()
        with self._watching():
            served = quickest(self._served_zeros(kind) for _ in range(PASSES))
        here = _seconds_here(trace, PASSES)
        return {name: LayerSpeed(here[name], served[name]) for name in here}

    def leave_out(self, names: Collection[str]) -> None:
        """Let steps of all forms be without these layers from now on."""
        self._traces = {k: without(t, names) for k, t in self._traces.items()}
        self._multiplier = None

    def _served_zeros(self, kind: StepKind) -> Seconds:
        trace, products = self._traces[kind], self._opened().products
        multiplier = Multiplier(products, self._kernels, self._seed)
        multiplier.begin(kind, self.settled, StepTrace(trace))
        found = _seconds_of_zeros(trace, multiplier)
        multiplier.settle()
        return found

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``."""
        with self._watching(), self._counting(exchange.layer):
            return self._begun.forward(exchange, x, w)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients that the exchange wants."""
        with self._watching(), self._counting(self._layers[exchange.call]):
            return self._begun.backward(exchange, dy)

    def settle(self) -> None:
        """The verdict.

        Raises:
            SealiftError: why nothing of the step may be used.
        """
        with self._watching():
            self._begun.settle()
        self.settled += 1

    def leave_trace(self, error: JobError) -> None:
        """Have the step that left its trace, and was ended as the trace says, count as failed.

        Raises:
            JobError: the error.
        """
        with self._watching():
            raise error

    @property
    def is_sound(self) -> bool:
        """Whether servers can still be asked."""
        return self._failed is None

    def demand_sound(self) -> None:
        """Raise what servers did wrong before, if they did."""
        if self._failed is not None:
            raise self._failed

    def _opened(self) -> Multiplier:
        """Servers that know all forms of steps."""
        if self._multiplier is None:
            products = self._reach.open(tabulate(self._traces))
            self._multiplier = Multiplier(
                products, self._kernels, self._seed, self._on_rounding
            )
        return self._multiplier

    @property
    def _begun(self) -> Multiplier:
        return require_value(self._multiplier)

    @contextmanager
    def _counting(self, layer: Layer) -> Iterator[None]:
        products, began_s = self._begun.products, time.perf_counter()
        asked_s, crossed = products.asked_s, products.crossed_bytes
        yield
        cost = self.costs.setdefault(layer.name, LayerCost())
        there_s = products.asked_s - asked_s
        cost.here_s += time.perf_counter() - began_s - there_s
        cost.there_s += there_s
        cost.crossed_bytes += products.crossed_bytes - crossed
        cost.exchanges += 1

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self.demand_sound()
        try:
            yield
        except JobError:  # the model's own numbers; the servers were right
            self._on_failure()
            raise
        except BaseException as error:
            self._on_failure()
            self._failed = _failure(error)
            raise


def _failure(error: BaseException) -> SealiftError:
    if isinstance(error, SealiftError):
        return error
    return PeerError(
        "the servers do not accept requests any more", why="a step was aborted"
    )


_TENSORS: Final[tuple[Tensor, ...]] = ("x", "w", "dy")
Seconds = Mapping[str, float]  # of each layer, by its name


@dataclass(frozen=True, slots=True)
class LayerSpeed:
    """What a layer's products of one step take.

    Attributes:
        here_s: In float32, by this process.
        served_s: By servers, with rounding, masking and the way.
    """

    here_s: float
    served_s: float

    @property
    def stays(self) -> bool:
        """Whether servers do not pay."""
        return self.served_s >= self.here_s

    def __str__(self) -> str:
        return (
            f"it takes {self.here_s * 1e3:.1f} ms of a step here and "
            f"{self.served_s * 1e3:.1f} ms by servers, measured on zeros"
        )


def _seconds_of_zeros(trace: Trace, products: Outsourced) -> Seconds:
    """Make a step of zeros, and say what each layer took."""
    found: dict[str, float] = defaultdict(float)
    layers: list[Layer] = []
    for exchange in trace:
        if isinstance(exchange, Forward):
            layer = exchange.layer
            layers.append(layer)
            x, w = (np.zeros(layer.shape(each), np.float32) for each in _TENSORS[:2])
            began_s = time.perf_counter()
            products.forward(exchange, x, w)
        else:
            layer = layers[exchange.call]
            dy = np.zeros(layer.shape("dy"), np.float32)
            began_s = time.perf_counter()
            products.backward(exchange, dy)
        found[layer.name] += time.perf_counter() - began_s
    return found


def quickest(passes: Iterator[Seconds]) -> Seconds:
    """Of several steps, each layer's shortest time."""
    every = list(passes)
    return {name: min(each[name] for each in every) for name in every[0]}


def _seconds_here(trace: Trace, passes: int) -> Seconds:
    """What each layer takes in this process, as PyTorch computes it."""
    return quickest(_pass_here(trace) for _ in range(passes))


def _pass_here(trace: Trace) -> Seconds:
    found: dict[str, float] = defaultdict(float)
    for call in calls_of(trace):
        layer = call.layer
        x, w, dy = (_zeros(layer, tensor) for tensor in _TENSORS)
        wanted = {"input": x, "weight": w}
        began_s = time.perf_counter()
        if layer.is_linear:
            y = functional.linear(x.flatten(1), w.flatten(1)).view(dy.shape)
        else:
            y = functional.conv2d(x, w, stride=layer.stride, padding=layer.padding)
        if call.later:
            torch.autograd.grad(y, [wanted[each] for each in call.later], dy)
        found[layer.name] += time.perf_counter() - began_s
    return found


def _zeros(layer: Layer, tensor: Tensor) -> torch.Tensor:
    """As PyTorch has images, and kernels."""
    batch, height, width, channels = layer.shape(tensor)
    return torch.zeros(batch, channels, height, width, requires_grad=tensor != "dy")
