"""The locks of `channel` and `release` have one order; what notes it notices the other.

That every pair which any test takes is in that order is checked at the end of a run
(`locks_are_taken_in_one_order` in tests/conftest.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sealift.channel.device.host import QueuedWork
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import SecretKey
from tests.sim import lockorder
from tests.sim.lockorder import Noted, Recorder, wrong_pairs

ORDER = ["upper", "lower"]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """One of this test alone: what is planted here is no fault of the product."""
    return Recorder()


def lock(name: str, recorder: Recorder) -> Noted:
    return Noted(name, threading.RLock(), recorder)


def take(*locks: Noted) -> None:
    """Take them one after the other, in a thread that ends with none."""

    def work() -> None:
        with ExitStack() as held:
            for each in locks:
                held.enter_context(each)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()


def test_two_locks_in_both_orders_are_found(recorder: Recorder) -> None:
    """They never met: each thread ended before the next began."""
    upper, lower = lock("upper", recorder), lock("lower", recorder)
    take(upper, lower)
    assert wrong_pairs(recorder.pairs, ORDER) == []  # the control
    take(lower, upper)
    (line,) = wrong_pairs(recorder.pairs, ORDER)
    assert line.startswith("upper was taken while lower was held")
    assert line.endswith("and the other way round")


def test_a_pair_against_the_table_is_found_alone(recorder: Recorder) -> None:
    take(lock("lower", recorder), lock("upper", recorder))
    assert len(wrong_pairs(recorder.pairs, ORDER)) == 1


def test_two_of_a_kind_and_unknown_ones_are_found(recorder: Recorder) -> None:
    take(lock("upper", recorder), lock("upper", recorder))
    take(lock("upper", recorder), lock("strange", recorder))
    strange, two = wrong_pairs(recorder.pairs, ORDER)
    assert "not in the table" in strange
    assert "another of its kind" in two


def test_what_is_held_twice_is_one_lock(recorder: Recorder) -> None:
    upper = lock("upper", recorder)
    take(upper, upper)
    assert recorder.pairs == {}


def test_what_another_thread_let_go_is_not_held(recorder: Recorder) -> None:
    upper = Noted("upper", threading.Lock(), recorder)
    upper.acquire()
    letting_go = threading.Thread(target=upper.release)
    letting_go.start()
    letting_go.join(300)
    with lock("lower", recorder):
        assert recorder.pairs == {}


def test_who_waits_for_a_condition_does_not_hold_it(recorder: Recorder) -> None:
    upper, lower = lock("upper", recorder), lock("lower", recorder)
    changed = threading.Condition(upper)  # type: ignore[arg-type]
    with changed:
        threading.Thread(target=lambda: _tell(changed, lower)).start()
        assert changed.wait(300)
        with lower:
            pass
    assert set(recorder.pairs) == {("upper", "lower")}
    assert recorder.held() == []


def _tell(changed: threading.Condition, lower: Noted) -> None:
    with lower:
        pass
    with changed:
        changed.notify_all()


def test_locks_of_the_two_rooms_are_noted_under_their_names() -> None:
    assert QueuedWork()._lock.name == "channel.device.host.QueuedWork._lock"  # type: ignore[attr-defined]
    sealer = StreamSealer(SecretKey.generate(), total_bytes=0)
    life = sealer._life._lock.name  # type: ignore[attr-defined]
    assert life == "channel.record.sealer.StreamSealer._life"
    assert not isinstance(threading.Lock(), Noted)  # this is no such room


def test_every_lock_is_in_the_table_once() -> None:
    order = lockorder.written_order(lockorder.TABLE.read_text())
    assert len(order) == len(set(order))
    assert set(order) == lockorder.locks_in_source()
