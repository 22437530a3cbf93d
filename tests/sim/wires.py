"""Pipes of a group in one process: bounded, and as slow as a schedule says."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from sealift.errors import PeerError
from sealift.ids import Buffer

Delay = Callable[[], None]


class Lane:
    """One direction: blocks its sender at ``room`` bytes, its receiver at none."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._messages: deque[bytes] = deque()
        self._held = 0
        self._over = False
        self._changed = threading.Condition()

    def put(self, message: bytes) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or not self._held or self._held < self._room
            )
            if self._over:
                raise PeerError("the pipe is closed", code="session-closed")
            self._messages.append(message)
            self._held += len(message)
            self._changed.notify_all()

    def get(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._messages)
            if not self._messages:
                raise PeerError("the pipe is closed", code="session-closed")
            message = self._messages.popleft()
            self._held -= len(message)
            self._changed.notify_all()
            return message

    def has_room(self) -> bool:
        with self._changed:
            return not self._held or self._held < self._room

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


class SimulatedWire:
    """One end of two lanes."""

    def __init__(self, out: Lane, back: Lane, delay: Delay) -> None:
        self._out, self._back, self._delay = out, back, delay

    def send(self, source: Buffer) -> None:
        self._delay()
        self._out.put(bytes(source))
        self._delay()

    def send_now(self, source: Buffer) -> bool:
        if self._out.has_room():
            self.send(source)
            return True
        return False

    def receive_into(self, target: bytearray | memoryview) -> None:
        self._delay()
        message = self._back.get()
        if len(message) != len(target):
            raise PeerError(f"{len(message)} bytes came, not {len(target)}")
        target[:] = message

    def close(self) -> None:
        self._out.put(b"closed")
        assert self._back.get() == b"closed"

    def abort(self) -> None:
        self._out.end()
        self._back.end()


def simulated_wires(
    world: int, *, room: int = 1 << 17, delay: Delay = lambda: None
) -> list[dict[int, SimulatedWire]]:
    """Every rank's wires to all others."""
    lanes = {(a, b): Lane(room) for a in range(world) for b in range(world) if a != b}
    return [
        {
            peer: SimulatedWire(lanes[rank, peer], lanes[peer, rank], delay)
            for peer in range(world)
            if peer != rank
        }
        for rank in range(world)
    ]
