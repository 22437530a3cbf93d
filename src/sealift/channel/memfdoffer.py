"""A private memory file: made by one end, handed over a Unix socket, checked by the other.

The offer is a fixed struct with the shape of both rings, and five descriptors: the file
and two eventfds for each ring.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Final

from sealift.channel.ring import (
    CONTROL_BYTES,
    SLOT_HEAD_BYTES,
    WORDS_PER_RING,
    RingPlace,
)
from sealift.channel.transport import peer_closed, peer_timeout
from sealift.errors import MalformedError, RefusedError, UnavailableError

MAX_RING_BYTES: Final = 1 << 30
_ALIGNMENT_BYTES: Final = 64
_OFFER: Final = struct.Struct(">8sQIQI")
_OFFER_MAGIC: Final = b"SEALRNG\x04"
_NUM_DESCRIPTORS: Final = 5
_SIZE_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(
    fcntl, "F_SEAL_GROW", 4
)
_SEALS: Final = _SIZE_SEALS | getattr(fcntl, "F_SEAL_SEAL", 1)


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

    def places(self, counters: list[int]) -> tuple[RingPlace, RingPlace]:
        """Both rings, with their eventfds."""
        there = RingPlace(0, CONTROL_BYTES, self.there_bytes, self.there, *counters[:2])
        back = RingPlace(
            WORDS_PER_RING, self.back_start, self.back_bytes, self.back, *counters[2:]
        )
        return there, back


def send_offer(sock: socket.socket, shape: MemoryShape, descriptors: list[int]) -> None:
    """Hand the descriptors over; they are closed if that fails.

    Raises:
        PeerError: if nobody is there any more.
    """
    offer = _OFFER.pack(_OFFER_MAGIC, *astuple(shape))
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    try:
        sock.sendmsg([offer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        close_all(descriptors)
        raise peer_closed(error.strerror or "") from None


def take_offer(
    sock: socket.socket,
    timeout_s: float,
    *,
    private: bool = True,
    max_bytes: int = MAX_RING_BYTES,
) -> tuple[MemoryShape, list[int]]:
    """Receive and check an offer.

    Raises:
        PeerError: if none came.
        MalformedError: if it does not parse.
        RefusedError: code ``memory-not-private``, unless ``private`` is not asked for.
    """
    offer, descriptors = _receive_offer(sock, timeout_s)
    try:
        return _parse_offer(offer, descriptors, private, max_bytes), descriptors
    except BaseException:
        close_all(descriptors)
        raise


def aligned(slot_bytes: int) -> int:
    """Rounded up, so that every slot begins at a cache line."""
    return -(-slot_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def make_descriptors(
    shape: MemoryShape, make_file: Callable[[int], int] | None = None
) -> list[int]:
    """A memory file of that shape, and the eventfds of its rings.

    Args:
        shape: Its rings.
        make_file: Makes a file of so many bytes; a private memory file by default.

    Raises:
        UnavailableError: if this system has no memory files, or no memory.
    """
    if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
        raise UnavailableError(
            "this system has no anonymous memory files",
            fix="Use TCP between the two ends",
            code="no-memfd",
        )
    made: list[int] = []
    try:
        made.append((make_file or _private_file)(shape.file_bytes))
        mode = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        made.extend(os.eventfd(0, mode) for _ in range(_NUM_DESCRIPTORS - 1))
    except OSError as error:
        close_all(made)
        raise UnavailableError(
            "cannot make a private memory file",
            why=error.strerror or "",
            fix="Free some memory or file descriptors",
            code="no-memfd",
        ) from error
    return made


def _private_file(file_bytes: int) -> int:
    descriptor = os.memfd_create("sealift", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, file_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


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
        close_all(descriptors)
        raise peer_closed("it ended before its offer")
    return offer, descriptors


def _parse_offer(
    offer: bytes, descriptors: list[int], private: bool, max_bytes: int
) -> MemoryShape:
    if len(offer) != _OFFER.size or len(descriptors) != _NUM_DESCRIPTORS:
        raise MalformedError("the offer of a memory file is malformed")
    magic, *sizes = _OFFER.unpack(offer)
    shape = MemoryShape(*sizes)
    if magic != _OFFER_MAGIC or 0 in sizes or shape.file_bytes > max_bytes:
        raise MalformedError("the offer of a memory file is malformed")
    for descriptor in descriptors[1:]:
        _check_counter(descriptor)
    if private:
        _check_private(descriptors[0], shape.file_bytes)
    elif os.fstat(descriptors[0]).st_size < shape.file_bytes:
        raise MalformedError("the offer of a memory file is malformed")
    return shape


def _check_counter(descriptor: int) -> None:
    """Refuse what is no eventfd, or one that would wait: this end writes and reads it."""
    anonymous = stat.S_IFMT(os.fstat(descriptor).st_mode) == 0
    if not anonymous or os.get_blocking(descriptor):
        raise MalformedError("what the offer wakes with is no eventfd")


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


def close_all(descriptors: list[int]) -> None:
    """Close every one."""
    for descriptor in descriptors:
        os.close(descriptor)
