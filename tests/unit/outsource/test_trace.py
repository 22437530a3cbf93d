"""A step keeps to what its rehearsal asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.errors import JobError, MalformedError
from sealift.outsource.terms import MAX_NAME, Backward, Exchange, Forward, Layer
from sealift.outsource.trace import (
    MAX_EXCHANGES,
    KnownTrace,
    Recorder,
    StepKind,
    StepTrace,
    Trace,
    Traces,
    operand_bytes,
    tabulate,
)

FIRST = Layer(name="a", batch=4, inputs=3, outputs=2)
SECOND = Layer(name="b", batch=4, inputs=2, outputs=5)
TRACE: Trace = (
    Forward(FIRST, ("weight",)),
    Forward(SECOND, ("input", "weight")),
    Backward(1, ("input", "weight")),
    Backward(0, ("weight",)),
)
EVALUATED: Trace = (Forward(FIRST), Forward(SECOND))
KIND = StepKind("train", 4)


def test_a_step_that_keeps_to_its_trace_ends() -> None:
    recorder, held = Recorder(), StepTrace(TRACE)
    for each in TRACE:
        recorder.expect(each)
        held.expect(each)
    held.end()
    assert recorder.trace() == TRACE


def hold(asked: Trace) -> None:
    held = StepTrace(TRACE)
    for each in asked:
        held.expect(each)
    held.end()


@pytest.mark.parametrize(
    "asked",
    [
        TRACE[1::-1] + TRACE[2:],
        TRACE[1:],
        TRACE[:2] + TRACE[3:],
        (*TRACE, TRACE[0]),
        EVALUATED,
        TRACE[:-1],
        (),
    ],
)
def test_another_order_or_number_or_size_ends_the_job(asked: Trace) -> None:
    with pytest.raises(JobError) as found:
        hold(asked)
    assert found.value.code == "other-operations"


def test_a_step_of_another_size_was_not_rehearsed() -> None:
    traces = tabulate({KIND: TRACE})
    assert traces.of(KIND) == TRACE
    for kind in (StepKind("train", 3), StepKind("evaluate", 4)):
        with pytest.raises(JobError):
            traces.of(kind)


def test_a_digest_is_of_every_trace_and_of_no_order() -> None:
    other = StepKind("evaluate", 4)
    both = tabulate({KIND: TRACE, other: EVALUATED})
    assert both.digest() == tabulate({other: EVALUATED, KIND: TRACE}).digest()
    assert both.digest() != tabulate({KIND: TRACE}).digest()
    assert (
        both.digest()
        != Traces((KnownTrace("train", 4, TRACE[:1] + TRACE[3:]),)).digest()
    )


@pytest.mark.parametrize(
    "odd",
    [
        TRACE[:3],
        TRACE[2:],
        (*TRACE, TRACE[3]),
        (TRACE[0], Backward(0, ("input",))),
        (Forward(FIRST, ("weight", "input")), Backward(0, ("weight", "input"))),
    ],
)
def test_a_trace_that_is_no_step_is_refused(odd: tuple[Exchange, ...]) -> None:
    with pytest.raises(MalformedError):
        KnownTrace("train", 4, odd)


def test_an_evaluation_keeps_nothing() -> None:
    with pytest.raises(MalformedError):
        KnownTrace("evaluate", 4, TRACE)


def test_operands_are_counted_before_a_job() -> None:
    # x, w and dy of both layers, two bytes a number
    assert operand_bytes(TRACE) == 2 * (12 + 6 + 8 + 8 + 10 + 20)
    assert operand_bytes(EVALUATED) == 2 * (12 + 6 + 8 + 10)


def test_a_step_that_left_its_trace_is_where_it_was() -> None:
    held = StepTrace(TRACE)
    held.expect(TRACE[0])
    for _ in range(2):
        with pytest.raises(JobError):
            held.expect(TRACE[2])
    assert held.left == TRACE[1:]


def refused(recorder: Recorder, exchange: Exchange) -> str:
    with pytest.raises(JobError) as caught:
        recorder.expect(exchange)
    assert caught.value.code == "products-exceed-limits"
    return str(caught.value)


def test_a_rehearsal_has_so_many_products_and_no_more() -> None:
    recorder = Recorder()
    for _ in range(MAX_EXCHANGES):
        recorder.expect(Forward(FIRST))
    assert "4096" in refused(recorder, Forward(FIRST))


def test_memory_is_counted_before_it_is_taken() -> None:
    """All operands of the step, and the exchange that is under way."""
    first = 18 * (12 + 6) + 28 * 8
    Recorder(first).expect(TRACE[0])
    assert f"{first:,} bytes" in refused(Recorder(first - 1), TRACE[0])
    second = 2 * (12 + 6) + 18 * (8 + 10) + 28 * 20
    for most in (second, second - 1):
        recorder = Recorder(most)
        recorder.expect(TRACE[0])
        if most == second:
            recorder.expect(TRACE[1])
        else:
            refused(recorder, TRACE[1])


def test_gradients_are_as_many_as_a_call_announced() -> None:
    recorder = Recorder()
    for each in TRACE[:2]:
        recorder.expect(each)
    for odd in (
        Backward(1, ("input",) * 60_000),
        Backward(0, ("input", "weight")),
        Backward(2, ("weight",)),
        Forward(FIRST, ("weight",) * 2),
    ):
        with pytest.raises(MalformedError):
            recorder.expect(odd)
    recorder.expect(TRACE[2])
    with pytest.raises(MalformedError):
        recorder.expect(TRACE[2])


def test_a_name_is_no_longer_than_a_path_needs() -> None:
    """A trace of thousands of products is announced in one message."""
    replace(FIRST, name="a" * MAX_NAME)
    with pytest.raises(MalformedError):
        replace(FIRST, name="a" * (MAX_NAME + 1))
