"""Frames through an anonymous memory file that only the two ends have mapped.

The offering end makes the memory file, seals its size and hands it over a Unix socket
together with four counters (eventfd); the accepting end checks who is there (peer
credentials), that the file is anonymous and that its size cannot change. Nobody else
can write it, so frames may be sealed into it and opened from it in place (rule H3):
the sender could only spoil its own records.
Not here: protection from processes of the same user, who can trace this one anyway; and
named shared memory, which others can open: never use it for this.
Layout: two rings (one per direction) of slots; a slot is a u32 length, 28 bytes of
padding, and room for one frame.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import select
import socket
import stat
import struct
import threading
from dataclasses import astuple, dataclass
from typing import Final, Self

from sealift.channel.localsocket import check_peer_user
from sealift.channel.transport import (
    DEFAULT_SEND_TIMEOUT_S,
    Deadline,
    check_announced_bytes,
    check_frame_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.errors import MalformedError, RefusedError, UnavailableError, UsageError
from sealift.ids import Buffer

SLOT_HEAD_BYTES: Final = 32
DEFAULT_SLOTS: Final = 8
DEFAULT_SLOT_BYTES: Final = (1 << 20) + 64
MAX_RING_BYTES: Final = 1 << 30
_ALIGNMENT_BYTES: Final = 64
_OFFER: Final = struct.Struct(">8sQIQI")
_OFFER_MAGIC: Final = b"SEALRNG\x03"
_NUM_DESCRIPTORS: Final = 5
_SIZE_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(
    fcntl, "F_SEAL_GROW", 4
)
_SEALS: Final = _SIZE_SEALS | getattr(fcntl, "F_SEAL_SEAL", 1)


@dataclass(slots=True)
class _Ring:
    """One direction: where its slots are, and its two counters."""

    start: int
    slot_bytes: int
    num_slots: int
    full: int  # eventfd: frames written and not yet read
    free: int  # eventfd: slots that may be written
    position: int = 0

    @property
    def slot_start(self) -> int:
        """Where the slot begins whose turn it is."""
        stride = SLOT_HEAD_BYTES + self.slot_bytes
        return self.start + self.position % self.num_slots * stride


@dataclass(frozen=True, slots=True)
class _Shape:
    """Slots of both rings: from the offering end, and back to it."""

    there_bytes: int
    there: int
    back_bytes: int
    back: int

    @property
    def back_start(self) -> int:
        return self.there * (SLOT_HEAD_BYTES + self.there_bytes)

    @property
    def file_bytes(self) -> int:
        return self.back_start + self.back * (SLOT_HEAD_BYTES + self.back_bytes)


class MemfdTransport:
    """One end of a private memory file; make it with ``offer`` or ``accept``."""

    def __init__(
        self,
        memory: mmap.mmap,
        sock: socket.socket,
        rings: tuple[_Ring, _Ring],
    ) -> None:
        self._mapping = memory
        self._memory = memoryview(memory)
        self._sock = sock
        self._outgoing, self._incoming = rings
        self.max_frame_bytes = max(ring.slot_bytes for ring in rings)
        self._reserved: int | None = None
        self._borrowed = False
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._closed = False

    @classmethod
    def offer(
        cls,
        sock: socket.socket,
        *,
        slot_bytes: int = DEFAULT_SLOT_BYTES,
        num_slots: int = DEFAULT_SLOTS,
        sending: tuple[int, int] | None = None,
        expected_uid: int | None = None,
    ) -> Self:
        """Make the memory file and hand it to the other end of a Unix socket.

        Args:
            sock: A connected Unix socket; this object owns it from now on.
            slot_bytes: Longest frame that is received here.
            num_slots: Frames that may wait to be received here.
            sending: The same two for what is sent from here, if they are others.
            expected_uid: User that the other end must run as; this one's by default.

        Raises:
            RefusedError: if somebody else is there.
            PeerError: if nobody is there any more.
            UnavailableError: if this system has no memory files, or no memory.
        """
        check_peer_user(sock, expected_uid)
        there_bytes, there = sending or (slot_bytes, num_slots)
        shape = _Shape(_aligned(there_bytes), there, _aligned(slot_bytes), num_slots)
        descriptors = _make_descriptors(shape)
        offer = _OFFER.pack(_OFFER_MAGIC, *astuple(shape))
        rights = array.array("i", descriptors).tobytes()
        try:
            sock.sendmsg([offer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            _close_all(descriptors)
            raise peer_closed(error.strerror or "") from None
        return cls._over(sock, descriptors, shape, offering=True)

    @classmethod
    def accept(
        cls,
        sock: socket.socket,
        *,
        expected_uid: int | None = None,
        timeout_s: float = DEFAULT_SEND_TIMEOUT_S,
    ) -> Self:
        """Take the memory file that the other end of a Unix socket offers.

        Args:
            sock: A connected Unix socket.
            expected_uid: User that the other end must run as; this one's by default.
            timeout_s: How long to wait for the offer.

        Raises:
            RefusedError: if somebody else is there, or others may map the memory.
            PeerError: if no offer came.
        """
        check_peer_user(sock, expected_uid)
        offer, descriptors = _receive_offer(sock, timeout_s)
        try:
            shape = _parse_offer(offer, descriptors)
        except BaseException:
            _close_all(descriptors)
            raise
        return cls._over(sock, descriptors, shape, offering=False)

    @classmethod
    def _over(
        cls,
        sock: socket.socket,
        descriptors: list[int],
        shape: _Shape,
        *,
        offering: bool,
    ) -> Self:
        memory_file, *counters = descriptors
        # All pages at once: one by one, they cost more than a copy of what is in them.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        memory = mmap.mmap(memory_file, shape.file_bytes, flags=flags)
        os.close(memory_file)
        there = _Ring(0, shape.there_bytes, shape.there, *counters[:2])
        back = _Ring(shape.back_start, shape.back_bytes, shape.back, *counters[2:])
        rings = (there, back) if offering else (back, there)
        sock.setblocking(False)
        return cls(memory, sock, rings)

    def send(self, frame: Buffer) -> None:
        """Copy one frame into the next slot."""
        view = memoryview(frame).cast("B")
        self.reserve(len(view))[:] = view
        self.commit()

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Copy the next frame out of its slot."""
        frame = bytes(self.borrow(timeout_s))
        self.give_back()
        return frame

    def reserve(self, frame_bytes: int, timeout_s: float | None = None) -> memoryview:
        """The next free slot's room, for ``frame_bytes``; sent by ``commit``."""
        check_frame_bytes(frame_bytes, self._longest(self._outgoing))
        if self._reserved is not None:
            raise UsageError("the reserved frame was not committed yet")
        if timeout_s is None:
            timeout_s = DEFAULT_SEND_TIMEOUT_S
        with self._send_lock:
            self._wait(self._outgoing.free, timeout_s)
        self._reserved = frame_bytes
        return self._room(self._outgoing, frame_bytes)

    def commit(self) -> None:
        """Let the other end read what was written to the reserved slot."""
        if self._reserved is None:
            raise UsageError("there is no reserved frame")
        if self._closed:
            raise peer_closed()
        start = self._outgoing.slot_start
        self._memory[start : start + 4] = self._reserved.to_bytes(4, "big")
        self._reserved = None
        self._outgoing.position += 1
        self._signal(self._outgoing.full)

    def borrow(self, timeout_s: float | None = None) -> memoryview:
        """The next frame where it lies; valid until ``give_back``."""
        if self._borrowed:
            raise UsageError("the borrowed frame was not given back yet")
        with self._receive_lock:
            self._wait(self._incoming.full, timeout_s)
        start = self._incoming.slot_start
        length = int.from_bytes(self._memory[start : start + 4], "big")
        check_announced_bytes(length, self._longest(self._incoming))
        self._borrowed = True
        return self._room(self._incoming, length)

    def give_back(self) -> None:
        """Let the other end write to the borrowed slot again."""
        if not self._borrowed:
            raise UsageError("there is no borrowed frame")
        self._borrowed = False
        self._incoming.position += 1
        self._signal(self._incoming.free)

    def close(self) -> None:
        """End the connection; the other end may read what was sent. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # wakes this end's threads, and the peer's
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._send_lock, self._receive_lock:
            self._sock.close()
            for ring in (self._outgoing, self._incoming):
                _close_all([ring.full, ring.free])
        # Views that were lent out keep the mapping alive until they are gone.
        self._memory.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def _longest(self, ring: _Ring) -> int:
        return min(ring.slot_bytes, self.max_frame_bytes)

    def _room(self, ring: _Ring, length: int) -> memoryview:
        start = ring.slot_start + SLOT_HEAD_BYTES
        return self._memory[start : start + length]

    def _signal(self, counter: int) -> None:
        if self._closed:
            raise peer_closed()
        os.eventfd_write(counter, 1)

    def _wait(self, counter: int, timeout_s: float | None) -> None:
        """Take one from a counter; the socket tells when the other end is gone."""
        deadline = None
        while not self._closed:
            try:
                os.eventfd_read(counter)
                return
            except BlockingIOError:
                deadline = deadline or Deadline(timeout_s)
                self._poll(counter, deadline)
        raise peer_closed()

    def _poll(self, counter: int, deadline: Deadline) -> None:
        poller = select.poll()
        poller.register(counter, select.POLLIN)
        poller.register(self._sock, select.POLLIN)
        ready = dict(poller.poll(deadline.remaining_ms()))
        if not ready:
            raise peer_timeout()
        # Frames sent before the peer closed are read first.
        if counter not in ready:
            raise peer_closed("the peer ended it")


def memfd_pair(
    *, slot_bytes: int = DEFAULT_SLOT_BYTES, num_slots: int = DEFAULT_SLOTS
) -> tuple[MemfdTransport, MemfdTransport]:
    """Two connected ends in one process."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    offering = MemfdTransport.offer(left, slot_bytes=slot_bytes, num_slots=num_slots)
    return offering, MemfdTransport.accept(right)


def _aligned(slot_bytes: int) -> int:
    return -(-slot_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _make_descriptors(shape: _Shape) -> list[int]:
    if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
        raise UnavailableError(
            "this system has no anonymous memory files",
            fix="Use TCP between the two ends",
            code="no-memfd",
        )
    made: list[int] = []
    try:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        made.append(os.memfd_create("sealift", flags))
        os.posix_fallocate(made[0], 0, shape.file_bytes)
        fcntl.fcntl(made[0], fcntl.F_ADD_SEALS, _SEALS)
        mode = os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE
        counts = (0, shape.there, 0, shape.back)
        made.extend(os.eventfd(n, mode) for n in counts)
    except OSError as error:
        _close_all(made)
        raise UnavailableError(
            "cannot make a private memory file",
            why=error.strerror or "",
            fix="Free some memory or file descriptors",
            code="no-memfd",
        ) from error
    return made


def _receive_offer(sock: socket.socket, timeout_s: float) -> tuple[bytes, list[int]]:
    sock.settimeout(timeout_s)
    try:
        offer, descriptors, _, _ = socket.recv_fds(
            sock, _OFFER.size, _NUM_DESCRIPTORS, socket.MSG_WAITALL
        )
    except TimeoutError as error:
        raise peer_timeout() from error
    except OSError as error:
        raise peer_closed(error.strerror or "") from error
    if not offer:
        _close_all(descriptors)
        raise peer_closed("it ended before its offer")
    return offer, descriptors


def _parse_offer(offer: bytes, descriptors: list[int]) -> _Shape:
    if len(offer) != _OFFER.size or len(descriptors) != _NUM_DESCRIPTORS:
        raise MalformedError("the offer of a memory file is malformed")
    magic, *sizes = _OFFER.unpack(offer)
    shape = _Shape(*sizes)
    if magic != _OFFER_MAGIC or 0 in sizes or shape.file_bytes > MAX_RING_BYTES:
        raise MalformedError("the offer of a memory file is malformed")
    _check_private(descriptors[0], shape.file_bytes)
    return shape


def _check_private(descriptor: int, file_bytes: int) -> None:
    """Refuse memory that has a name, or whose size can change."""
    status = os.fstat(descriptor)
    anonymous = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not anonymous or seals & _SEALS != _SEALS or status.st_size != file_bytes:
        raise RefusedError(
            "the offered memory is not a private memory file of fixed size",
            why="others could map it, or cut it while it is read",
            code="memory-not-private",
        )


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
