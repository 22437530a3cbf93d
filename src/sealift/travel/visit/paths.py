"""What frames cross on: the session through the relay, or a direct transport.

Both ends see the same few calls: a holder asks a sink for `room` in which it builds the
next frame (which waits while too many are under way), has it sent, and has the sink finish
when every frame was sent; an accelerator asks a source for the next `frame`, in memory that
nobody but its sender could still write, and says that it `took` it. Through the relay a window of frames is under way and
credits open it; a direct transport has slots, or a socket's buffers, that do the same.
A party that gives up says so in the session, whichever path its frames take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sealift.channel.transport.transport import SlotTransport, peer_timeout
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.session.session import Session
from sealift.travel.visit.messages import (
    Credit,
    Failed,
    FailedError,
    parse_message,
    receive_message,
    send_message,
)

WINDOW_FRAMES: Final = 16
CREDIT_EVERY: Final = 4  # a credit costs a sealed message, a window must outlast it
LAST_WORDS_S: Final = 1.0
SCRUB_S: Final = 10.0  # an accelerator scrubs before it says why it took no more
TIMEOUT: Final = peer_timeout().code
Remaining = Callable[[], float]


class RelayedSink:
    """Frames inside the session; at most ``window`` are not acknowledged.

    Args:
        remaining_s: What is left of the lease; raises when nothing is.
    """

    def __init__(self, session: Session, window: int, remaining_s: Remaining) -> None:
        self._session = session
        self._window = window
        self._remaining_s = remaining_s
        self._memory = bytearray()
        self._room = memoryview(b"")
        self._sent = self._acknowledged = 0

    def room(self, frame_bytes: int) -> memoryview:
        """Wait for credit; the memory is used again for every frame."""
        while self._sent - self._acknowledged >= self._window:
            self._credit()
        if len(self._memory) < frame_bytes:
            self._memory = bytearray(frame_bytes)
        self._room = memoryview(self._memory)[:frame_bytes]
        return self._room

    def send(self) -> None:
        """Send what was built."""
        self._session.send_raw(self._room)
        self._sent += 1

    def finish(self) -> None:
        """Wait until every frame is acknowledged."""
        while self._acknowledged < self._sent:
            self._credit()

    def _credit(self) -> None:
        credit = receive_message(self._session, Credit, timeout_s=self._remaining_s())
        self._acknowledged = credit.frames


class RelayedSource:
    """Frames inside the session, acknowledged every few."""

    def __init__(self, session: Session, remaining_s: Remaining) -> None:
        self._session = session
        self._remaining_s = remaining_s
        self._taken = 0

    def frame(self) -> memoryview:
        """The next frame; what is not one ends the visit."""
        incoming = self._session.receive_any(self._remaining_s())
        if incoming.raw:
            return memoryview(incoming.payload)
        raise _gave_up(incoming.payload)

    def took(self, *, last: bool) -> None:
        """Acknowledge every fourth frame and the last."""
        self._taken += 1
        if last or self._taken % CREDIT_EVERY == 0:
            # A holder that is gone may have said why: the next receive tells.
            with suppress(PeerError):
                send_message(self._session, Credit(self._taken))


class DirectSink:
    """Frames built in the transport's own memory."""

    def __init__(
        self, transport: SlotTransport, session: Session, remaining_s: Remaining
    ) -> None:
        self._transport = transport
        self._session = session
        self._remaining_s = remaining_s

    def room(self, frame_bytes: int) -> memoryview:
        """The transport's next slot."""
        with _last_words(self._session, SCRUB_S):
            return self._transport.reserve(frame_bytes, self._remaining_s())

    def send(self) -> None:
        """Send what was built."""
        with _last_words(self._session, SCRUB_S):
            self._transport.commit()

    def finish(self) -> None:
        """Nothing to wait for: the session's next message says that it was all."""


class DirectSource:
    """Frames where they lie in the transport's memory."""

    def __init__(
        self, transport: SlotTransport, session: Session, remaining_s: Remaining
    ) -> None:
        self._transport = transport
        self._session = session
        self._remaining_s = remaining_s

    def frame(self) -> memoryview:
        """The next frame, borrowed."""
        with _last_words(self._session, LAST_WORDS_S):
            return self._transport.borrow(self._remaining_s())

    def took(self, *, last: bool) -> None:
        """Give the slot back."""
        self._transport.give_back()


@contextmanager
def _last_words(session: Session, wait_s: float) -> Iterator[None]:
    """A direct path that ends: its other end may have said why, in the session."""
    try:
        yield
    except PeerError as error:
        incoming = None
        if error.code != TIMEOUT:
            with suppress(PeerError):
                incoming = session.receive_any(wait_s)
        if incoming is None or incoming.raw:
            raise
        raise _gave_up(incoming.payload) from None


def _gave_up(message: bytes) -> SealiftError:
    """The error that a message is where a frame should be."""
    try:
        failed = parse_message(message, (Failed,))
    except MalformedError:
        return MalformedError(
            "expected a raw frame", why="a message came", code="unexpected-frame"
        )
    assert isinstance(failed, Failed)
    return FailedError(failed)
