"""Keeping the leases of released keys: fresh evidence to every owner that asks for it.

One session with each such owner's broker stays open and is renewed three times a
heartbeat. Whoever refuses our evidence, or cannot be reached for a whole heartbeat, ends
the lease: the keys are forgotten and the work stops. The broker says no by itself
(rule H5); this is the second line, by a clock that runs on while the machine sleeps.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol

from sealift.errors import PeerError, PolicyError, SealiftError
from sealift.events import Sink, emit
from sealift.release.agreement import Agreement
from sealift.release.lease import RenewingSession, give_back_lease, prove_lease
from sealift.release.leasedesk import shortest_heartbeat
from sealift.travel.state import Clock

BEATS: Final = 3  # renewals a heartbeat, so that one may be lost
REFUSED: Final = "peer-refused"


class ReachBroker(Protocol):
    """Opens a session with an owner's broker."""

    def __call__(self, owner: str) -> AbstractContextManager[RenewingSession]:
        """Raises PeerError if it is not there."""
        ...


def heartbeats(agreement: Agreement, owners: Iterable[str]) -> dict[str, float]:
    """The shortest heartbeat of each owner's leases, in seconds; most have none."""
    found: dict[str, float] = {}
    for owner in owners:
        heartbeat_s = shortest_heartbeat(agreement.resources_of(owner))
        if heartbeat_s is not None:
            found[owner] = heartbeat_s
    return found


class LeaseKeeper:
    """Keeps the leases of one job, each from ``begin`` on, until ``close``.

    Args:
        reach: Opens sessions with brokers.
        heartbeats: Seconds by owner.
        clock: Seconds that also count while the machine sleeps.
        lost: Called once with the error when a lease is lost, in a thread of its own.
        sink: Where events go.
    """

    def __init__(
        self,
        reach: ReachBroker,
        heartbeats: dict[str, float],
        *,
        clock: Clock,
        lost: Callable[[SealiftError], None],
        sink: Sink,
    ) -> None:
        self._reach = reach
        self._heartbeats = heartbeats
        self._clock = clock
        self._lost = lost
        self._sink = sink
        self._over = threading.Event()
        self._losing = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, owner: str) -> None:
        """This owner released its keys: from now on its broker wants to hear from us."""
        heartbeat_s = self._heartbeats.get(owner)
        if heartbeat_s is not None:
            thread = threading.Thread(
                target=self._keep,
                args=(owner, heartbeat_s),
                name=f"lease of {owner}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Give the leases back; whoever cannot be reached revokes them for silence."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(2.0)

    def _keep(self, owner: str, heartbeat_s: float) -> None:
        proven_at_s = self._clock()
        while not self._over.is_set():
            try:
                with self._reach(owner) as session:
                    while not self._over.is_set():
                        began_s = self._clock()
                        prove_lease(session, heartbeat_s)
                        proven_at_s = began_s
                        self._over.wait(heartbeat_s / BEATS)
                    give_back_lease(session, heartbeat_s)
            except PeerError as error:
                if error.code == REFUSED or self._silent(proven_at_s, heartbeat_s):
                    return self._lose(owner, error)
                self._over.wait(min(0.1, heartbeat_s / BEATS))
            except SealiftError as error:
                return self._lose(owner, error)
        return None

    def _silent(self, proven_at_s: float, heartbeat_s: float) -> bool:
        return self._clock() - proven_at_s > heartbeat_s

    def _lose(self, owner: str, error: SealiftError) -> None:
        emit(self._sink, "lease.lost", owner=owner, line=str(error))
        with self._losing:
            if self._over.is_set():
                return
            self._over.set()
        with suppress(Exception):
            self._lost(lease_lost(owner, error))


def lease_lost(owner: str, error: SealiftError) -> PolicyError:
    """What the work ends with."""
    return PolicyError(
        f"the lease of the keys of {owner} was lost",
        why=str(error),
        fix="Its broker's audit log names the rule; start again on a clean host",
        code="lease-lost",
    )
