"""What a call to the host's stand-in for a device queued, and the one answer of its parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from sealift.errors import AuthenticationError


class Work:
    """What one call queued: an event, and for ``open`` the verdicts.

    Args:
        parts: What runs in the engine's threads.
        failed: What went wrong already, if it ran at once.
        undo: Scrubs what the call wrote.
    """

    def __init__(
        self,
        parts: Iterable[Future[None]] = (),
        failed: BaseException | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        self._parts = list(parts)
        self._undo = undo
        self._failed = failed
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for all parts; when one failed, undo all and raise what it raised."""
        with self._lock:  # nobody hears an answer before it is known and undone
            self._settle()
        if isinstance(self._failed, AuthenticationError):
            raise AuthenticationError
        if self._failed is not None:
            raise self._failed

    def _settle(self) -> None:
        if self._parts:
            # All of them: none may write after the memory was scrubbed.
            errors = [error for part in self._parts if (error := part.exception())]
            self._parts = []
            self._failed = _worst(errors) if errors else None
        if self._failed is not None and self._undo is not None:
            self._undo()
            self._undo = None


def _worst(errors: list[BaseException]) -> BaseException:
    """A tag that failed outranks everything that came of it (rule M3)."""
    failed = [e for e in errors if isinstance(e, AuthenticationError)]
    return (failed or errors)[0]
