"""How a session ends: once, for one reason, which every later call reports.

``Watchdog`` ends what takes too long: one thread for all who wait, while somebody does.
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
from enum import Enum, auto
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.errors import PeerError, SealiftError

TIMEOUT: Final = peer_timeout().code
ENDED_HERE: Final = "session-ended"  # by an error that another call raised
GiveUp = Callable[[], None]


class EndPolicy(Enum):
    """When a peer error ends the session; every other error does at once."""

    NEVER = auto()  # sending: what the peer said before it left can still be read
    UNLESS_TIMEOUT = auto()
    ALWAYS = auto()


class Lifetime:
    """Alive until the first fatal error or ``end``.

    Args:
        on_end: Called at the end; wipes keys and closes the transport. Idempotent.
        ended: What is said of it afterwards, if it failed.
    """

    def __init__(
        self, on_end: Callable[[], None], ended: str = "the session ended"
    ) -> None:
        self._on_end = on_end
        self._ended = ended
        self._end: PeerError | None = None
        self._cause: SealiftError | None = None

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self._end is not None

    def end(self, reason: PeerError, cause: SealiftError | None = None) -> None:
        """End it, if it has not ended already."""
        if self._end is None:
            self._end, self._cause = reason, cause
            self._on_end()

    @contextmanager
    def use(self, ends: EndPolicy) -> Iterator[None]:
        """Refuse after the end, and make errors inside the end as ``ends`` says."""
        if self._end is not None:
            raise _again(self._end)
        try:
            yield
        except SealiftError as error:
            raise self._judge(error, ends) from None

    def _judge(self, error: SealiftError, ends: EndPolicy) -> SealiftError:
        if self._end is not None:
            # Ended under this call: by this very error, or by another thread.
            return error if error is self._cause else _again(self._end)
        if not isinstance(error, PeerError):
            reason = PeerError(self._ended, why=str(error), code=ENDED_HERE)
            self.end(reason, error)
        elif ends is EndPolicy.ALWAYS or (
            ends is EndPolicy.UNLESS_TIMEOUT and error.code != TIMEOUT
        ):
            self.end(error, error)
        return error


def _again(end: PeerError) -> PeerError:
    """A fresh error for each call, so that tracebacks do not grow."""
    return PeerError(end.what, why=end.why, fix=end.fix, code=end.code)


class Watchdog:
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
            target=self._watch, name="watchdog", daemon=True
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
