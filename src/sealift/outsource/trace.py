"""The order and shapes of a step's products, known before anybody's rows are (rule N2).

A step's trace follows from its phase and how many rows its batch has; both are public.
What asks for anything else, or in another order, ends the job.
Source: spec/shares.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from sealift.codec import encode
from sealift.crypto.hash import labelled
from sealift.errors import JobError, MalformedError
from sealift.ids import Digest
from sealift.outsource.terms import OPERANDS, Exchange, Forward, Tensor

Phase = Literal["train", "evaluate"]
Trace = tuple[Exchange, ...]
MAX_EXCHANGES: Final = 4096
_LABEL: Final = "sealift v1 outsourced traces"
_OPERAND_BYTES: Final = np.dtype(np.int16).itemsize


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
        forwards = _demand_whole(self.trace)
        if self.phase == "evaluate" and any(each.later for each in forwards):
            raise _odd("an evaluation keeps operands")


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
        raise other_operations(f"a step of {kind.rows} rows to {kind.phase}")

    def digest(self) -> Digest:
        """What manifest and announcement name."""
        return Digest(labelled(_LABEL, encode(self)))

    def operand_bytes(self) -> int:
        """The most that one step's operands take in the accelerator's memory."""
        return max((operand_bytes(each.trace) for each in self.known), default=0)


def calls_of(trace: Trace) -> list[Forward]:
    """The calls of a step, in their order."""
    return [each for each in trace if isinstance(each, Forward)]


def _demand_whole(trace: Trace) -> list[Forward]:
    """Demand that every call that keeps operands has its one ``Backward``.

    Raises:
        MalformedError: code ``bad-trace``.
    """
    if len(trace) > MAX_EXCHANGES:
        raise _odd(f"more than {MAX_EXCHANGES} products")
    calls: list[Forward] = []
    open_calls: set[int] = set()
    for each in trace:
        if isinstance(each, Forward):
            _demand_later(each)
            open_calls |= {len(calls)} if each.later else set()
            calls.append(each)
            continue
        if each.call not in open_calls or each.wants != calls[each.call].later:
            raise _odd("gradients of a call that has none")
        open_calls.discard(each.call)
    if open_calls:
        raise _odd("a call without its gradients")
    return calls


def _demand_later(exchange: Forward) -> None:
    """Demand an order of gradients that is one of three.

    Raises:
        MalformedError: code ``bad-trace``.
    """
    if exchange.later not in ((), ("input",), ("weight",), ("input", "weight")):
        raise _odd("gradients in another order")


def operand_bytes(trace: Trace) -> int:
    """Of a step's operands, all of them kept until its verdict."""
    total = 0
    for call in calls_of(trace):
        directions = ("forward", *call.later)
        used: set[Tensor] = {t for each in directions for t in OPERANDS[each]}
        total += sum(int(np.prod(call.layer.shape(t), dtype=object)) for t in used)
    return total * _OPERAND_BYTES


class StepTrace:
    """A step that is under way, held to its trace."""

    def __init__(self, trace: Trace) -> None:
        self._left = iter(trace)

    def expect(self, exchange: Exchange) -> None:
        """Demand that this is what comes next.

        Raises:
            JobError: ``other-operations``.
        """
        if next(self._left, None) != exchange:
            raise other_operations(_name(exchange))

    def end(self) -> None:
        """Demand that nothing is left.

        Raises:
            JobError: ``other-operations``.
        """
        if next(self._left, None) is not None:
            raise other_operations("a step that ends early")


class Recorder:
    """Takes down what a rehearsal asks for, in the place of a ``StepTrace``."""

    def __init__(self) -> None:
        self._found: list[Exchange] = []

    def expect(self, exchange: Exchange) -> None:
        """Note it."""
        self._found.append(exchange)

    def end(self) -> None:
        """The step is over."""

    def trace(self) -> Trace:
        """All of it.

        Raises:
            MalformedError: ``bad-trace``.
        """
        _demand_whole(tuple(self._found))
        return tuple(self._found)


def other_operations(what: str) -> JobError:
    """What ends a job that leaves its trace."""
    return JobError(
        f"the recipe asks for other products than in its rehearsal: {what[:120]}",
        why="number, order and shapes of products must not depend on rows",
        code="other-operations",
    )


def tabulate(traces: Mapping[StepKind, Trace]) -> Traces:
    """In an order of their own, so that equal traces have equal digests."""
    kinds = sorted(traces)
    return Traces(
        tuple(KnownTrace(kind.phase, kind.rows, traces[kind]) for kind in kinds)
    )


def _name(exchange: Exchange) -> str:
    if isinstance(exchange, Forward):
        return exchange.layer.name
    return f"gradients of call {exchange.call}"


def _odd(why: str) -> MalformedError:
    return MalformedError("not the trace of a step", why=why, code="bad-trace")
