"""One loop for every thread that watches: statements, leases, owners, our own standing.

What the system refuses for a moment (no descriptors, a full disk, no memory) is told once
and tried again; nothing that ends a watch ends it alone. Any other error is a bug of
ours: whoever relies on the watch is told, and stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sealift.errors import SealiftError
from sealift.events import Sink, emit, unfailing

RETRY_S: Final = 0.5

Look = Callable[[], float | None]
_PASSES: Final = (SealiftError, OSError, MemoryError)


class Watcher:
    """Looks again and again in a thread of its own, until it is stopped.

    Args:
        name: Of the thread, and in events.
        look: Looks once; seconds until the next time, or None to end.
        broken: Called once with what no pause mends; ends what relies on the watch.
        sink: Gets ``watch.failing`` and ``watch.mended``.
    """

    def __init__(
        self,
        name: str,
        look: Look,
        *,
        broken: Callable[[BaseException], None],
        sink: Sink,
    ) -> None:
        self._name = name
        self._look = look
        self._broken = broken
        self._sink = unfailing(sink)
        self._failing = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, wait_s: float = 0.0) -> None:
        """Look no more; safe to repeat, from any thread."""
        self._over.set()
        if wait_s and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    @property
    def over(self) -> bool:
        """Whether it was stopped, or is at its end."""
        return self._over.is_set()

    def _run(self) -> None:
        pause_s: float | None = 0.0
        try:
            while pause_s is not None and not self._over.wait(pause_s):
                pause_s = self._look_once()
        except BaseException as error:
            self._broken(error)
        finally:
            self._over.set()

    def _look_once(self) -> float | None:
        try:
            pause_s = self._look()
        except _PASSES as error:
            self._tell("watch.failing", failing=True, line=str(error))
            return RETRY_S
        self._tell("watch.mended", failing=False)
        return pause_s

    def _tell(self, kind: str, *, failing: bool, **fields: str) -> None:
        """Once when it begins, and once when it is over."""
        if failing is not self._failing:
            self._failing = failing
            emit(self._sink, kind, watch=self._name, **fields)
