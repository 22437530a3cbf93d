"""Give up on what takes too long: one thread for all who wait, while somebody does.

Everybody waits equally long, so whoever came first is due first, and nobody who comes
later has to wake the thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GiveUp = Callable[[], None]


class Impatience:
    """Calls ``give_up`` of whoever has not left after a while.

    Args:
        after_s: Seconds that everybody gets.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._waiting: deque[tuple[float, list[GiveUp]]] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def limit(self, give_up: GiveUp) -> Iterator[None]:
        """Call ``give_up`` if the block takes too long, from another thread."""
        mine = [give_up]
        with self._lock:
            self._waiting.append((time.monotonic() + self._after_s, mine))
            if self._thread is None:
                self._start()
        try:
            yield
        finally:
            mine.clear()

    def _forget(self) -> None:
        """Nobody waits; in a forked child neither thread nor waiters are left."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._thread = None

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._watch, name="impatience", daemon=True
        )
        self._thread.start()

    def _watch(self) -> None:
        while (pause_s := self._next_s()) is not None:
            time.sleep(pause_s)
            if late := self._pop_late():
                late[0]()  # may take long, or fail: another thread watches by now
                return

    def _pop_late(self) -> list[GiveUp]:
        """Whoever was first, or nobody if it has left."""
        with self._lock:
            _, entry = self._waiting.popleft()
            late = entry[:]
            if late:
                self._start()
        return late

    def _next_s(self) -> float | None:
        """Seconds until somebody is late; None, and the thread ends, if nobody can be."""
        with self._lock:
            while self._waiting and not self._waiting[0][1]:
                self._waiting.popleft()
            if not self._waiting:
                self._thread = None
                return None
            return max(0.0, self._waiting[0][0] - time.monotonic())
