"""Parts of the visit world: a clock, a guarded pool, a line that is listened to."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from sealift.channel.transport.transport import CopyingSlots, Transport, peer_timeout
from sealift.errors import PeerError
from sealift.ids import Buffer, Handle
from sealift.session.lifetime import TIMEOUT

GUARD_BYTES = 64
POLL_S = 0.01


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class GuardedPool:
    """A pool between guards: bytes next to it that nothing may change."""

    def __init__(self, buffer_bytes: int, record_bytes: int) -> None:
        self.handle = Handle.generate()
        self.closed = False
        self._memory = bytearray(secrets.token_bytes(GUARD_BYTES))
        self._places: dict[str, slice] = {}
        for name, size in (("buffer", buffer_bytes), ("quarantine", record_bytes)):
            start = len(self._memory)
            self._places[name] = slice(start, start + size)
            self._memory += bytes(size) + secrets.token_bytes(GUARD_BYTES)
        self._view = memoryview(self._memory)
        self._guards = self._read_guards()

    @property
    def buffer(self) -> memoryview:
        return self._view[self._places["buffer"]]

    @property
    def shared(self) -> Any:
        return SimpleNamespace(view=self.buffer, descriptor=-1)

    @property
    def quarantine(self) -> memoryview:
        return self._view[self._places["quarantine"]]

    def regions(self) -> Mapping[str, memoryview]:
        return {name: self._view[place] for name, place in self._places.items()}

    def close(self) -> None:
        self.closed = True

    @property
    def intact(self) -> bool:
        """Whether everything but the regions is as it was."""
        return self._read_guards() == self._guards

    def _read_guards(self) -> bytes:
        buffer, quarantine = self._places["buffer"], self._places["quarantine"]
        memory = bytes(self._memory)
        between = memory[buffer.stop : quarantine.start]
        return memory[: buffer.start] + between + memory[quarantine.stop :]

    @property
    def scrubbed(self) -> bool:
        """Whether both regions are zero and the pool was given back."""
        return self.closed and not any(any(part) for part in self.regions().values())


class TappedTransport(CopyingSlots):
    """The accelerator's end of a line; while its peer stalls, time flies."""

    def __init__(
        self,
        inner: Transport,
        clock: FakeClock,
        stalled: threading.Event,
        wire: list[bytes],
    ) -> None:
        self.max_frame_bytes = inner.max_frame_bytes
        self._inner, self._clock = inner, clock
        self._stalled, self._wire = stalled, wire

    def send(self, frame: Buffer) -> None:
        self._wire.append(bytes(frame))
        self._inner.send(frame)

    def receive(self, timeout_s: float | None = None) -> bytes:
        while True:
            silent = self._stalled.is_set()
            try:
                frame = self._inner.receive(POLL_S if not silent else 0)
            except PeerError as error:
                if error.code != TIMEOUT:
                    raise
            else:
                self._wire.append(frame)
                return frame
            if silent:
                assert timeout_s is not None, "waits for ever for a holder that stalls"
                self._clock.advance(timeout_s)
                raise peer_timeout()

    def close(self) -> None:
        self._inner.close()
