"""How a session ends: once, for one reason, which every later call reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.errors import PeerError, SealiftError

TIMEOUT: Final = peer_timeout().code


class Ends(Enum):
    """When a peer error ends the session; every other error does at once."""

    NEVER = auto()  # sending: what the peer said before it left can still be read
    UNLESS_TIMEOUT = auto()
    ALWAYS = auto()


class Lifetime:
    """Alive until the first fatal error or ``end``.

    Args:
        on_end: Called at the end; wipes keys and closes the transport. Idempotent.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
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
    def use(self, ends: Ends) -> Iterator[None]:
        """Refuse after the end, and make errors inside the end as ``ends`` says."""
        if self._end is not None:
            raise _again(self._end)
        try:
            yield
        except SealiftError as error:
            raise self._judge(error, ends) from None

    def _judge(self, error: SealiftError, ends: Ends) -> SealiftError:
        if self._end is not None:
            # Ended under this call: by this very error, or by another thread.
            return error if error is self._cause else _again(self._end)
        if not isinstance(error, PeerError):
            reason = PeerError(
                "the session ended", why=str(error), code="session-ended"
            )
            self.end(reason, error)
        elif ends is Ends.ALWAYS or (
            ends is Ends.UNLESS_TIMEOUT and error.code != TIMEOUT
        ):
            self.end(error, error)
        return error


def _again(end: PeerError) -> PeerError:
    """A fresh error for each call, so that tracebacks do not grow."""
    return PeerError(end.what, why=end.why, fix=end.fix, code=end.code)
