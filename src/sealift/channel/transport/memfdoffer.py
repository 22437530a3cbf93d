"""A private memory file: made by one end, handed over a Unix socket, checked by the other.

The offer is a fixed struct with the shape of both rings, and three descriptors: the file
and the other end of each ring's bell.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import stat
import struct
from array import array
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Final

from sealift import errors
from sealift.channel.transport.ring import (
    CONTROL_BYTES,
    SLOT_HEAD_BYTES,
    WORDS_PER_RING,
    RingPlace,
)
from sealift.channel.transport.transport import peer_closed, peer_timeout
from sealift.errors import MalformedError, RefusedError, UnavailableError

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


def send_offer(sock: socket.socket, shape: MemoryShape, memory_file: int) -> Bells:
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


def map_file(memory_file: int, file_bytes: int) -> mmap.mmap:
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
