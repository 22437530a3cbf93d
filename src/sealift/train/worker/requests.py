"""What a worker asks its parent within a task: memory that both map, and a bell.

Whoever speaks writes a small head and a message into the area, with a buffer where there
is one, and rings: one byte on the stream between the two. ``read`` and ``write`` of that
byte is all that it takes; the sandbox refuses socket calls. A reply's buffer lies where
the request's lay, so that tensors may be views of the area: one copy out of it, and one
back in. Orders come the same way.

The parent believes nothing (rule N10): it copies head, message and buffer once each into
memory of its own, and checks and uses those copies. Requests are numbered, so that a bell
without a new one ends the task. An area's size is sealed, so that it cannot shrink. It is
made for one worker and never used again: what one wrote, the next does not find. The
parent has a mapping of its own, which nothing done to a descriptor takes away.

A worker maps it without Python's own ``mmap``, which keeps a duplicate of the descriptor
as long as the mapping lives: a recipe would find it, and with it the offset and flags of
the open file (rule N6). Mappings end with the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from typing import Final, NamedTuple

from sealift.channel.record.opener import scrub
from sealift.errors import MalformedError, PeerError, no_room
from sealift.ids import Buffer
from sealift.train.sandbox.kernel import call
from sealift.train.worker.messages import (
    BUFFERED,
    MAX_ORDER_BYTES,
    MAX_REQUEST_BYTES,
    from_bytes,
    to_bytes,
    worker_gone,
)

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TIMED_OUT: Final = "worker-timeout"
Left = Callable[[], float]  # seconds

# Behind the buffers: a head for each of the two, and a message of whoever speaks.
_HEAD: Final = struct.Struct("<QQQQQ")
_HEAD_PLACE_BYTES: Final = 64
_WORKERS, _PARENTS, _MESSAGE = 0, _HEAD_PLACE_BYTES, 2 * _HEAD_PLACE_BYTES
_TALK_BYTES: Final = _MESSAGE + MAX_ORDER_BYTES
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
    buffer: bytes


class Area:
    """The memory, as its parent has it.

    Args:
        length: Bytes of buffers.

    Raises:
        UnavailableError: code ``no-memory``.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        try:
            self._file, self._map = _make(length + _TALK_BYTES)
        except OSError as error:
            raise no_room(f"states of {length} bytes", error) from None

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``."""
        return self._file.fileno()

    def copy(self, start: int, length: int) -> bytes:
        """Bytes of a buffer, read once, into memory of our own (rule N10).

        Raises:
            MalformedError: if they lie outside.
        """
        if not 0 <= start <= start + length <= self.length:
            raise _odd("outside of the area")
        return self._map[start : start + length]

    def place(self, start: int, content: Buffer) -> None:
        """Write a buffer.

        Raises:
            MalformedError: if it would lie outside.
        """
        if not 0 <= start <= start + len(content) <= self.length:
            raise _odd("outside of the area")
        self._map[start : start + len(content)] = content

    def read_head(self) -> Head:
        """What the worker says of its request, read once."""
        at = self.length + _WORKERS
        return Head._make(_HEAD.unpack(self._map[at : at + _HEAD.size]))

    def read_message(self, length: int) -> bytes:
        """The request's message, read once.

        Raises:
            MalformedError: if it is too long.
        """
        if length > MAX_REQUEST_BYTES:
            raise _odd(f"a message of {length} bytes")
        at = self.length + _MESSAGE
        return self._map[at : at + length]

    def write_head(self, head: Head, message: bytes) -> None:
        """Say something to the worker."""
        at = self.length + _MESSAGE
        self._map[at : at + len(message)] = message
        _HEAD.pack_into(self._map, self.length + _PARENTS, *head)

    def overwrite(self) -> None:
        """Write zeroes wherever anything was written."""
        with memoryview(self._map) as whole:
            for start, end in self._written():
                with whole[start:end] as part:
                    scrub(part)

    def close(self) -> None:
        """Overwrite it and give it back; once the worker is gone. Idempotent."""
        if self._map.closed:
            return
        try:
            self.overwrite()
        finally:
            self._map.close()
            self._file.close()

    def _written(self) -> Iterator[tuple[int, int]]:
        """Where pages exist: most of an area has none, and is not to get them."""
        end, length = 0, len(self._map)
        while end < length:
            try:
                start = os.lseek(self.descriptor, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing behind
                    return
                raise
            end = os.lseek(self.descriptor, start, os.SEEK_HOLE)
            yield start, end


def _make(length: int) -> tuple[FileIO, mmap.mmap]:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    descriptor = os.memfd_create("sealift-area", flags)
    try:
        os.ftruncate(descriptor, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        mapped = mmap.mmap(descriptor, length)
        mapped.madvise(mmap.MADV_DONTDUMP)
        mapped.madvise(mmap.MADV_DONTFORK)
    except BaseException:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "r+"), mapped


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
            raise _odd("no room for the reply")
        self._area.place(last.start, buffer)
        raw = b"" if message is None else to_bytes(message)
        if len(raw) > MAX_ORDER_BYTES:
            raise _odd(f"an order of {len(raw)} bytes")
        head = last._replace(message_bytes=len(raw), length=len(buffer))
        self._area.write_head(head, raw)
        _ring(self._stream, self._left_s)

    def hear(self, *kinds: type) -> Request:
        """The worker's next request, or its answer to an order.

        Of a kind that has no buffer none is copied: memory is the parent's, too.

        Raises:
            MalformedError: if it is of none of these kinds, or its head makes no sense.
            PeerError: code ``worker-gone`` or ``worker-timeout``.
        """
        _await_bell(self._stream, self._left_s)
        head = self._area.read_head()
        if head.number != self._last.number + 1:
            raise _odd("a bell without a request")
        self._last = head
        message = from_bytes(self._area.read_message(head.message_bytes), *kinds)
        if head.length and not isinstance(message, BUFFERED):
            raise _odd("a buffer that belongs to nothing")
        return Request(message, self._area.copy(head.start, head.length))


class WorkerEnd:
    """The worker's end; used by any of its threads.

    Args:
        stream: To the parent.
        area: Descriptor of the memory; not used any more once it is mapped.

    Attributes:
        buffers: What both see; also where replies lie, until the next request.
    """

    def __init__(self, stream: int, area: int) -> None:
        self.stream = stream
        self._over = False  # the parent has hung up
        self._turn = threading.Lock()  # a recipe may import in a thread of its own
        self.move(map_area(area, os.fstat(area).st_size))

    def move(self, whole: memoryview) -> None:
        """Go on in another area, from its first request on."""
        self._whole = whole
        self._talk_at = len(whole) - _TALK_BYTES
        self.buffers = whole[: self._talk_at]
        self._number = 0

    def await_order(self, *kinds: type, after: object = None) -> object:
        """The next order, ``after`` the answer to the last one.

        Nobody asks between the two: the parent would not hear it.

        Raises:
            PeerError: code ``worker-gone``: the parent is.
        """
        with self._turn:
            if after is not None:
                self._say(after, 0, 0, 0)
            self._await()
            at = self._talk_at + _MESSAGE
            raw = bytes(self._whole[at : at + self._head().message_bytes])
        return from_bytes(raw, *kinds, max_bytes=MAX_ORDER_BYTES)

    def ask(
        self, message: object, length: int = 0, *, start: int = 0, room: int = 0
    ) -> memoryview:
        """Ask, and wait for the reply's buffer.

        Args:
            message: What is asked.
            length: Of the buffer that belongs to it.
            start: Where it begins in ``buffers``.
            room: Bytes that the reply may take from there on.

        Raises:
            PeerError: code ``worker-gone``: the parent is, or did not hear this.
        """
        with self._turn:
            self._say(message, start, length, room)
            self._await()
            head = self._head()
            if head.number != self._number or head.message_bytes:
                raise worker_gone()
            return self.buffers[start : start + head.length]

    def answer(self, message: object) -> None:
        """Say how an order went."""
        with self._turn:
            self._say(message, 0, 0, 0)

    def await_end(self, answer: object = None) -> None:
        """Give the last answer, if it is still heard; then wait until the parent hangs up."""
        with suppress(PeerError), self._turn:
            if answer is not None and not self._over:
                self._say(answer, 0, 0, 0)
            self._await()

    def _await(self) -> None:
        self._over = True
        _await_bell(self.stream)
        self._over = False

    def _say(self, message: object, start: int, length: int, room: int) -> None:
        raw, at = to_bytes(message), self._talk_at + _MESSAGE
        self._whole[at : at + len(raw)] = raw
        self._number += 1
        head = Head(self._number, len(raw), start, length, room)
        _HEAD.pack_into(self._whole, self._talk_at + _WORKERS, *head)
        _ring(self.stream)

    def _head(self) -> Head:
        return Head._make(_HEAD.unpack_from(self._whole, self._talk_at + _PARENTS))


def _ring(stream: int, left_s: Left | None = None) -> None:
    while True:
        try:
            os.write(stream, _BELL)
        except BlockingIOError:
            _await(stream, select.POLLOUT, left_s)
        except OSError:
            raise worker_gone() from None
        else:
            return


def _await_bell(stream: int, left_s: Left | None = None) -> None:
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
    return PeerError("the recipe's process takes too long", code=TIMED_OUT)


def _odd(why: str) -> MalformedError:
    return MalformedError("not a request", why=why, code="bad-message")


_READ, _WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE


def map_shared(descriptor: int, length: int) -> memoryview:
    """Bytes to read; what the parent writes later is seen here. A write is fatal."""
    return _map(descriptor, length, _READ, mmap.MAP_SHARED).toreadonly()


def map_copy(descriptor: int, length: int) -> memoryview:
    """Bytes to read and change; what is written into them stays here."""
    return _map(descriptor, length, _WRITE, mmap.MAP_PRIVATE)


def map_area(descriptor: int, length: int) -> memoryview:
    """Bytes that the parent reads once they are written."""
    return _map(descriptor, length, _WRITE, mmap.MAP_SHARED)


def _map(descriptor: int, length: int, rights: int, kind: int) -> memoryview:
    address = call("mmap", None, length, rights, kind, descriptor, 0)
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")
