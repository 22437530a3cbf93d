"""Dial again: a role that lost its relay comes back, with fresh keys, for as long as the job says.

What ends by a decision stays ended: a session that was closed in order, a refusal. What
was cut (the orchestrator was killed, the network is gone) is begun again. Meanwhile
anybody may have the orchestrator's port: whoever does not let us in, whatever it says, is
a dial that failed. A role that was never let in waits for an orchestrator that is not up
yet, says so once, and takes what it is told by whoever listens there for a decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from sealift.errors import MalformedError, PeerError, RefusedError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.session.relay.client import DIAL_TIMEOUT_S

T = TypeVar("T")
Joined = Callable[[], None]
PAUSE_S: Final = 0.1
NOBODY_THERE: Final = "peer-unreachable"
ASKED_TO_END: Final = "role-ended"
_ON_END: Final = (
    "Ask the host to start its command again, then start yours: the job continues from "
    "its checkpoint if it has one"
)
RELAY_GONE: Final = "relay-gone"  # it was there: its orchestrator was killed meanwhile
BROKER_MISSING: Final = "checkpoint-broker-missing"  # it may be coming back as well
CUT: Final = frozenset({
    BROKER_MISSING,
    "name-taken",  # by our former connection, which the relay has not missed yet
    "peer-closed", "peer-timeout", NOBODY_THERE, RELAY_GONE,
    "rank-lost",  # it took the group with it
    "session-truncated", "unknown-peer",
    "state-restored",  # it cut itself off, to go on from a checkpoint
})  # fmt: skip


class Rejoining:
    """Runs a role until it ends by a decision, or stays cut off for too long.

    Args:
        rejoin_s: How long after a cut; 0: not at all.
        sink: Gets ``relay.awaited`` and ``relay.lost``.
        clock: Monotonic seconds.
        pause: Sleeps for so many seconds.
    """

    def __init__(
        self,
        rejoin_s: float,
        *,
        sink: Sink = discard,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rejoin_s = rejoin_s
        self._sink = sink
        self._clock = clock
        self._pause = pause
        self._arrived = False
        self._let_in = False  # by this dial
        self._awaited = False
        self._deadline: float | None = None
        self._missing_until: float | None = None

    @property
    def dial_s(self) -> float:
        """How long one dial may take."""
        if self._deadline is None:
            return DIAL_TIMEOUT_S
        return max(PAUSE_S, min(DIAL_TIMEOUT_S, self._deadline - self._clock()))

    def run(self, serve: Callable[[Joined], T]) -> T:
        """What ``serve`` returns; it calls its argument once it has arrived.

        Raises:
            PeerError, RefusedError, MalformedError: the last one, if it stays cut off.
        """
        while True:
            self._let_in = False
            try:
                return serve(self._join)
            except (PeerError, RefusedError, MalformedError) as error:
                if not self._tries_again(error):
                    if self._deadline is not None and error.code == NOBODY_THERE:
                        error.fix = _ON_END
                    raise
            self._pause(PAUSE_S)

    def _join(self) -> None:
        self._arrived = self._let_in = True
        self._deadline = None

    def _tries_again(self, error: SealiftError) -> bool:
        self._arrived = self._arrived or error.code == RELAY_GONE
        if not self._arrived:
            return self._awaits(error)
        if not self._rejoin_s or not self._was_cut(error):
            return False
        arrived_again = self._deadline is None
        if self._deadline is None:
            self._deadline = self._clock() + self._rejoin_s
            emit(
                self._sink,
                "relay.lost",
                reason=error.code,
                line=str(error),
                rejoin_s=self._rejoin_s,
            )
        if error.code == BROKER_MISSING:  # let in, and no further than before
            self._missing_until = self._missing_until or self._deadline
            return self._clock() < self._missing_until
        if arrived_again:
            self._missing_until = None
        return self._clock() < self._deadline

    def _awaits(self, error: SealiftError) -> bool:
        """Nobody listens there yet, or it is full; a person sees that this waits, and can end it."""
        if error.code not in (NOBODY_THERE, "relay-full"):
            return False
        if not self._awaited:
            self._awaited = True
            emit(self._sink, "relay.awaited", role="orchestrator", why=str(error))
        return True

    def _was_cut(self, error: SealiftError) -> bool:
        """Off a relay that had let us in, or not let in by whoever has its place."""
        if self._let_in:
            return isinstance(error, PeerError) and error.code in CUT
        return error.code != ASKED_TO_END
