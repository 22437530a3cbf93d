"""The life of one stream: one call at a time, and none after the first error."""

from __future__ import annotations

import threading

from sealift.errors import UsageError


class Life:
    """Entered around every call; an exception inside ends the stream for ever.

    A stream that another thread closed meanwhile refuses at the end of the call too: its
    memory may have been scrubbed under the call.
    A class rather than a generator because bulk streams enter it for every record.
    """

    __slots__ = ("_lock", "dead")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.dead = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.dead:
            self._lock.release()
            raise dead_stream()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        closed_meanwhile = self.dead
        if kind is not None:
            self.dead = True
        self._lock.release()
        if kind is None and closed_meanwhile:
            raise dead_stream()


def dead_stream() -> UsageError:
    """What is told of a stream that is over."""
    return UsageError(
        "this sealed stream is closed, or ended with an error", code="dead-stream"
    )
