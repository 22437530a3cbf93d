"""What a stream needs of a connection: whole frames, in either direction.

A transport promises nothing about secrecy or integrity; sealed streams bring both. It
keeps frames whole, refuses frames above its limit, and turns a silent or vanished peer
into ``PeerError``. One thread may send while another receives.
Here are the protocols and what their implementations share; ``tcp.py``, ``memfd.py`` and
the relay's circuits are the implementations, under one contract test.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Final, Protocol

from sealift.errors import MalformedError, PeerError, UsageError
from sealift.ids import Buffer

DEFAULT_MAX_FRAME_BYTES: Final = 8 << 20
DEFAULT_SEND_TIMEOUT_S: Final = 60.0


class Transport(Protocol):
    """Whole frames over some connection."""

    max_frame_bytes: int

    @property
    def descriptor(self) -> int | None:
        """What the system says of when something came; None where it cannot, or no more."""

    @property
    def has_ahead(self) -> bool:
        """Whether something came that the system will not tell of again."""

    def send(self, frame: Buffer) -> None:
        """Send one frame.

        Raises:
            PeerError: if the peer is gone, or takes nothing for too long.
            UsageError: if the frame is above ``max_frame_bytes``.
        """

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a frame can be sent now without waiting for the other end.

        Only whoever sends here may ask; False is always a right answer.
        """

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame, in private memory; None waits for ever.

        After a timeout no byte is lost: the next call goes on.

        Raises:
            PeerError: on timeout (code ``peer-timeout``) or end (``peer-closed``).
            MalformedError: if the peer announces a frame above the limit.
        """

    def close(self) -> None:
        """End the connection; frames already sent may still arrive. Idempotent."""


class SlotTransport(Transport, Protocol):
    """A transport that lends its memory, so that bulk frames are not copied."""

    def reserve(self, frame_bytes: int, timeout_s: float | None = None) -> memoryview:
        """Private memory to write the next frame into, sent by ``commit``."""

    def commit(self) -> None:
        """Send what was written to the reserved memory."""

    def borrow(self, timeout_s: float | None = None) -> memoryview:
        """The next frame, in memory that nobody but this end and the sender can write.

        It may be opened where it lies (rule H3), and is valid until ``give_back``.
        """

    def give_back(self) -> None:
        """Return the borrowed memory."""


class CopyingSlots(ABC):
    """``reserve`` to ``give_back`` for transports that move frames by copying."""

    _outgoing: memoryview | None = None
    _room: bytearray | None = None
    _send_timeout_s = DEFAULT_SEND_TIMEOUT_S
    descriptor: int | None = None
    has_ahead = False

    @abstractmethod
    def send(self, frame: Buffer) -> None:
        """Send one frame."""

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame."""

    def reserve(self, frame_bytes: int, timeout_s: float | None = None) -> memoryview:
        """Private memory to write the next frame into.

        Does not wait: sending it does, from now on for ``timeout_s`` while nothing is taken.
        """
        if self._outgoing is not None:
            raise UsageError("the reserved frame was not committed yet")
        if timeout_s is not None:
            self._send_timeout_s = timeout_s
        if self._room is None or len(self._room) < frame_bytes:
            self._room = bytearray(frame_bytes)
        self._outgoing = memoryview(self._room)[:frame_bytes]
        return self._outgoing

    def commit(self) -> None:
        """Send what was written to the reserved memory."""
        if self._outgoing is None:
            raise UsageError("there is no reserved frame")
        frame, self._outgoing = self._outgoing, None
        self.send(frame)

    def has_room(self, frame_bytes: int) -> bool:
        """Not known."""
        return False

    def borrow(self, timeout_s: float | None = None) -> memoryview:
        """The next frame; private, because it was copied here."""
        return memoryview(self.receive(timeout_s))

    def give_back(self) -> None:  # noqa: B027 - empty is what a copy needs
        """Nothing to return: the frame was a copy."""


class Deadline:
    """A point in monotonic time; None is never."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def remaining_s(self) -> float | None:
        """Seconds left, at least zero; None for ever."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def remaining_ms(self) -> int | None:
        """Milliseconds left, rounded up, as ``poll`` takes them."""
        left = self.remaining_s()
        return None if left is None else int(left * 1000 + 0.999)


def peer_timeout() -> PeerError:
    """The peer said nothing in time."""
    return PeerError("the peer did not answer in time", code="peer-timeout")


def peer_closed(why: str | Exception = "") -> PeerError:
    """The peer, or this end, closed the connection."""
    return PeerError("the connection is closed", why=why, code="peer-closed")


def check_frame_bytes(frame_bytes: int, max_frame_bytes: int) -> None:
    """Refuse to send a frame above the limit.

    Raises:
        UsageError: if it is.
    """
    if frame_bytes > max_frame_bytes:
        raise UsageError(
            f"a frame of {frame_bytes:,} bytes exceeds the limit of {max_frame_bytes:,}",
            code="frame-too-long",
        )


def check_announced_bytes(frame_bytes: int, max_frame_bytes: int) -> None:
    """Refuse to take a frame above the limit.

    Raises:
        MalformedError: if it is.
    """
    if frame_bytes > max_frame_bytes:
        raise MalformedError(
            f"the peer announced a frame of {frame_bytes:,} bytes",
            why=f"the limit is {max_frame_bytes:,} bytes",
            code="frame-too-long",
        )
