"""An end of a memory file that lies, or is closed under a call: errors, never a hang."""

from __future__ import annotations

import os
import select
import socket
import threading
from dataclasses import astuple

import pytest

from sealift.channel.transport import memfd
from sealift.channel.transport.memfd import (
    _OFFER,
    _OFFER_MAGIC,
    MemfdTransport,
    MemoryShape,
    close_all,
    make_private_file,
)
from sealift.errors import MalformedError, PeerError
from tests.sim.memfdpair import memfd_pair


@pytest.fixture
def ends():
    here, there = memfd_pair(slot_bytes=64, num_slots=3)
    for end in (here._outgoing, here._incoming, there._outgoing, there._incoming):
        end.spin_s = 0.0
    yield here, there
    here.close()
    there.close()


class Noisy:
    """A poll under which the other end rings again and again."""

    turns = 0

    def __init__(self):
        self._descriptors = []

    def register(self, descriptor, _):
        self._descriptors.append(descriptor)

    def poll(self, _):
        Noisy.turns += 1
        assert Noisy.turns < 1_000_000, "waits for ever"
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
    here, there = ends
    end = there._incoming
    here._outgoing.place.bell.send(b"x")
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


@pytest.mark.parametrize("waits", [False, True])
def test_an_end_that_hears_nothing_holds_nobody_up(ends, waits):
    # It never listens to its bell, is said to sleep, and has its socket wait.
    here, there = ends
    there._incoming.place.bell.setblocking(waits)
    here._outgoing.place.bell.setblocking(waits)
    if not memfd.STORES_IN_ORDER:
        pytest.skip("this machine lacks the order of stores that words need")
    here._outgoing._words[here._outgoing._they_sleep] = 1

    def send_many():
        for _ in range(2000):  # more than a bell holds
            here.send(b"x")
            there.skip(1)

    sending = threading.Thread(target=send_many, daemon=True)
    sending.start()
    sending.join(300)
    assert not sending.is_alive()


def test_an_eventfd_in_its_place_could_be_made_to_wait():
    # The control: whoever else has it decides, for both ends.
    shared = os.eventfd(0, os.EFD_NONBLOCK)
    theirs = os.dup(shared)
    assert not os.get_blocking(shared)
    os.set_blocking(theirs, True)
    assert os.get_blocking(shared)
    for each in (shared, theirs):
        os.close(each)


def bell(kind):
    if kind == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    if kind == "file":
        return os.memfd_create("no bell")
    if kind == "eventfd":
        return os.eventfd(0, os.EFD_NONBLOCK)
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


@pytest.mark.parametrize("kind", ["socket", "file", "pipe", "eventfd"])
def test_what_is_offered_to_wake_with_is_a_socket(kind):
    left, right = socket.socketpair()
    shape = MemoryShape(64, 2, 64, 2)
    memory_file = make_private_file(shape.file_bytes)
    offer = _OFFER.pack(_OFFER_MAGIC, *astuple(shape))
    sent = [memory_file, bell("socket"), bell(kind)]
    socket.send_fds(left, [offer], sent)
    close_all(sent)
    if kind == "socket":  # the control
        MemfdTransport.accept(right).close()
    else:
        with pytest.raises(MalformedError):
            MemfdTransport.accept(right)
        right.close()
    left.close()


@pytest.mark.parametrize("point", ["slot_start", "advance"])
@pytest.mark.parametrize("work", ["send", "receive", "ranges", "borrow"])
def test_an_end_that_is_closed_under_a_call_takes_nothing_away(
    point, work, monkeypatch
):
    left, right = socket.socketpair()
    here = MemfdTransport.offer(left, slot_bytes=64, num_slots=2)
    there = MemfdTransport.accept(right)
    there.send(b"y")
    closing = threading.Thread(target=here.close)
    real = getattr(memfd.RingEnd, point)

    def closed_meanwhile(self, *given):
        if closing.ident is None:
            closing.start()
            closing.join(0.05)
        return real(self, *given)

    monkeypatch.setattr(memfd.RingEnd, point, closed_meanwhile)
    doing = {
        "send": lambda: here.send(b"x"),
        "receive": lambda: here.receive(1),
        "ranges": lambda: (here.ranges(1, 1), here.skip(1)),
        "borrow": lambda: (here.borrow(1), here.give_back()),
    }
    with pytest.raises(PeerError) as caught:
        doing[work]()
    assert caught.value.code == "peer-closed"
    closing.join()
    there.close()
