"""The life of one stream: one call at a time, and none after the first error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sealift.errors import UsageError


class Life:
    """Serialises the calls of one stream, and ends it at the first error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.dead = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Enter one call; an exception inside it ends the stream.

        Raises:
            UsageError: if the stream has ended with an error before.
        """
        with self._lock:
            if self.dead:
                raise UsageError(
                    "this sealed stream ended with an error",
                    fix="Start again under a fresh header",
                    code="dead-stream",
                )
            try:
                yield
            except BaseException:
                self.dead = True
                raise
