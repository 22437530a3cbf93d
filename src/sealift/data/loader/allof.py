"""Several verdicts that are one: all are waited for, and if one failed, all did."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from sealift.channel.device import Verdicts
from sealift.errors import AuthenticationError, SealiftError


class AllOf:
    """See ``channel.device.Verdicts``; any thread may wait.

    Args:
        parts: The verdicts.
        undo: Run once, before anybody hears that one failed.
    """

    def __init__(
        self, parts: Sequence[Verdicts], undo: Callable[[], None] = lambda: None
    ) -> None:
        self._parts = list(parts)
        self._undo = undo
        self._failed: Exception | None = None
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when every part verified.

        Raises:
            AuthenticationError: if one did not; nothing writes any more.
            UnavailableError: code ``device-lost``, if none failed but that.
        """
        with self._lock:
            self._settle()
        if isinstance(self._failed, AuthenticationError):
            raise AuthenticationError
        if self._failed is not None:
            raise self._failed

    def _settle(self) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            try:
                part.wait()
            except Exception as error:  # each of them ends before the first is told
                if not isinstance(self._failed, AuthenticationError):
                    self._failed = error
        if parts and self._failed is not None:
            with contextlib.suppress(SealiftError):
                self._undo()
