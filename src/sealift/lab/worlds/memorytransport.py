"""Frames inside one process, over a line that can be told to misbehave.

The faults are those of a hostile network: drop, flip, duplicate, hold back (reorder),
delay, truncate. Tests and the attack table use it; it is also the plainest transport.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sealift.channel.transport.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    CopyingSlots,
    Deadline,
    check_announced_bytes,
    check_frame_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.ids import Buffer

FaultKind = Literal["drop", "flip", "duplicate", "hold", "delay", "truncate"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with one frame.

    Attributes:
        kind: What happens.
        frame: Number of the frame it happens to, from 0, per direction.
        amount: flip: the byte; truncate: bytes kept; hold: how many later frames pass
            first; delay: seconds.
    """

    kind: FaultKind
    frame: int
    amount: float = 1


class Line:
    """One direction: a queue of frames, and the faults on it."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = {fault.frame: fault for fault in faults}
        self._changed = threading.Condition()
        self._queue: deque[tuple[float, bytes]] = deque()
        self._held: list[tuple[int, bytes]] = []
        self._count = 0
        self._closed = False

    def put(self, frame: bytes) -> None:
        """Let a frame pass, or what the faults make of it."""
        with self._changed:
            if self._closed:
                raise peer_closed()
            number, self._count = self._count, self._count + 1
            self._pass(number, frame)
            self._release_held(number)
            self._changed.notify_all()

    def get(self, timeout_s: float | None) -> bytes:
        """The next frame that is due."""
        deadline = Deadline(timeout_s)
        with self._changed:
            while True:
                wait_s = self._until_due()
                if wait_s is not None and wait_s <= 0:
                    return self._queue.popleft()[1]
                if wait_s is None and self._closed:
                    raise peer_closed("the peer ended it")
                left_s = deadline.remaining_s()
                if left_s is not None and left_s <= 0:
                    raise peer_timeout()
                waits = [w for w in (wait_s, left_s) if w is not None]
                self._changed.wait(min(waits, default=None))

    def close(self) -> None:
        """No more frames; those held back are let go."""
        with self._changed:
            self._closed = True
            self._queue.extend((0.0, frame) for _, frame in self._held)
            self._held = []
            self._changed.notify_all()

    def _until_due(self) -> float | None:
        return self._queue[0][0] - time.monotonic() if self._queue else None

    def _pass(self, number: int, frame: bytes) -> None:
        fault = self._faults.get(number)
        if fault is None:
            self._queue.append((0.0, frame))
        elif fault.kind == "hold":
            self._held.append((number + int(fault.amount), frame))
        elif fault.kind == "delay":
            self._queue.append((time.monotonic() + fault.amount, frame))
        else:
            self._queue.extend((0.0, left) for left in _spoil(fault, frame))

    def _release_held(self, number: int) -> None:
        due = [frame for until, frame in self._held if until <= number]
        self._held = [held for held in self._held if held[0] > number]
        self._queue.extend((0.0, frame) for frame in due)


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
    faults: Sequence[Fault] = (),
    *,
    faults_back: Sequence[Fault] = (),
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> tuple[MemoryTransport, MemoryTransport]:
    """Two connected ends; ``faults`` befall frames from the first to the second."""
    there, back = Line(faults), Line(faults_back)
    return (
        MemoryTransport(there, back, max_frame_bytes),
        MemoryTransport(back, there, max_frame_bytes),
    )


def _spoil(fault: Fault, frame: bytes) -> list[bytes]:
    if fault.kind == "drop":
        return []
    if fault.kind == "duplicate":
        return [frame] * (1 + int(fault.amount))
    if fault.kind == "truncate":
        return [frame[: int(fault.amount)]]
    position = int(fault.amount) % max(1, len(frame))
    flipped = bytearray(frame)
    flipped[position : position + 1] = bytes([flipped[position] ^ 0xFF])
    return [bytes(flipped)]
