"""Keeping the leases of released keys: fresh evidence to every owner that asks for it.

One session with each such owner's broker stays open and is renewed three times a
heartbeat; one that breaks is begun again. While a broker is silent for longer than its
heartbeat, work with that owner's rows pauses; for longer than its lease, and its keys are
forgotten. A broker that refuses our evidence ends all work here; one that says that its
owner left, or that the agreement ended, ends what it says (rule H5: the broker says no by
itself, this is the second line). Clocks run on while the machine sleeps.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Final

from sealift.errors import PeerError, PolicyError, SealiftError
from sealift.events import Sink, emit, unfailing
from sealift.release.agreement import Agreement, KeyLease
from sealift.release.agreement.statements import ENDS
from sealift.release.broker.leases import shortest_lease
from sealift.release.client import (
    BrokerRefusedError,
    give_back_lease,
    prove_lease,
)
from sealift.session.session import Session
from sealift.travel.holder.watches import Watcher
from sealift.travel.visit.state import Clock

BEATS: Final = 3  # renewals a heartbeat, so that one may be lost
REFUSED: Final = "peer-refused"
REFUSALS: Final = 2  # in a row: whoever carries our words can make up one of them
CLOSE_S: Final = 2.0
POLL_S: Final = 0.02
SILENT: Final = "lease-silent"

Lost = Callable[[str, SealiftError], None]
ReachBroker = Callable[[str], AbstractContextManager[Session]]
"""Opens a session with an owner's broker; raises PeerError if it is not there."""


def owners_leases(agreement: Agreement, owners: Iterable[str]) -> dict[str, KeyLease]:
    """The shortest lease of each owner's keys, where it has one."""
    found = ((owner, shortest_lease(agreement.resources_of(owner))) for owner in owners)
    return {owner: lease for owner, lease in found if lease is not None}


class KeptLease:
    """The lease of one owner's keys.

    Args:
        owner: Whose.
        lease: Its terms.
        reach: Opens sessions with its broker.
        clock: Seconds that also count while the machine sleeps.
        lost: Called once, when it is lost for good.
        sink: Where events go.
    """

    def __init__(
        self,
        owner: str,
        lease: KeyLease,
        reach: ReachBroker,
        *,
        clock: Clock,
        lost: Lost,
        sink: Sink,
    ) -> None:
        self._owner = owner
        self._lease = lease
        self._reach = reach
        self._clock = clock
        self._lost = lost
        self._line = ExitStack()
        self._session: Session | None = None
        self._proven_at_s = clock()
        self._refusals = 0
        self._watcher = Watcher(
            f"lease of {owner}", self._look, broken=self._break, sink=sink
        )

    def start(self) -> None:
        """The key was released: from now on its broker wants to hear from us."""
        self._watcher.start()

    @property
    def over(self) -> bool:
        """Whether it is kept no more: lost, or given back."""
        return self._watcher.over

    @property
    def paused(self) -> bool:
        """Whether its broker was silent for longer than a heartbeat."""
        return not self.over and self._silent_s > self._lease.heartbeat_s

    def stop(self) -> None:
        """Prove it no more."""
        self._watcher.stop(CLOSE_S)
        self._hang_up()

    def give_back(self) -> None:
        """Say so; a broker that cannot be reached revokes it for silence."""
        self._watcher.stop(CLOSE_S)
        if self._session is not None:
            with suppress(SealiftError):
                give_back_lease(self._session, CLOSE_S)
        self._hang_up()

    @property
    def _silent_s(self) -> float:
        return self._clock() - self._proven_at_s

    def _look(self) -> float | None:
        if self._silent_s > self._lease.lease_s:
            why = f"its broker did not answer for {self._lease.lease_s:g} s"
            self._lose(PolicyError(why, code=SILENT))
            return None
        try:
            good = self._prove()
        except BrokerRefusedError as error:
            self._lose(error)
            return None
        except PeerError as error:
            self._refusals += error.code == REFUSED
            if self._refusals >= REFUSALS:
                self._lose(error)
                return None
        except SealiftError:  # altered on the way, or somebody else: begin again
            pass
        else:
            self._refusals = 0
            # After a silence the first renewal counts from before it, the next from now.
            return self._lease.heartbeat_s / BEATS if good else 0.0
        self._hang_up()
        return min(0.1, self._lease.heartbeat_s / BEATS)

    def _prove(self) -> bool:
        began_s = self._clock()
        if self._session is None:
            self._session = self._line.enter_context(self._reach(self._owner))
        good = prove_lease(self._session, self._lease.heartbeat_s).good
        if good:
            self._proven_at_s = began_s
        return good

    def _hang_up(self) -> None:
        self._session = None
        with suppress(SealiftError):
            self._line.close()

    def _lose(self, error: SealiftError) -> None:
        self._hang_up()
        self._lost(self._owner, error)

    def _break(self, error: BaseException) -> None:
        """A bug of ours: a lease that nobody keeps has ended."""
        self._lost(self._owner, PolicyError("its renewal failed", why=error))


class LeaseKeeper:
    """Keeps the leases of one job, each from ``begin`` on, until ``close``.

    Args:
        reach: Opens sessions with brokers.
        leases: By owner.
        clock: Seconds that also count while the machine sleeps.
        lost: Called once with the error when our evidence was refused, or the agreement
            has ended: nothing here may go on.
        left: Called with an owner and the error when it left, or its lease ran out: its
            own keys and rows are over.
        sink: Where events go.
    """

    def __init__(
        self,
        reach: ReachBroker,
        leases: Mapping[str, KeyLease],
        *,
        clock: Clock,
        lost: Callable[[SealiftError], None],
        left: Lost,
        sink: Sink,
    ) -> None:
        self._reach = reach
        self._leases = leases
        self._clock = clock
        self._end = lost
        self._leave = left
        self._sink = unfailing(sink)
        self._kept: dict[str, KeptLease] = {}
        self._closed = False

    def begin(self, owner: str) -> None:
        """This owner released its keys: from now on its broker wants to hear from us."""
        lease = self._leases.get(owner)
        if lease is not None:
            kept = self._kept[owner] = KeptLease(
                owner,
                lease,
                self._reach,
                clock=self._clock,
                lost=self._lose,
                sink=self._sink,
            )
            kept.start()

    def await_proven(self, owners: Iterable[str]) -> None:
        """Pause while a broker of these owners is silent; until it speaks, or too long."""
        waiting = [self._kept[owner] for owner in owners if owner in self._kept]
        if self._is_paused(waiting):
            emit(self._sink, "lease.silent")
            while self._is_paused(waiting):
                time.sleep(POLL_S)
            emit(self._sink, "lease.heard")

    def lives(self, owner: str) -> bool | None:
        """Whether the lease of this owner's keys was not lost; None if there is none."""
        kept = self._kept.get(owner)
        return None if kept is None else not (self._closed or kept.over)

    def drop(self, owner: str) -> None:
        """This owner's keys are gone: nobody proves anything to its broker any more."""
        kept = self._kept.pop(owner, None)
        if kept is not None:
            kept.stop()

    def close(self) -> None:
        """Give the leases back; whoever cannot be reached revokes them for silence."""
        self._closed = True
        for each in list(self._kept.values()):
            each.give_back()

    def _is_paused(self, leases: Iterable[KeptLease]) -> bool:
        return not self._closed and any(each.paused for each in leases)

    def _lose(self, owner: str, error: SealiftError) -> None:
        if self._closed:
            return
        emit(self._sink, "lease.lost", owner=owner, line=str(error))
        rule = error.rule if isinstance(error, BrokerRefusedError) else error.code
        with suppress(Exception):
            if rule in ENDS or rule == SILENT:
                self._leave(owner, ended(owner, rule, error))
            else:
                self._closed = True
                lost = f"the lease on the keys of {owner} ended"
                self._end(PolicyError(lost, why=str(error), code="lease-lost"))


def ended(owner: str, rule: str, error: SealiftError) -> PolicyError:
    """Why an owner's rows are not worked on any more."""
    return PolicyError(
        f"the keys of {owner} may not be used any more",
        why=str(error),
        fix=error.fix,
        code=rule,
    )
