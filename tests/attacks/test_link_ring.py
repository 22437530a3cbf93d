"""An end of a memory file that lies, or is closed under a call: errors, never a hang."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest

from sealift.channel import ring
from sealift.channel.memfd import MemfdTransport, memfd_pair
from sealift.channel.namedmemory import NamedMemoryTransport
from sealift.errors import MalformedError, PeerError

FULL_COUNTER = 2**64 - 2


@pytest.fixture
def ends():
    here, there = memfd_pair(slot_bytes=64, num_slots=3)
    for end in (here._outgoing, here._incoming, there._outgoing, there._incoming):
        end.spin_s = 0.0
    yield here, there
    here.close()
    there.close()


class Noisy:
    """A poll under which the other end writes to the eventfd again and again."""

    turns = 0

    def __init__(self):
        self._descriptors = []

    def register(self, descriptor, _):
        self._descriptors.append(descriptor)

    def poll(self, _):
        Noisy.turns += 1
        assert Noisy.turns < 1000, "waits for ever"
        return [(self._descriptors[0], select.POLLIN)]


def test_an_end_that_wakes_and_sends_nothing_runs_into_the_timeout(ends, monkeypatch):
    monkeypatch.setattr(select, "poll", Noisy)
    monkeypatch.setattr(Noisy, "turns", 0)
    with pytest.raises(PeerError) as caught:
        ends[0].receive(0.005)
    assert caught.value.code == "peer-timeout"


def test_a_wake_up_of_an_earlier_wait_does_not_stand_for_a_look(ends, monkeypatch):
    # The other end may not have seen yet that this one sleeps, so it must look again
    # after a while; a stale wake-up comes too early for that.
    here, _ = ends
    end = here._incoming
    os.eventfd_write(end.place.full, 1)
    slept = []

    class Watched:
        def __init__(self):
            self._inner = poll()
            self.register = self._inner.register

        def poll(self, longest_ms):
            if len(slept) == 1:  # seen by now, and nobody wakes this end
                end._words[end._their_word] = 1
            slept.append(longest_ms)
            return self._inner.poll(min(longest_ms, 1))

    poll = select.poll
    monkeypatch.setattr(select, "poll", Watched)
    end.wait(1, 5.0)
    assert slept == [1, 1]


def test_a_counter_that_is_full_already_is_no_error_of_this_end(ends):
    here, there = ends
    end = here._outgoing
    os.eventfd_write(end.place.full, FULL_COUNTER)
    if ring.STORES_IN_ORDER:
        end._words[end._they_sleep] = 1
        here.send(b"x")
        assert there.receive(1) == b"x"
    else:
        with pytest.raises(MalformedError):
            here.send(b"x")


def descriptors_of(kind):
    if kind == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    if kind == "file":
        return os.memfd_create("no counter")
    if kind == "waiting":
        return os.eventfd(0)
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


@pytest.mark.parametrize("kind", ["eventfd", "file", "pipe", "waiting"])
def test_what_is_offered_to_wake_with_is_an_eventfd(kind, monkeypatch):
    from sealift.channel import memfdoffer

    real = os.eventfd
    made = []

    def eventfd(*given):
        made.append(None)
        return descriptors_of(kind) if len(made) == 3 else real(*given)

    left, right = socket.socketpair()
    if kind != "eventfd":
        monkeypatch.setattr(memfdoffer.os, "eventfd", eventfd)
    here = MemfdTransport.offer(left, slot_bytes=64, num_slots=2)
    if kind == "eventfd":  # the control
        MemfdTransport.accept(right).close()
    else:
        with pytest.raises(MalformedError):
            MemfdTransport.accept(right)
        right.close()
    here.close()


@pytest.mark.parametrize("kind", [MemfdTransport, NamedMemoryTransport])
@pytest.mark.parametrize("point", ["slot_start", "advance"])
@pytest.mark.parametrize("work", ["send", "receive", "ranges", "peek"])
def test_an_end_that_is_closed_under_a_call_takes_nothing_away(
    kind, point, work, monkeypatch
):
    left, right = socket.socketpair()
    here = kind.offer(left, slot_bytes=64, num_slots=2)
    there = kind.accept(right)
    there.send(b"y")
    closing = threading.Thread(target=here.close)
    real = getattr(ring.RingEnd, point)

    def closed_meanwhile(self, *given):
        if closing.ident is None:
            closing.start()
            closing.join(0.05)
        return real(self, *given)

    monkeypatch.setattr(ring.RingEnd, point, closed_meanwhile)
    doing = {
        "send": lambda: here.send(b"x"),
        "receive": lambda: here.receive(1),
        "ranges": lambda: (here.ranges(1, 1), here.skip(1)),
        "peek": lambda: (here.peek(1, 1), here.skip(1)),
    }
    with pytest.raises(PeerError) as caught:
        doing[work]()
    assert caught.value.code == "peer-closed"
    closing.join()
    there.close()
