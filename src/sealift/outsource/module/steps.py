"""The steps of a model in its user's process: from a call of it to the verdict.

A step in ``train()`` ends, and is judged, with the last gradient, inside ``backward()``; any other
as the model returns. Its form is known by phase and rows of a batch. The first of its form
is rehearsed; the others have the rehearsal's trace, all of it: where a step is torn by an
error, or its output is never differentiated, the rest of its exchanges is of zeros. So
servers learn how often each form of step is made, and nothing else.

The first step of its form: its products are made here, in float32, and its trace is kept.

Servers hear of a form of steps when the trace is known, and see every later step of that
form as the same one. Nothing is sent before. Source: security rule N2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from sealift.errors import JobError
from sealift.numeric.loops import F32
from sealift.outsource.convert import Float32Products, Route
from sealift.outsource.module.server import StepRunner
from sealift.outsource.module.speed import LayerSpeed
from sealift.outsource.terms import Backward, Exchange, Forward, Layer, Tensor
from sealift.outsource.trace import StepKind, Trace


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


class Served:
    """A step on the servers, which follows its trace to the end.

    Attributes:
        over: Whether it was judged.
    """

    def __init__(self, door: StepRunner, trace: Trace) -> None:
        self._door, self._trace = door, trace
        self._layers = [e.layer for e in trace if isinstance(e, Forward)]
        self._at = 0
        self.over = False

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``.

        Raises:
            JobError: code ``other-operations``, if this is not the trace's next.
        """
        layer, later = exchange.layer, {*exchange.later}
        match self.next:
            case Forward(expected, kept) if expected == layer and later >= {*kept}:
                y = self._door.forward(Forward(layer, kept), x, w)
                self._go_on()
                return y
        raise self._deviation(layer.name)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """Gradients.

        Raises:
            JobError: code ``other-operations``, if this is not the trace's next.
        """
        if self.next != exchange:
            raise self._deviation(_told(exchange, self._layers))
        found = self._door.backward(exchange, dy)
        self._go_on()
        return found

    @property
    def next(self) -> Exchange | None:
        """What the trace says."""
        return None if self.over else self._trace[self._at]

    def finish(self) -> None:
        """Ask for what is missing, with zeros, and judge."""
        while not self.over:
            match self.next:
                case Forward(layer) as each:
                    self._door.forward(each, _zeros(layer, "x"), _zeros(layer, "w"))
                case Backward(call) as each:
                    self._door.backward(each, _zeros(self._layers[call], "dy"))
            self._go_on()

    def _go_on(self) -> None:
        self._at += 1
        if self._at == len(self._trace):
            self.over = True
            self._door.settle()

    def _deviation(self, name: str) -> JobError:
        """End the step with zeros, so that no server sees where it left its trace."""
        error = self._other(name)
        if not self.over:
            self.finish()
            self._door.leave_trace(error)
        return error

    def unfinished(self) -> JobError:
        """The error of somebody who takes the step for done."""
        return self._other("the optimizer's step")

    def _other(self, name: str) -> JobError:
        expected = _told(self.next, self._layers)
        return JobError(
            f"the recipe asked for {name}; the first step of this kind had {expected} "
            "here",
            why=(
                "the servers know the order and the shapes of a step's products, so "
                "these must not change"
            ),
            code="other-operations",
        )


class Steps:
    """All steps of one model.

    Args:
        route: Of the model.
        door: To the servers.
        keep_faster: Whether modules stay here that are faster here.

    Attributes:
        rehearsed: Steps that were made here.
        speeds: Of each module, if they were measured; some stay.
    """

    def __init__(
        self, route: Route, door: StepRunner, *, keep_faster: bool = False
    ) -> None:
        self.rehearsed = 0
        self.speeds: dict[str, LayerSpeed] = {}
        self._keep_faster = keep_faster
        self._route, self._door = route, door
        self._kind = StepKind("evaluate", 0)
        self._step: StepRehearsal | Served | None = None
        self._torn = False
        self._trained: tuple[bool, ...] = ()

    @property
    def served(self) -> int:
        """Steps that servers made, and that were judged to be right."""
        return self._door.settled

    @contextmanager
    def call(self, kind: StepKind, trained: tuple[bool, ...]) -> Iterator[bool]:
        """One call of the model; whether it is in a rehearsal.

        Args:
            kind: Of the step, if one begins.
            trained: Which parameters are; where that changes, so does the trace.
        """
        self._door.demand_sound()
        self._end_before_call(trained)
        step = self._step or self._begin(kind)
        if step is None:
            yield False
            return
        if isinstance(step, StepRehearsal):
            step.begin_part()
        self._torn = True
        try:
            with self._route.to(step, keeps=kind.phase == "train"):
                yield isinstance(step, StepRehearsal)
        except Exception:
            self.close()  # at once: a pause would show servers where it was torn
            raise
        self._torn = False

    def close(self) -> None:
        """End a step on servers that is open, with zeros.

        Raises:
            SealiftError: if its verdict fails.
        """
        if (
            isinstance(self._step, Served)
            and not self._step.over
            and self._door.is_sound
        ):
            self._step.finish()

    def before_optimizer(self) -> None:
        """Let an optimizer change weights.

        Raises:
            SealiftError: what failed; or ``other-operations``, if gradients of the step
                are missing, so that there was no verdict yet.
        """
        self._door.demand_sound()
        if isinstance(self._step, StepRehearsal):
            self._end_rehearsal(self._step)
        if isinstance(self._step, Served) and not self._step.over:
            raise self._step.unfinished()

    def _choose(self, kind: StepKind) -> None:
        """Let stay what is faster here, in steps of every form."""
        self.speeds = self._door.measure(kind)
        stay = frozenset(name for name, each in self.speeds.items() if each.stays)
        self._route.stays = stay
        self._door.leave_out(stay)

    def _end_before_call(self, trained: tuple[bool, ...]) -> None:
        """What is open goes on only where it waits for another call of the model."""
        match self._step:
            case StepRehearsal() as step if self._torn or not self._route.waits:
                self._end_rehearsal(step)
            case Served() as step if self._torn or not isinstance(step.next, Forward):
                self._step = None
                step.finish()
        if trained != self._trained and self._step is None:
            self._trained = trained
            self._door.forget("train")

    def _end_rehearsal(self, step: StepRehearsal) -> None:
        self._step = None
        if self._torn:
            return
        self._route.edges = self._route.edges or step.edges()
        self._door.learn(self._kind, step.trace(self._route.edges))
        self.rehearsed += 1

    def _begin(self, kind: StepKind) -> StepRehearsal | Served | None:
        """None, if all modules stay here."""
        self._route.begin()
        self._kind = kind
        if self._keep_faster and not self.speeds and self._door.trace(kind):
            self._choose(kind)
        if self.speeds and all(each.stays for each in self.speeds.values()):
            return None
        if trace := self._door.trace(kind):
            self._door.begin(kind)
            self._step = Served(self._door, trace)
        else:
            self._step = StepRehearsal()
        return self._step


def _zeros(layer: Layer, tensor: Tensor) -> F32:
    return np.zeros(layer.shape(tensor), np.float32)


def _told(exchange: Exchange | None, layers: Sequence[Layer]) -> str:
    match exchange:
        case Forward(layer):
            return f"a call of {layer.name} with {layer.batch} rows"
        case Backward(call):
            return f"the gradient of {layers[call].name}"
    return "nothing"
