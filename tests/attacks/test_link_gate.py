"""The gate where work, errors and verdicts meet (rules M3, K12, K13)."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch import nn

from sealift.channel.device.verdict import Gate
from sealift.data.loader.torchloader import Deferral, StepGate
from sealift.errors import AuthenticationError, UnavailableError, UsageError

FLOATS = {"dtype": "float32", "shape": (2, 3), "nbytes": 24}


class Told:
    """Verdicts that are known beforehand."""

    def __init__(self, error=None):
        self._error = error

    def wait(self):
        if self._error is not None:
            raise self._error


def lost():
    return UnavailableError("the device stopped working", code="device-lost")


@pytest.mark.parametrize("other", [lost, AuthenticationError])
def test_a_failed_tag_outranks_what_came_of_it(other):
    # A batch that failed may have broken the device under the one before it.
    gate = Gate()
    for error in (other(), AuthenticationError()):
        gate.admit(Told(error), **FLOATS)
    with pytest.raises(AuthenticationError):
        gate.check()


def test_a_device_that_is_lost_is_itself_where_every_tag_was_right():
    gate = Gate()
    for error in (lost(), None):
        gate.admit(Told(error), **FLOATS)
    with pytest.raises(UnavailableError):
        gate.check()


def test_without_a_verdict_nothing_of_the_error_is_told():
    gate = Gate()
    gate.admit(Told(lost()), **FLOATS)
    with pytest.raises(UnavailableError) as caught, gate.working():
        raise IndexError("row 1094795585 is out of range")
    assert caught.value.__suppress_context__


def test_leaving_the_process_waits_for_the_verdict_too():
    # Its exit code would tell a number of a batch that never verified.
    gate = Gate()
    gate.admit(Told(AuthenticationError()), **FLOATS)
    with pytest.raises(AuthenticationError), gate.working():
        raise SystemExit(65)


def test_an_error_of_a_good_batch_keeps_its_cause():
    gate = Gate()
    gate.admit(Told(), **FLOATS)
    with pytest.raises(RuntimeError) as caught, gate.working():
        raise RuntimeError from ZeroDivisionError("why")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_batch_that_comes_to_a_dead_gate_is_undone():
    gate, undone = Gate(), []
    gate.admit(Told(AuthenticationError()), **FLOATS)
    with pytest.raises(AuthenticationError):
        gate.check()
    with pytest.raises(AuthenticationError):
        gate.admit(Told(), **FLOATS, undo=lambda: undone.append("batch"))
    assert undone == ["batch"]


@pytest.mark.parametrize("genuine", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("positional", [True, False])
def test_a_step_with_a_closure_waits_for_what_the_closure_took(
    genuine, gated, positional
):
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = StepGate(optimizer, Gate())
    if not gated:  # the mutant
        steps.close()
    before = model.weight.detach().clone()

    def closure():
        verdicts = Told(None if genuine else AuthenticationError())
        rows = steps.admit(torch.rand(2, 3), verdicts)
        loss = model(rows).square().mean()
        loss.backward()
        return loss

    given = ((closure,), {}) if positional else ((), {"closure": closure})
    if gated and not genuine:
        with pytest.raises(AuthenticationError):
            optimizer.step(*given[0], **given[1])
        assert model.weight.grad is None
    else:
        assert optimizer.step(*given[0], **given[1]) > 0
    assert torch.equal(before, model.weight) == (gated and not genuine)


def guarded_linear():
    waiting = Deferral(lambda: None)
    model = nn.Linear(3, 1)
    return waiting, waiting.guard(torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_optimizer_that_is_no_longer_guarded_does_not_stand_for_one():
    waiting, steps = guarded_linear()
    waiting.demand_guarded()
    steps.close()
    with pytest.raises(UsageError) as caught:
        waiting.demand_guarded()
    assert caught.value.code == "deferral-not-allowed"


def test_a_batch_of_several_tensors_is_overwritten_whole_at_a_dead_gate():
    waiting, _ = guarded_linear()
    waiting.admit([torch.ones(2, 3)], [Told(AuthenticationError())])
    with pytest.raises(AuthenticationError):
        waiting.gate.check()
    tensors = [torch.ones(2, 3), torch.ones(2, 1)]
    with pytest.raises(AuthenticationError):
        waiting.admit(tensors, [Told()])
    assert not any(tensor.any() for tensor in tensors)


class Met:
    """Verdicts that come once two threads wait for them."""

    def __init__(self, error=None):
        self._both, self._error = threading.Barrier(2), error

    def wait(self):
        with contextlib.suppress(threading.BrokenBarrierError):  # asked once more
            self._both.wait(300)
        self._both.abort()
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [None, AuthenticationError()])
def test_two_threads_wait_for_the_same_verdict(error):
    """Neither goes on before it, and neither waits under the gate's lock."""
    undone, gate, ended = [], Gate(), []

    def undo():
        undone.append(gate._lock.acquire(timeout=300))  # not held by this very thread
        gate._lock.release()

    gate.on_failure(undo)
    gate.admit(Met(error), **FLOATS)

    def check():
        try:
            gate.check()
            ended.append("passed")
        except AuthenticationError:
            ended.append("refused")

    threads = [threading.Thread(target=check, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert ended == [["passed"], ["refused"]][error is not None] * 2
    assert undone == ([] if error is None else [True, True])
