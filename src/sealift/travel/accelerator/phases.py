"""Seconds by phase, of one visit, by a clock that the caller passes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sealift.travel.visit.state import Clock

# Our phases beside the five that the travelling-GPU prototype reports: grab_gpu is
# handshake, import_key is release (once a job), buffer_read and gpu_write are load,
# export_key has no counterpart: no key leaves the accelerator.
PHASES = ("offer", "handshake", "load", "check", "wait", "train", "scrub", "receipt")


class PhaseTimer:
    """Accumulates seconds by phase.

    Args:
        clock: Monotonic seconds.
        tell: Called with each phase as it begins.
    """

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._tell = tell
        self._began: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside; the offer is told by the offer itself."""
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def begin(self, name: str) -> None:
        """A phase begins that another thread may end."""
        if name != "offer":
            self._tell(name)
        self._began[name] = self._clock()

    def end(self, name: str) -> None:
        """It is over, if it goes on at all."""
        began = self._began.pop(name, None)
        if began is not None:
            spent = self._clock() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
