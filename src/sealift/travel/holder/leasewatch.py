"""A holder's watch over the instance that it gives rows to.

The owner's broker judges the instance's evidence again and again; the holder asks it,
and an answer comes the moment the instance is revoked. Without a good word for longer
than a heartbeat no frame goes out; without one for a whole lease, or once the lease was
revoked, nothing goes to that instance any more: silence is no (rule H5). What was given
before is not recalled.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sealift.errors import SealiftError, StaleError
from sealift.events import Sink, discard
from sealift.release.agreement import KeyLease
from sealift.release.broker.standing import HEARTBEAT_MISSING, Standing
from sealift.release.client.broker import BrokerRefusedError
from sealift.travel.holder.watcher import Watcher
from sealift.travel.visit.state import Clock

RETRY_S: Final = 0.1
MARGIN_S: Final = 0.5

Ask = Callable[[float], Standing]


class LeaseWatch:
    """Watches one instance, for all visits to it.

    Args:
        ask: Asks the own broker; waits up to the seconds given for bad news.
        lease: What our rule says of keys.
        clock: Monotonic seconds.
        sink: Where events go.
    """

    def __init__(
        self, ask: Ask, lease: KeyLease, clock: Clock, sink: Sink = discard
    ) -> None:
        self._ask = ask
        self._lease = lease
        self._clock = clock
        self._rule = ""
        self._heard = False  # a good word, and none since that says otherwise
        self._good_at_s = clock()
        self._changed = threading.Condition()
        self._stops: set[Callable[[], None]] = set()
        self._watcher = Watcher("lease", self._look, broken=self._break, sink=sink)

    @contextmanager
    def visit(self, stop: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """What to ask before each frame; it waits while the instance is silent.

        Args:
            stop: Called once the lease has ended: ends the flow of rows.

        Raises:
            StaleError: ``lease-revoked``; or no good word within a heartbeat.
        """
        self._require_good(self._lease.heartbeat_s + MARGIN_S)
        with self._changed:
            self._stops.add(stop)
        try:
            self.require_good()
            yield self.require_good
        finally:
            with self._changed:
                self._stops.discard(stop)

    def require_good(self) -> None:
        """Wait until the instance is known to stand well, or raise ``lease-revoked``."""
        self._require_good(self._lease.lease_s + MARGIN_S)

    def standing(self) -> str:
        """Wait likewise; why it gets no more rows, or nothing: what decides is told."""
        try:
            self.require_good()
        except StaleError:
            return self._rule or HEARTBEAT_MISSING
        return ""

    def start(self) -> None:
        """Begin to ask."""
        self._watcher.start()

    def close(self) -> None:
        """Ask no more."""
        self._watcher.stop()

    def _require_good(self, patience_s: float) -> None:
        deadline_s = self._clock() + patience_s
        with self._changed:
            while not self._is_good():
                if self._ended() or self._clock() >= deadline_s:
                    raise StaleError(
                        "the accelerator lost its lease, so it gets no more rows",
                        why=self._rule
                        or "our own broker tells of no lease that it holds",
                        code="lease-revoked",
                    )
                self._changed.wait(RETRY_S)

    def _is_good(self) -> bool:
        recent = self._clock() <= self._good_at_s + self._lease.heartbeat_s + MARGIN_S
        return not self._rule and self._heard and recent

    def _ended(self) -> bool:
        silent_s = self._clock() - self._good_at_s
        return bool(self._rule) or silent_s > self._lease.lease_s + MARGIN_S

    def _look(self) -> float | None:
        pause_s = RETRY_S
        try:
            self._hear(self._lease.heartbeat_s / 2 if self._heard else 0.0)
        except BrokerRefusedError as error:
            self._say(error.rule)
        except SealiftError:  # away, or altered on the way: it is asked again
            pass
        else:
            pause_s = 0.0 if self._heard else RETRY_S
        if self._ended():
            self._stop_all()
            return None
        return pause_s

    def _hear(self, wait_s: float) -> None:
        """Ask once. Only an open lease is a good word.

        Of an instance without a lease nobody demands evidence: one that gave its lease
        back, and goes on, would never be missed.
        """
        # A good word counts from when it was asked for: whoever carries the answer
        # may have held it back.
        asked_at_s = self._clock()
        standing = self._ask(wait_s)
        if not standing.good and not standing.ends_s:
            self._say(standing.rule or HEARTBEAT_MISSING)
            return
        with self._changed:
            self._heard = standing.good and standing.due_s > 0
            if self._heard:
                self._good_at_s = asked_at_s
            self._changed.notify_all()

    def _say(self, rule: str) -> None:
        with self._changed:
            self._rule = rule
            self._changed.notify_all()

    def _stop_all(self) -> None:
        with self._changed:
            stops = tuple(self._stops)
        for stop in stops:
            stop()

    def _break(self, error: BaseException) -> None:
        """A bug of ours: without a watch no rows go out."""
        self._say("watch-broken")
        self._stop_all()
