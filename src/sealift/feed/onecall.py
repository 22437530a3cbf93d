"""One call at a time at each end of a link: all of them use the same memory."""

from __future__ import annotations

import threading

from sealift.errors import UsageError


class OneCall:
    """Entered around every call; a second one meanwhile is refused, and harms nothing.

    It is not made to wait: what feeds a link would wait for itself, if it sent, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "this end of the link is in the midst of another call",
                code="link-in-use",
            )

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
