"""Frames through an anonymous memory file that only the two ends have mapped.

The offering end makes the memory file, seals its size and hands it over a Unix socket
(``_send_offer``); the accepting end checks who is there (peer credentials), that the
file is anonymous and that its size cannot change. Nobody else can write it, so frames
may be sealed into it, and opened from it in place when the sender sealed them (rule H3):
it could only spoil its own records. What it merely forwards is copied first.
Not here: protection from processes of the same user, who can trace this one anyway.
Layout: a page of counts, then two rings (one per direction) of slots; a
slot is a u32 length, 28 bytes of padding, and room for one frame.

A private memory file: made by one end, handed over a Unix socket, checked by the other.

The offer is a fixed struct with the shape of both rings, and three descriptors: the file
and the other end of each ring's bell.

Writer and reader of a ring each keep their own count and show it to the other in a word of
shared memory. Whoever must wait looks at the other's word for a moment, since a wake-up
through the kernel takes as long as a tenth of a record, and sleeps on a socket only then:
the ring's bell. Counts of the other end are checked: it can stop the ring until the
timeout, not reach outside of it. (An eventfd would be faster, and hold this end for ever:
whoever else has it decides whether it waits. A socket is told call by call not to.)

The words order memory only on machines that keep stores in order (x86). Elsewhere each
frame goes with a byte through the bell, and the kernel orders.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import select
import socket
import stat
import struct
import threading
import time
from array import array
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Final, Self

from sealift import errors
from sealift.channel.transport.transport import (
    DEFAULT_SEND_TIMEOUT_S,
    Deadline,
    check_announced_bytes,
    check_frame_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.channel.transport.unixsocket import check_peer_user
from sealift.errors import MalformedError, RefusedError, UnavailableError, UsageError
from sealift.ids import Buffer

DEFAULT_SLOTS: Final = 8
DEFAULT_SLOT_BYTES: Final = (1 << 20) + 64


MAX_RING_BYTES: Final = 1 << 30
_ALIGNMENT_BYTES: Final = 64
_OFFER: Final = struct.Struct(">8sQIQI")
_OFFER_MAGIC: Final = b"SEALRNG\x05"
_NUM_DESCRIPTORS: Final = 3
_ROOM: Final = socket.CMSG_LEN(_NUM_DESCRIPTORS * array("i").itemsize)
# A program that this process starts gets none of them.
_WHOLE: Final = socket.MSG_WAITALL | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_SIZE_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(
    fcntl, "F_SEAL_GROW", 4
)
_SEALS: Final = _SIZE_SEALS | getattr(fcntl, "F_SEAL_SEAL", 1)


Bells = tuple[socket.socket, socket.socket]


@dataclass(frozen=True, slots=True)
class MemoryShape:
    """Slots of both rings: from the offering end, and back to it."""

    there_bytes: int
    there: int
    back_bytes: int
    back: int

    @property
    def back_start(self) -> int:
        """Where the second ring begins."""
        return CONTROL_BYTES + self.there * (SLOT_HEAD_BYTES + self.there_bytes)

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.back_start + self.back * (SLOT_HEAD_BYTES + self.back_bytes)

    def places(self, bells: Bells) -> tuple[RingPlace, RingPlace]:
        """Both rings, with this end of their bells."""
        there = RingPlace(0, CONTROL_BYTES, self.there_bytes, self.there, bells[0])
        back = RingPlace(
            WORDS_PER_RING, self.back_start, self.back_bytes, self.back, bells[1]
        )
        return there, back


def _send_offer(sock: socket.socket, shape: MemoryShape, memory_file: int) -> Bells:
    """Hand the file over, with one end of each bell; return the others.

    Raises:
        PeerError: if nobody is there any more; the file is closed then.
    """
    offer = _OFFER.pack(_OFFER_MAGIC, *astuple(shape))
    with ExitStack() as kept, ExitStack() as handed:
        kept.callback(os.close, memory_file)
        ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
        for here, there in zip(ours, theirs, strict=True):
            kept.callback(here.close)
            handed.callback(there.close)
        try:
            numbers = [there.fileno() for there in theirs]
            socket.send_fds(sock, [offer], [memory_file, *numbers])
        except OSError as error:
            raise peer_closed(error) from None
        kept.pop_all()
    first, second = ours
    return first, second


def take_offer(
    sock: socket.socket, timeout_s: float, *, max_bytes: int = MAX_RING_BYTES
) -> tuple[MemoryShape, int, Bells]:
    """Receive and check an offer: the shape, the file, and this end of the bells.

    Raises:
        PeerError: if none came.
        MalformedError: if it does not parse.
        RefusedError: code ``memory-not-private``.
    """
    offer, descriptors = _receive_offer(sock, timeout_s)
    try:
        shape = _parse_offer(offer, descriptors, max_bytes)
    except BaseException:
        close_all(descriptors)
        raise
    memory_file, *ends = descriptors
    try:
        bells = _own_bells(ends)
    except BaseException:
        os.close(memory_file)
        raise
    return shape, memory_file, bells


def aligned(slot_bytes: int) -> int:
    """Rounded up, so that every slot begins at a cache line."""
    return -(-slot_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def make_private_file(file_bytes: int) -> int:
    """A private memory file.

    Raises:
        UnavailableError: if this system has none, or no memory.
    """
    if not hasattr(os, "memfd_create"):
        raise UnavailableError(
            "this system has no anonymous memory files", code="no-memfd"
        )
    try:
        return _private_file(file_bytes)
    except OSError as error:
        raise UnavailableError(
            "cannot make a private memory file", why=error, code="no-memfd"
        ) from error


def _private_file(file_bytes: int) -> int:
    descriptor = os.memfd_create("sealift", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, file_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map_file(memory_file: int, file_bytes: int) -> mmap.mmap:
    """Map a memory file and close its descriptor, also where that fails.

    Raises:
        UnavailableError: if there is no memory for it.
    """
    # All pages at once: one by one, they cost more than a copy of what is in them.
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    try:
        return mmap.mmap(memory_file, file_bytes, flags=flags)
    except OSError as error:
        raise no_room(file_bytes, error) from error
    finally:
        os.close(memory_file)


def no_room(nbytes: int, error: OSError) -> UnavailableError:
    """There is no memory for the slots of a transport."""
    fix = "Free some memory, or use fewer or smaller slots"
    return errors.no_room(f"{nbytes} bytes of slots", error, fix)


def _receive_offer(sock: socket.socket, timeout_s: float) -> tuple[bytes, list[int]]:
    sock.settimeout(timeout_s)
    try:  # `socket.recv_fds` does not hand flags on (Python 3.11)
        offer, sent, _, _ = sock.recvmsg(_OFFER.size, _ROOM, _WHOLE)
    except TimeoutError as error:
        raise peer_timeout() from error
    except OSError as error:
        raise peer_closed(error) from error
    descriptors = _descriptors_in(sent)
    if not offer:
        close_all(descriptors)
        raise peer_closed("the peer ended before it sent its offer")
    return offer, descriptors


def _descriptors_in(sent: list[tuple[int, int, bytes]]) -> list[int]:
    found = array("i")
    for level, kind, numbers in sent:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(numbers)
    return list(found)


def _parse_offer(offer: bytes, descriptors: list[int], max_bytes: int) -> MemoryShape:
    if len(offer) != _OFFER.size or len(descriptors) != _NUM_DESCRIPTORS:
        raise MalformedError("the offer of a memory file is malformed")
    magic, *sizes = _OFFER.unpack(offer)
    shape = MemoryShape(*sizes)
    if magic != _OFFER_MAGIC or 0 in sizes or shape.file_bytes > max_bytes:
        raise MalformedError("the offer of a memory file is malformed")
    for descriptor in descriptors[1:]:
        _check_bell(descriptor)
    _check_private(descriptors[0], shape.file_bytes)
    return shape


def _check_bell(descriptor: int) -> None:
    """Refuse what cannot be told call by call not to wait."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise MalformedError("the offer's wake-up descriptor is not a socket")


def _own_bells(descriptors: list[int]) -> Bells:
    """The sockets that own both descriptors from now on; none of them if one cannot.

    Raises:
        MalformedError: if one is of a kind that has no name (AF_ALG, for one).
    """
    made: list[socket.socket] = []
    try:
        for descriptor in descriptors:
            made.append(socket.socket(fileno=descriptor))
    except OSError:
        for bell in made:
            bell.close()
        close_all(descriptors[len(made) :])
        raise MalformedError("the offer's wake-up socket is not a local one") from None
    first, second = made
    return first, second


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
            why="other processes could map it, or truncate it while it is read",
            code="memory-not-private",
        )


def close_all(descriptors: list[int]) -> None:
    """Close every one."""
    for descriptor in descriptors:
        os.close(descriptor)


class MemfdTransport:
    """One end of a private memory file; make it with ``offer`` or ``accept``."""

    descriptor: int | None = None
    has_ahead = False

    def __init__(
        self, memory: mmap.mmap, sock: socket.socket, ends: tuple[RingEnd, RingEnd]
    ) -> None:
        self._mapping = memory
        self.memory = memoryview(memory)
        self._sock = sock
        self._outgoing, self._incoming = ends
        self.max_frame_bytes = max(end.place.slot_bytes for end in ends)
        self._reserved: int | None = None
        self._borrowed = False
        # Held around whatever touches memory or descriptors, so that ``close`` takes
        # neither away under another thread.
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()

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
        shape = MemoryShape(aligned(there_bytes), there, aligned(slot_bytes), num_slots)
        memory_file = make_private_file(shape.file_bytes)
        bells = _send_offer(sock, shape, memory_file)
        return cls._over(sock, memory_file, shape.places(bells), offering=True)

    @classmethod
    def accept(
        cls,
        sock: socket.socket,
        *,
        expected_uid: int | None = None,
        timeout_s: float = DEFAULT_SEND_TIMEOUT_S,
        max_bytes: int = MAX_RING_BYTES,
    ) -> Self:
        """Take the memory file that the other end of a Unix socket offers.

        Args:
            sock: A connected Unix socket.
            expected_uid: User that the other end must run as; this one's by default.
            timeout_s: How long to wait for the offer.
            max_bytes: The largest file that is mapped here.

        Raises:
            RefusedError: if somebody else is there, or others may map the memory.
            PeerError: if no offer came.
        """
        check_peer_user(sock, expected_uid)
        shape, memory_file, bells = take_offer(sock, timeout_s, max_bytes=max_bytes)
        return cls._over(sock, memory_file, shape.places(bells), offering=False)

    @classmethod
    def _over(
        cls,
        sock: socket.socket,
        memory_file: int,
        places: tuple[RingPlace, RingPlace],
        *,
        offering: bool,
    ) -> Self:
        file_bytes = places[1].start + places[1].num_slots * places[1].stride
        with ExitStack() as undone:  # all but ``sock``, which is the caller's till then
            for place in places:
                undone.callback(place.bell.close)
            memory = _map_file(memory_file, file_bytes)
            undone.callback(memory.close)
            sock.setblocking(False)
            words = memoryview(memory)[:CONTROL_BYTES].cast("Q")
            undone.callback(words.release)
            there = RingEnd(places[0], words, sock, writes=offering)
            back = RingEnd(places[1], words, sock, writes=not offering)
            made = cls(memory, sock, (there, back) if offering else (back, there))
            undone.pop_all()
        return made

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
            self._outgoing.wait(1, timeout_s)
            self._reserved = frame_bytes
            start = self._outgoing.slot_start() + SLOT_HEAD_BYTES
            return self.memory[start : start + frame_bytes]

    def commit(self) -> None:
        """Let the other end read what was written to the reserved slot."""
        if self._reserved is None:
            raise UsageError("there is no reserved frame")
        with self._send_lock:
            if self._closed:
                raise peer_closed()
            self._publish(self._outgoing.slot_start(), self._reserved)
            self._reserved = None
            self._outgoing.advance()

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a slot is free."""
        check_frame_bytes(frame_bytes, self._longest(self._outgoing))
        with self._send_lock:
            if self._closed:
                raise peer_closed()
            return self._outgoing.available() > 0

    def borrow(self, timeout_s: float | None = None) -> memoryview:
        """The next frame where it lies; valid until ``give_back``."""
        if self._borrowed:
            raise UsageError("the borrowed frame was not released yet")
        start, length = self.next_range(timeout_s)
        try:
            frame = self.memory[start : start + length]
        except ValueError:  # closed meanwhile
            raise peer_closed() from None
        self._borrowed = True
        return frame

    def give_back(self) -> None:
        """Let the other end write to the borrowed slot again."""
        if not self._borrowed:
            raise UsageError("there is no borrowed frame")
        self._borrowed = False
        self.skip(1)

    def ranges(
        self, count: int, timeout_s: float | None = None
    ) -> list[tuple[int, int]]:
        """Where the next ``count`` frames lie in ``memory``: start and length.

        They are this end's until ``skip`` gives them back.
        """
        with self._receive_lock:
            self._incoming.wait(count, timeout_s)
            return [self._range(ahead) for ahead in range(count)]

    def arrived(
        self, at_most: int, timeout_s: float | None = None
    ) -> list[tuple[int, int]]:
        """Like ``ranges`` for the frames that are here; waits for the first one."""
        with self._receive_lock:
            self._incoming.wait(1, timeout_s)
            count = max(min(self._incoming.available(), at_most), 1)
            return [self._range(ahead) for ahead in range(count)]

    def next_range(self, timeout_s: float | None = None) -> tuple[int, int]:
        """Where the next frame lies in ``memory``: start and length."""
        with self._receive_lock:
            self._incoming.wait(1, timeout_s)
            return self._range(0)

    def skip(self, count: int) -> None:
        """Let the other end write to the next ``count`` slots again."""
        with self._receive_lock:
            self._incoming.advance(count)

    @property
    def incoming_slots(self) -> int:
        """Frames that may wait here."""
        return self._incoming.place.num_slots

    @property
    def incoming_stride(self) -> int:
        """Bytes from one of their slots to the next."""
        return self._incoming.place.stride

    def close(self) -> None:
        """End the connection; the other end may read what was sent. Idempotent.

        In a forked child it lets go of the child's copy, and the parent goes on.
        """
        if self._closed:
            return
        self._closed = True
        for end in (self._outgoing, self._incoming):
            end.closed = True
        if self.forked:  # no thread of it is here, and who held the locks is not
            self._let_go()
        else:
            with contextlib.suppress(OSError):  # wakes this end's threads, the peer's
                self._sock.shutdown(socket.SHUT_RDWR)
            with self._send_lock, self._receive_lock:
                self._let_go()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child's copy."""
        return os.getpid() != self._process

    def _let_go(self) -> None:
        self._sock.close()
        for end in (self._outgoing, self._incoming):
            end.release()
        # Views that were lent out keep the mapping alive until they are gone.
        self.memory.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def _longest(self, end: RingEnd) -> int:
        return min(end.place.slot_bytes, self.max_frame_bytes)

    def _publish(self, start: int, frame_bytes: int) -> None:
        """What is in the slot at ``start`` is what the other end shall read."""
        self.memory[start : start + 4] = frame_bytes.to_bytes(4, "big")

    def _range(self, ahead: int) -> tuple[int, int]:
        start = self._incoming.slot_start(ahead)
        length = int.from_bytes(self.memory[start : start + 4], "big")
        check_announced_bytes(length, self._longest(self._incoming))
        return start + SLOT_HEAD_BYTES, length


SLOT_HEAD_BYTES: Final = 32
CONTROL_BYTES: Final = 4096  # at the start of the file: the words of both rings
WORDS_PER_RING: Final = 64
DEFAULT_SPIN_S: Final = 100e-6
# Words lie two cache lines apart: processors fetch lines in pairs.
_WRITTEN, _READ, _READER_SLEEPS, _WRITER_SLEEPS = 0, 16, 32, 48
_LOOKS_PER_YIELD: Final = 32
_FIRST_SLEEP_MS: Final = 1
_AT_ONCE: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_HEARD_AT_ONCE: Final = 4096
STORES_IN_ORDER: Final = platform.machine() in ("x86_64", "AMD64")


@dataclass(slots=True)
class RingPlace:
    """Where a ring lies in the file, and this end of its bell."""

    first_word: int
    start: int
    slot_bytes: int
    num_slots: int
    bell: socket.socket  # sent to when there are frames, or room

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return SLOT_HEAD_BYTES + self.slot_bytes


class RingEnd:
    """The writer's or the reader's end of one ring.

    Args:
        place: Where it lies.
        words: The file's control area as 64-bit words.
        sock: Readable once the other end is gone.
        writes: Which end this is.
        spin_s: How long to look before sleeping.
    """

    def __init__(
        self,
        place: RingPlace,
        words: memoryview,
        sock: socket.socket,
        *,
        writes: bool,
        spin_s: float = DEFAULT_SPIN_S,
    ) -> None:
        self.place = place
        self.position = 0
        self.closed = False
        # All of the machine's: this end may be bound to one and the other to another.
        self.spin_s = spin_s if (os.cpu_count() or 1) > 1 else 0.0
        self._words = words
        self._sock = sock
        self._in_order = STORES_IN_ORDER
        first, num_slots = place.first_word, place.num_slots
        mine, theirs = (_WRITTEN, _READ) if writes else (_READ, _WRITTEN)
        sleeps = (_WRITER_SLEEPS, _READER_SLEEPS)
        self._my_word, self._their_word = first + mine, first + theirs
        self._i_sleep, self._they_sleep = (
            first + word for word in (sleeps if writes else sleeps[::-1])
        )
        self._bell = place.bell
        # The writer may begin with as many frames as there are slots.
        self._head_start = num_slots if writes else 0
        self._num_slots = num_slots
        self._granted = 0
        self._ended = False

    def slot_start(self, ahead: int = 0) -> int:
        """Where the slot begins whose turn it is, or one of those after it."""
        place = self.place
        return place.start + (self.position + ahead) % place.num_slots * place.stride

    def advance(self, count: int = 1) -> None:
        """Hand ``count`` slots over to the other end."""
        if self.closed:
            raise peer_closed()
        self.position += count
        if self._in_order:
            self._words[self._my_word] = self.position
            if self._words[self._they_sleep]:
                # One that is full wakes as it is.
                with contextlib.suppress(BlockingIOError):
                    self._ring(1)
        else:
            self._grant(count)

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Wait until ``count`` slots are this end's.

        Raises:
            PeerError: if the other end is gone, or too slow.
            MalformedError: if the other end's count cannot be.
        """
        if self.closed:
            raise peer_closed()
        if self.available() < count and not self._seen(count):
            self._sleep(count, Deadline(timeout_s))
            if self.closed:
                raise peer_closed()

    def available(self) -> int:
        """Slots that are this end's by now."""
        if self._in_order:
            theirs = self._words[self._their_word]
        else:
            self._hear()
            theirs = self._granted
        found: int = theirs + self._head_start - self.position
        if not 0 <= found <= self._num_slots:
            raise MalformedError(
                "the peer wrote impossible frame counters into the memory file",
                code="bad-ring",
            )
        return found

    def release(self) -> None:
        """Let go of the memory, close this end of the bell."""
        self._words.release()
        self._bell.close()

    def _ring(self, count: int) -> None:
        try:
            self._bell.send(bytes(count), _AT_ONCE)
        except BlockingIOError:
            raise
        except OSError:  # gone: whoever waits for the other end is told
            self._ended = True

    def _grant(self, count: int) -> None:
        try:
            self._ring(count)
        except BlockingIOError:  # hundreds that it did not hear
            raise peer_timeout() from None

    def _hear(self) -> None:
        try:
            heard = self._bell.recv(_HEARD_AT_ONCE, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        self._granted += len(heard)
        self._ended = self._ended or not heard

    def _seen(self, count: int) -> bool:
        """Look again and again for a moment."""
        if self.spin_s <= 0 or not self._in_order:
            return False
        words, theirs = self._words, self._their_word
        wanted = self.position + count - self._head_start
        until = time.perf_counter() + self.spin_s
        while time.perf_counter() < until and not self.closed:
            for _ in range(_LOOKS_PER_YIELD):
                if words[theirs] >= wanted:
                    return self.available() >= count
            os.sched_yield()  # to other threads, and to the other end on the same core
        return False

    def _sleep(self, count: int, deadline: Deadline) -> None:
        # The other end may have looked just before the flag was set: look once more
        # after a whole millisecond, by when it must see it.
        longest_ms: int | None = _FIRST_SLEEP_MS
        if self._in_order:
            self._words[self._i_sleep] = 1
        try:
            while not self.closed and self.available() < count:
                if not self._poll(count, deadline, longest_ms):
                    longest_ms = None
        finally:
            if self._in_order and not self.closed:
                self._words[self._i_sleep] = 0

    def _poll(self, count: int, deadline: Deadline, longest_ms: int | None) -> bool:
        """Sleep once; whether something woke this end before the time was over."""
        left_ms = deadline.remaining_ms()
        waits = [ms for ms in (left_ms, longest_ms) if ms is not None]
        poller = select.poll()
        for sock in (self._bell, self._sock):
            poller.register(sock.fileno(), select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(min(waits, default=None))]
        if self._bell.fileno() in ready:
            self._hear()
        # Frames sent before the peer closed are read first.
        gone = self._ended or self._sock.fileno() in ready
        if gone and self.available() < count:
            raise peer_closed("the peer closed it")
        # Also after a wake-up: whoever only wakes does not hold this end up.
        if left_ms == 0 and self.available() < count:
            raise peer_timeout()
        return bool(ready)
