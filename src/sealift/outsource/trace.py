"""The order and shapes of a step's products, known before anybody's rows are (rule N2).

A step's trace follows from its phase and how many rows its batch has; both are public.
What asks for anything else, or in another order, ends the job.
Source: spec/shares.md section 4.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal, NamedTuple

import numpy as np

from sealift.codec import encode
from sealift.crypto.hash import labelled
from sealift.errors import JobError, MalformedError, quote_foreign
from sealift.ids import Digest
from sealift.outsource.terms import (
    OPERANDS,
    Backward,
    Direction,
    Exchange,
    Forward,
    Layer,
    Tensor,
)

Phase = Literal["train", "evaluate"]
Trace = tuple[Exchange, ...]
MAX_EXCHANGES: Final = 4096
_LABEL: Final = "sealift v1 outsourced traces"
_OPERAND_BYTES: Final = np.dtype(np.int16).itemsize
# Of the exchange under way, for each number: request, copy, float64; float64 twice, replies.
ASKED_BYTES: Final = 16
ANSWERED_BYTES: Final = 28


class StepKind(NamedTuple):
    """What decides a step's trace.

    Attributes:
        rows: Of its batch.
    """

    phase: Phase
    rows: int


@dataclass(frozen=True, slots=True)
class KnownTrace:
    """The trace of all steps of a kind."""

    phase: Phase
    rows: int
    trace: Trace

    def __post_init__(self) -> None:
        if len(self.trace) > MAX_EXCHANGES:
            raise _odd(f"more than {MAX_EXCHANGES} products")
        recorder = Recorder()
        for exchange in self.trace:
            recorder.expect(exchange)
        calls = calls_of(recorder.trace())
        if self.phase == "evaluate" and any(each.later for each in calls):
            raise _odd("an evaluation keeps operands for gradients")


@dataclass(frozen=True, slots=True)
class Traces:
    """Those of a job: one for each kind of step that occurs."""

    known: tuple[KnownTrace, ...]

    def of(self, kind: StepKind) -> Trace:
        """A step's.

        Raises:
            JobError: ``other-operations``, if no such step was rehearsed.
        """
        for each in self.known:
            if (each.phase, each.rows) == kind:
                return each.trace
        raise other_operations(
            f"it asks for a step of {kind.rows} rows in phase {kind.phase}"
        )

    def digest(self) -> Digest:
        """What manifest and announcement name."""
        return Digest(labelled(_LABEL, encode(self)))

    def operand_bytes(self) -> int:
        """The most that one step's operands take in the accelerator's memory."""
        return max((operand_bytes(each.trace) for each in self.known), default=0)


def calls_of(trace: Trace) -> list[Forward]:
    """The calls of a step, in their order."""
    return [each for each in trace if isinstance(each, Forward)]


def without(trace: Trace, names: Container[str]) -> Trace:
    """A step's trace where these layers are computed elsewhere."""
    numbers: dict[int, int] = {}  # of the calls that are left
    found: list[Exchange] = []
    calls = count()
    for each in trace:
        if isinstance(each, Backward):
            if each.call in numbers:
                found.append(Backward(numbers[each.call], each.wants))
            continue
        call = next(calls)
        if each.layer.name not in names:
            numbers[call] = len(numbers)
            found.append(each)
    return tuple(found)


def _demand_later(exchange: Forward) -> None:
    """Demand an order of gradients that is one of three.

    Raises:
        MalformedError: code ``bad-trace``.
    """
    if exchange.later not in ((), ("input",), ("weight",), ("input", "weight")):
        raise _odd("it asks for gradients in another order")


def operand_bytes(trace: Trace) -> int:
    """Of a step's operands, all of them kept until its verdict."""
    total = 0
    for call in calls_of(trace):
        directions = ("forward", *call.later)
        used: set[Tensor] = {t for each in directions for t in OPERANDS[each]}
        total += sum(math.prod(call.layer.shape(t)) for t in used)
    return total * _OPERAND_BYTES


class StepTrace:
    """A step that is under way, held to its trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._at = trace, 0

    @property
    def left(self) -> Trace:
        """What is still to be asked for."""
        return self._trace[self._at :]

    def expect(self, exchange: Exchange) -> None:
        """Demand that this is what comes next; else the step stays where it is.

        Raises:
            JobError: ``other-operations``.
        """
        if self._trace[self._at : self._at + 1] != (exchange,):
            # Neither name nor place: both could be chosen by rows, and errors travel.
            raise other_operations("it asks for another product than the next one")
        self._at += 1

    def end(self) -> None:
        """Demand that nothing is left.

        Raises:
            JobError: ``other-operations``.
        """
        if self.left:
            raise other_operations("it ends a step too early")


class Recorder:
    """Takes down what a rehearsal asks for, in the place of a ``StepTrace``.

    It refuses what exceeds a bound before anything is allocated for it. The bounds follow
    from shapes and from the memory of this machine, so that they tell nothing of rows.

    Args:
        most_bytes: Memory that a step may take here: of all its operands as integers, and
            of the numbers of the one exchange that is under way.
    """

    def __init__(self, most_bytes: float = math.inf) -> None:
        self._most_bytes = most_bytes
        self._asked: list[Exchange] = []
        self._calls: list[Forward] = []
        self._open: set[int] = set()  # calls whose gradients are still to be asked for
        self._kept_bytes = 0

    def expect(self, exchange: Exchange) -> None:
        """Note it.

        Raises:
            JobError: ``products-exceed-limits``.
            MalformedError: ``bad-trace``, if it cannot be part of any step.
        """
        if len(self._asked) == MAX_EXCHANGES:
            raise _exceeds(f"more than {MAX_EXCHANGES} in one step")
        tensors: tuple[Tensor, ...] = ("dy",)
        wants: tuple[Direction, ...] = ("forward",)
        if isinstance(exchange, Forward):
            self._begin_call(exchange)
            tensors, layer = ("x", "w"), exchange.layer
        else:
            layer, wants = self._end_call(exchange), exchange.wants
        operands = sum(math.prod(layer.shape(each)) for each in tensors)
        results = sum(math.prod(layer.result(each)) for each in wants)
        self._kept_bytes += operands * _OPERAND_BYTES
        needed = self._kept_bytes + operands * ASKED_BYTES + results * ANSWERED_BYTES
        if needed > self._most_bytes:
            raise _exceeds(
                f"the products up to {quote_foreign(layer.name)} take {needed:,} "
                f"bytes of memory; a step may take {self._most_bytes:,.0f}"
            )
        self._asked.append(exchange)

    def end(self) -> None:
        """The step is over."""

    def trace(self) -> Trace:
        """All of it.

        Raises:
            MalformedError: ``bad-trace``, if a call that keeps operands has no gradients.
        """
        if self._open:
            raise _odd("a call has no gradients")
        return tuple(self._asked)

    def _begin_call(self, exchange: Forward) -> None:
        _demand_later(exchange)
        if exchange.later:
            self._open.add(len(self._calls))
        self._calls.append(exchange)

    def _end_call(self, exchange: Backward) -> Layer:
        call = exchange.call
        if call not in self._open or exchange.wants != self._calls[call].later:
            raise _odd("it asks for gradients of a call that has none")
        self._open.discard(call)
        return self._calls[call].layer


def other_operations(what: str) -> JobError:
    """What ends a job that leaves its trace."""
    return JobError(
        f"the recipe asked for other products than in its rehearsal: {what}",
        why="the number, order and shapes of products must not depend on rows",
        code="other-operations",
    )


def _exceeds(why: str) -> JobError:
    """What ends a rehearsal that asks for more than a step may."""
    return JobError(
        "the recipe asks for more products than one step may have",
        why=why,
        code="products-exceed-limits",
    )


def tabulate(traces: Mapping[StepKind, Trace]) -> Traces:
    """In an order of their own, so that equal traces have equal digests."""
    kinds = sorted(traces)
    return Traces(
        tuple(KnownTrace(kind.phase, kind.rows, traces[kind]) for kind in kinds)
    )


def _odd(why: str) -> MalformedError:
    return MalformedError(
        "the bytes are not the trace of a step", why=why, code="bad-trace"
    )
