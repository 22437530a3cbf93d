"""The private memory file: who may be at the other end, and what may be offered."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

from sealift.channel.transport import memfd as memfdoffer
from sealift.channel.transport.memfd import MemfdTransport
from sealift.errors import (
    MalformedError,
    PeerError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from tests.sim.descriptors import kept_since, opened
from tests.sim.memfdpair import memfd_pair

SLOT_BYTES, NUM_SLOTS = 1024, 2
FILE_BYTES = 4096 + 2 * NUM_SLOTS * (32 + SLOT_BYTES)
RING = (SLOT_BYTES, NUM_SLOTS)


def head(there=RING, back=RING, magic=b"SEALRNG\x05"):
    return struct.pack(">8sQIQI", magic, *there, *back)


OFFER = head()
ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def sockets():
    here, there = socket.socketpair()
    yield here, there
    here.close()
    there.close()


def memory_file(seals=ALL_SEALS, size=FILE_BYTES):
    descriptor = os.memfd_create("offered", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def offer(sock, descriptor, head=OFFER, bells=2):
    pairs = [socket.socketpair() for _ in range(bells)]
    socket.send_fds(sock, [head], [descriptor, *(one.fileno() for one, _ in pairs)])
    os.close(descriptor)
    for pair in pairs:
        for end in pair:
            end.close()


def refusal(sock):
    gc.collect()  # what earlier tests left is closed now, not in the midst of this
    before = opened()
    with pytest.raises((RefusedError, MalformedError)) as caught:
        MemfdTransport.accept(sock, timeout_s=300)
    assert not kept_since(before), "no descriptor was kept"
    return caught.value


def test_a_good_offer_is_accepted(sockets):
    # The control for the refusals below.
    offer(sockets[0], memory_file())
    MemfdTransport.accept(sockets[1]).close()


@pytest.mark.parametrize(
    "seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW]
)
def test_memory_whose_size_can_change_is_refused(sockets, seals):
    # It could be cut while it is read, which kills the reader (SIGBUS).
    offer(sockets[0], memory_file(seals))
    assert refusal(sockets[1]).code == "memory-not-private"


def test_memory_with_a_name_is_refused(sockets, tmp_path):
    path = tmp_path / "named"
    path.write_bytes(bytes(FILE_BYTES))
    offer(sockets[0], os.open(path, os.O_RDWR))
    assert refusal(sockets[1]).code == "memory-not-private"


def test_memory_of_another_size_is_refused(sockets):
    offer(sockets[0], memory_file(size=FILE_BYTES + 4096))
    assert refusal(sockets[1]).code == "memory-not-private"


def test_something_that_is_not_memory_is_refused(sockets):
    offer(sockets[0], os.open("/dev/zero", os.O_RDWR))
    assert refusal(sockets[1]).code == "memory-not-private"


@pytest.mark.parametrize(
    "malformed",
    [
        head(magic=b"SEALRNG\x04"),
        head(there=(SLOT_BYTES, 0)),
        head(back=(SLOT_BYTES, 0)),
        head(there=(0, NUM_SLOTS)),
        head(back=(0, NUM_SLOTS)),
        head(there=(2**63, 2)),
        head(back=(2**63, 2)),
    ],
)
def test_a_malformed_offer_is_refused(sockets, malformed):
    offer(sockets[0], memory_file(), head=malformed)
    assert isinstance(refusal(sockets[1]), MalformedError)


def test_an_offer_with_too_few_descriptors_is_refused(sockets):
    offer(sockets[0], memory_file(), bells=1)
    assert isinstance(refusal(sockets[1]), MalformedError)


def test_an_offer_with_more_descriptors_leaves_none_of_them(sockets):
    offer(sockets[0], memory_file(), head=OFFER[:-1], bells=200)
    assert isinstance(refusal(sockets[1]), MalformedError)


def test_what_was_offered_gets_into_no_program_that_is_started(sockets, monkeypatch):
    offer(sockets[0], memory_file())
    _, memory, bells = memfdoffer.take_offer(sockets[1], 5)
    descriptors = [memory, *(bell.fileno() for bell in bells)]
    assert [os.get_inheritable(each) for each in descriptors] == [False] * 3
    memfdoffer.close_all([memory])
    monkeypatch.setattr(memfdoffer, "_WHOLE", socket.MSG_WAITALL)  # the mutant
    offer(sockets[0], memory_file())
    _, inherited, others = memfdoffer.take_offer(sockets[1], 5)
    assert os.get_inheritable(inherited)
    memfdoffer.close_all([inherited])
    for bell in (*bells, *others):
        bell.close()


def test_another_user_is_refused_by_both_ends(sockets):
    stranger = os.geteuid() + 1
    for attempt in (MemfdTransport.offer, MemfdTransport.accept):
        with pytest.raises(RefusedError) as caught:
            attempt(sockets[0], expected_uid=stranger)
        assert caught.value.code == "wrong-peer-user"


def test_no_offer_is_a_timeout_and_a_closed_socket_an_end(sockets):
    here, there = sockets
    with pytest.raises(PeerError) as caught:
        MemfdTransport.accept(there, timeout_s=0.01)
    assert caught.value.code == "peer-timeout"
    here.close()
    with pytest.raises(PeerError) as caught:
        MemfdTransport.accept(there)
    assert caught.value.code == "peer-closed"


def test_an_offer_to_nobody_leaves_nothing_open(sockets):
    ours, theirs = sockets
    theirs.close()
    gc.collect()  # what earlier tests left is closed now, not in the midst of this
    before = opened()
    with pytest.raises(PeerError):
        MemfdTransport.offer(ours)
    assert not kept_since(before)


def mappings():
    """How many memory files and pieces of /dev/shm this process has mapped."""
    with open("/proc/self/maps") as lines:
        return sum("/memfd:" in line or "/dev/shm" in line for line in lines)


class NoRoom:
    """No more memory from the given mapping on."""

    def __init__(self, monkeypatch, allowed):
        self._real, self._left = mmap.mmap, allowed
        monkeypatch.setattr(mmap, "mmap", self)

    def __call__(self, *given, **named):
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return self._real(*given, **named)


@pytest.mark.parametrize("offering", [True, False])
def test_a_transport_that_cannot_be_made_leaves_nothing(sockets, monkeypatch, offering):
    kind = MemfdTransport
    gc.collect()  # what earlier tests left is closed now, not in the midst of this
    if not offering:
        # Only the descriptors of the offer are needed, and they are in flight.
        kind.offer(sockets[0].dup(), slot_bytes=SLOT_BYTES, num_slots=2).close()
    before, mapped = opened(), mappings()
    make = kind.offer if offering else kind.accept
    with monkeypatch.context() as patched:
        NoRoom(patched, 0)
        with pytest.raises(UnavailableError) as caught:
            make(sockets[0] if offering else sockets[1])
    assert caught.value.code == "no-memory"
    assert not kept_since(before)
    assert mappings() == mapped  # while the error is held, and its frames with it


def test_a_closed_transport_has_nothing_mapped(sockets):
    kind = MemfdTransport
    gc.collect()
    mapped = mappings()
    here = kind.offer(sockets[0].dup(), slot_bytes=SLOT_BYTES, num_slots=2)
    there = kind.accept(sockets[1].dup())
    assert mappings() == mapped + 2
    here.close()
    there.close()
    assert mappings() == mapped
    assert not any(end._mapping.closed is False for end in (here, there))


@pytest.mark.parametrize("which", [0, 1])
def test_a_bell_that_cannot_be_taken_over_is_refused(sockets, monkeypatch, which):
    # As with AF_ALG: the library asks for the name of a socket, and these have none.
    offer(sockets[0], memory_file())
    real, taken, ours = socket.socket, [], threading.get_ident()

    def nameless(*given, fileno=None, **named):
        if threading.get_ident() != ours:  # an earlier test's
            return real(*given, fileno=fileno, **named)
        taken.append(fileno)
        if fileno is not None and len(taken) > which:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(*given, fileno=fileno, **named)

    monkeypatch.setattr(memfdoffer.socket, "socket", nameless)
    assert isinstance(refusal(sockets[1]), MalformedError)
    assert len(taken) == which + 1


def test_a_full_ring_waits_for_the_reader():
    here, there = memfd_pair(slot_bytes=64, num_slots=2)
    for _ in range(2):
        here.send(b"x")
    with pytest.raises(PeerError) as caught:
        here.reserve(1, timeout_s=0.01)
    assert caught.value.code == "peer-timeout"
    there.receive(1)
    here.send(b"y")
    here.close()
    there.close()


def test_a_borrowed_frame_is_given_back_once():
    here, there = memfd_pair(slot_bytes=64, num_slots=2)
    here.send(b"x")
    there.borrow(1)
    with pytest.raises(UsageError):
        there.borrow(1)
    there.give_back()
    with pytest.raises(UsageError):
        there.give_back()
    here.close()
    there.close()


ECHO = """
import socket, sys
from sealift.channel.transport import memfd as memfdoffer
from sealift.channel.transport.memfd import MemfdTransport
transport = MemfdTransport.accept(socket.socket(fileno=int(sys.argv[1])))
while (frame := transport.receive(30)) != b"stop":
    transport.send(frame[::-1])
"""


def test_two_processes_exchange_frames_and_a_dead_one_is_noticed(sockets):
    here, there = sockets
    command = [sys.executable, "-c", ECHO, str(there.fileno())]
    with subprocess.Popen(command, pass_fds=[there.fileno()]) as child:
        there.close()
        transport = MemfdTransport.offer(here, slot_bytes=4096, num_slots=2)
        for n in range(9):
            frame = os.urandom(n * 400)
            transport.send(frame)
            assert transport.receive(30) == frame[::-1]
        child.kill()
        with pytest.raises(PeerError) as caught:
            transport.receive(30)
        assert caught.value.code == "peer-closed"
        transport.close()


def test_the_two_directions_may_differ():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    here = MemfdTransport.offer(left, slot_bytes=128, num_slots=4, sending=(64, 1))
    there = MemfdTransport.accept(right)
    for frame in (b"1", b"2", b"3", b"4"):
        there.send(frame)  # as many wait as there are slots
    with pytest.raises(PeerError):
        there.reserve(1, timeout_s=0)
    here.send(b"a")
    with pytest.raises(PeerError):
        here.reserve(1, timeout_s=0)
    assert [here.receive(1) for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert there.receive(1) == b"a"
    longest = bytes(128)
    there.send(longest)
    assert here.receive(1) == longest
    with pytest.raises(UsageError):
        here.send(longest)
    here.close()
    there.close()
