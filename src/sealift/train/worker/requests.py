"""What a worker asks its parent within a task: memory that both map, and a bell.

Whoever speaks writes a small head and a message into the area, with a buffer where there
is one, and rings: one byte on the stream between the two. ``read`` and ``write`` of that
byte is all that it takes; the sandbox refuses socket calls. A reply's buffer lies where
the request's lay, so that tensors may be views of the area: one copy out of it, and one
back in. Orders come the same way.

The parent believes nothing (rule N10): it copies head, message and buffer once each into
memory of its own, and checks and uses those copies. Requests are numbered, so that a bell
without a new one ends the task. An area's size is sealed, so that it cannot shrink. It is
made for one worker and never given to another: what one wrote, the next does not find, but
for the states that its task ends with. Those stay where they are once the worker is gone;
the next one maps their pages alone, and only to read. The parent maps nothing: it
reads and writes through an open file of its own, which nothing done to a descriptor changes.

The worker's end is ``sandboxed.parentpipe``.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sealift.errors import MalformedError, PeerError, no_room
from sealift.ids import Buffer
from sealift.train.loop.held import PIECE_BYTES, Held, MemoryFile
from sealift.train.worker.messages import (
    BUFFERED,
    MAX_ORDER_BYTES,
    MAX_REQUEST_BYTES,
    Handed,
    from_bytes,
    to_bytes,
    worker_gone,
)

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TIMED_OUT: Final = "worker-timeout"
Left = Callable[[], float]  # seconds
LengthOf = Callable[[object], int]

# Behind the buffers: a head for each of the two, and a message of whoever speaks.
HEAD: Final = struct.Struct("<QQQQQ")
HEAD_PLACE_BYTES: Final = 64
WORKER_AT, PARENT_AT, MESSAGE_AT = 0, HEAD_PLACE_BYTES, 2 * HEAD_PLACE_BYTES
TALK_BYTES: Final = MESSAGE_AT + MAX_ORDER_BYTES
_BELL: Final = b"\1"


class Head(NamedTuple):
    """Says what lies in the area.

    Attributes:
        number: Of the request, counted from 1; a reply and an order have the last one's.
        message_bytes: Of the message.
        start: Where the buffer begins.
        length: Of the buffer.
        room: Bytes from ``start`` on that a reply's buffer may take.
    """

    number: int
    message_bytes: int
    start: int
    length: int
    room: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a worker said, in memory of the parent's own."""

    message: object
    buffer: bytes | Held


class Area:
    """The memory, as its parent has it: a memory file that only the worker maps.

    Args:
        length: Bytes of buffers.

    Raises:
        UnavailableError: code ``no-memory``.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        try:
            self._memory = MemoryFile(length + TALK_BYTES, os.MFD_ALLOW_SEALING)
            fcntl.fcntl(self._memory.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise no_room(f"states of {length} bytes", error) from None
        self._memory.use()
        self._taken: list[tuple[int, int]] = []
        self._open = True

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``."""
        return self._memory.descriptor

    def copy(self, start: int, length: int) -> bytes:
        """Bytes of a buffer, read once, into memory of our own (rule N10).

        Raises:
            MalformedError: if they lie outside.
        """
        self._demand_inside(start, length)
        return self._memory.read(start, length)

    def copy_apart(self, start: int, length: int) -> Held:
        """The same of a long buffer, piece by piece, into a memory file of our own.

        Raises:
            MalformedError: if they lie outside.
            UnavailableError: code ``no-memory``.
        """
        self._demand_inside(start, length)
        made = Held.room(length)
        for at in range(0, length, PIECE_BYTES):
            part = min(PIECE_BYTES, length - at)
            made.write(at, self._memory.read(start + at, part))
        return made

    def take(self, start: int, length: int) -> Held:
        """Bytes of a buffer by reference, once the worker is gone: they outlive ``close``.

        Raises:
            MalformedError: if they lie outside.
        """
        self._demand_inside(start, length)
        self._taken.append((start, start + length))
        return Held(self._memory, start, length)

    def place(self, start: int, content: Buffer) -> None:
        """Write a buffer.

        Raises:
            MalformedError: if it would lie outside.
        """
        self._demand_inside(start, len(content))
        self._memory.write(start, content)

    def _demand_inside(self, start: int, length: int) -> None:
        if not 0 <= start <= start + length <= self.length:
            raise _odd("an address outside of the shared area")

    def read_head(self) -> Head:
        """What the worker says of its request, read once."""
        raw = self._memory.read(self.length + WORKER_AT, HEAD.size)
        return Head._make(HEAD.unpack(raw))

    def read_message(self, length: int) -> bytes:
        """The request's message, read once.

        Raises:
            MalformedError: if it is too long.
        """
        if length > MAX_REQUEST_BYTES:
            raise _odd(f"a message of {length} bytes")
        return self._memory.read(self.length + MESSAGE_AT, length)

    def write_head(self, head: Head, message: bytes) -> None:
        """Say something to the worker."""
        self._memory.write(self.length + MESSAGE_AT, message)
        self._memory.write(self.length + PARENT_AT, HEAD.pack(*head))

    def overwrite(self) -> None:
        """Write zeroes wherever anything was written."""
        self._memory.overwrite(0, self._memory.length)

    def close(self) -> None:
        """Overwrite and give back all that was not taken; once the worker is gone. Idempotent."""
        if not self._open:
            return
        self._open, at = False, 0
        for start, end in sorted(self._taken):
            self._memory.clear(at, start)
            at = end
        self._memory.end_use(at, self._memory.length)


class ParentEnd:
    """The parent's end.

    Args:
        area: Of this worker alone.
        stream: To the worker; it does not block.
        left_s: Seconds left for whatever is under way.
    """

    def __init__(self, area: Area, stream: int, left_s: Left) -> None:
        self._area = area
        self._stream = stream
        self._left_s = left_s
        self._last = Head(0, 0, 0, 0, area.length)

    def move(self, area: Area) -> None:
        """Go on in another area, from its first request on."""
        self._area = area
        self._last = Head(0, 0, 0, 0, area.length)

    def tell(self, message: object = None, buffer: Buffer = b"") -> None:
        """Give an order; or reply, without a message, to the last request.

        Raises:
            MalformedError: if the request has no room for the reply.
            PeerError: code ``worker-gone`` or ``worker-timeout``.
        """
        last = self._last
        if len(buffer) > last.room:
            raise _odd("there is no room for the reply")
        self._area.place(last.start, buffer)
        raw = b"" if message is None else to_bytes(message)
        if len(raw) > MAX_ORDER_BYTES:
            raise _odd(f"a request of {len(raw)} bytes")
        head = last._replace(message_bytes=len(raw), length=len(buffer))
        self._area.write_head(head, raw)
        ring(self._stream, self._left_s)

    def hear(self, *kinds: type, length_of: LengthOf | None = None) -> Request:
        """The worker's next request, or its answer to an order.

        Of a kind that has no buffer none is copied: memory is the parent's, too.

        Args:
            kinds: Of messages.
            length_of: How long the buffer of a message has to be; without, any length.

        Raises:
            MalformedError: if it is of none of these kinds, or its head makes no sense.
            PeerError: code ``worker-gone`` or ``worker-timeout``.
        """
        await_bell(self._stream, self._left_s)
        head = self._area.read_head()
        if head.number != self._last.number + 1:
            raise _odd("a signal without a request")
        self._last = head
        message = from_bytes(self._area.read_message(head.message_bytes), *kinds)
        buffered = isinstance(message, BUFFERED)
        if head.length and not buffered:
            raise _odd("a buffer without a request")
        # Before it is copied (rule O8).
        if buffered and length_of and head.length != length_of(message):
            raise _odd(f"a buffer of {head.length:,} bytes")
        apart = isinstance(message, Handed)  # a whole state
        copy = self._area.copy_apart if apart else self._area.copy
        return Request(message, copy(head.start, head.length))


def ring(stream: int, left_s: Left | None = None) -> None:
    """Say that something was written.

    Raises:
        PeerError: ``worker-gone``, or ``worker-timeout`` once no time is left.
    """
    while True:
        try:
            os.write(stream, _BELL)
        except BlockingIOError:
            _await(stream, select.POLLOUT, left_s)
        except OSError:
            raise worker_gone() from None
        else:
            return


def await_bell(stream: int, left_s: Left | None = None) -> None:
    """Blocks at once: to spin first would take the core that the other end needs."""
    while True:
        _await(stream, select.POLLIN, left_s)
        try:
            rung = os.read(stream, 1)
        except BlockingIOError:
            continue
        except OSError:
            rung = b""
        if not rung:
            raise worker_gone()
        return


def _await(stream: int, event: int, left_s: Left | None) -> None:
    """Wait until something can be read or written, while there is time left at all."""
    if left_s is None:
        return
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(stream, event)
    seconds = left_s()
    if seconds <= 0 or not poll.poll(seconds * 1000):
        raise timed_out()


def timed_out() -> PeerError:
    """The error for a process whose time is over."""
    return PeerError("the recipe's process did not answer in time", code=TIMED_OUT)


def _odd(why: str) -> MalformedError:
    return MalformedError("the message is not a request", why=why, code="bad-message")
