"""A holder's watch over the instance that it gives rows to.

The owner's broker judges the instance's evidence again and again; the holder asks it,
and an answer comes the moment the instance is revoked. Without a good word for longer
than a heartbeat the holder stops as well: silence is no (rule H5). What was given
before is not recalled.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Self

from sealift.errors import PeerError, SealiftError, StaleError
from sealift.release.standing import Standing
from sealift.travel.state import Clock

RETRY_S: Final = 0.1
MARGIN_S: Final = 0.5

Ask = Callable[[float], Standing]


class LeaseWatch:
    """Watches one instance during one visit.

    Args:
        ask: Asks the own broker; waits up to the seconds given for bad news.
        heartbeat_s: Longest time between two good words.
        clock: Monotonic seconds.
        stop: Called once when the instance stands badly: ends the flow of rows.
    """

    def __init__(
        self,
        ask: Ask,
        heartbeat_s: float,
        clock: Clock,
        stop: Callable[[], None],
    ) -> None:
        self._ask = ask
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._stop = stop
        self._over = threading.Event()
        self._rule = ""
        self._good_at_s = clock()

    def require_good(self) -> None:
        """Refuse to go on with an instance that stands badly; ``lease-revoked``."""
        if self._rule or self._clock() > self._good_at_s + self._heartbeat_s + MARGIN_S:
            raise StaleError(
                "the accelerator lost its lease, so it gets no more rows",
                why=self._rule or "our own broker tells of no lease that it holds",
                fix="The audit log of our broker names the rule that failed",
                code="lease-revoked",
            )

    def __enter__(self) -> Self:
        while not self._hear(0.0):  # a broker that was started again knows no lease yet
            self.require_good()
            self._over.wait(RETRY_S)
        self.require_good()
        threading.Thread(target=self._watch, name="lease watch", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                self._hear(self._heartbeat_s / 2)
            except PeerError:
                self._over.wait(RETRY_S)
            except SealiftError as error:
                self._rule = error.code
            try:
                self.require_good()
            except StaleError:
                if not self._over.is_set():
                    self._stop()
                return

    def _hear(self, wait_s: float) -> bool:
        """Ask once; whether an open lease was spoken of, which alone is a good word.

        Of an instance without a lease nobody demands evidence: one that gave its lease
        back, and goes on, would never be missed.
        """
        # A good word counts from when it was asked for: whoever carries the answer
        # may have held it back.
        asked_at_s = self._clock()
        standing = self._ask(wait_s)
        if not standing.good:
            self._rule = standing.rule
        elif standing.due_s:
            self._good_at_s = asked_at_s
        return not standing.good or standing.due_s > 0
