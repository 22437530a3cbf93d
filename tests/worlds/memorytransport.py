"""Frames inside one process: the plainest transport.

A line that wants something otherwise, a fault say, extends ``Line``; two of them make a
pair of ends.
"""

from __future__ import annotations

import threading
from collections import deque

from sealift.channel.transport.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    CopyingSlots,
    check_announced_bytes,
    check_frame_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.ids import Buffer


class Line:
    """One direction: a queue of frames."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._closed = False

    def put(self, frame: bytes) -> None:
        """Let a frame pass."""
        with self._changed:
            if self._closed:
                raise peer_closed()
            self._queue.append(frame)
            self._changed.notify_all()

    def get(self, timeout_s: float | None) -> bytes:
        """The next frame."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed, timeout_s)
            if self._queue:
                return self._queue.popleft()
            raise peer_closed("the peer ended it") if self._closed else peer_timeout()

    def close(self) -> None:
        """No more frames."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class MemoryTransport(CopyingSlots):
    """One end of a pair of lines."""

    def __init__(self, outgoing: Line, incoming: Line, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._outgoing_line = outgoing
        self._incoming_line = incoming
        self._closed = False

    def send(self, frame: Buffer) -> None:
        """Send one frame."""
        check_frame_bytes(len(frame), self.max_frame_bytes)
        self._outgoing_line.put(bytes(frame))

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame."""
        if self._closed:
            raise peer_closed()
        frame = self._incoming_line.get(timeout_s)
        check_announced_bytes(len(frame), self.max_frame_bytes)
        return frame

    def close(self) -> None:
        """Close both directions."""
        self._closed = True
        self._outgoing_line.close()
        self._incoming_line.close()


def memory_pair(
    there: Line | None = None, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
) -> tuple[MemoryTransport, MemoryTransport]:
    """Two connected ends; ``there`` is the line from the first to the second."""
    there, back = there or Line(), Line()
    return (
        MemoryTransport(there, back, max_frame_bytes),
        MemoryTransport(back, there, max_frame_bytes),
    )
