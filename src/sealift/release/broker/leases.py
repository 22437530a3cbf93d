"""A broker's work on leases: who may go on, who fell silent, who failed.

Revoking is logged and remembered before anybody is told. What was delivered before is
not recalled (rule H5): from here on the instance gets nothing more, and the owner's
holder, which asks for its standing, stops giving it rows.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError, SealiftError
from sealift.release.agreement import KeyLease, Resource
from sealift.release.broker.messages import LeaseRequest
from sealift.release.broker.standing import (
    HEARTBEAT_MISSING,
    Standing,
    Standings,
)
from sealift.release.facts import Owner
from sealift.session.endpoint import VerifiedPeer

if TYPE_CHECKING:
    from sealift.session.session import Session

WATCH_S: Final = 0.25

Clock = Callable[[], float]


class RecordRevocation(Protocol):
    """Writes a revocation into the log and syncs it."""

    def __call__(self, instance: PublicKey, rule: str, epoch: int) -> None:
        """Raises UnavailableError if the log cannot be written."""
        ...


class LeaseDesk:
    """The leases of one owner's broker.

    Args:
        owner: For whom it works.
        standings: Who stands how.
        terms: The shortest of the owner's resources; None if none has a lease.
        record: Logs a revocation.
        monotonic: Seconds that never go back (rule H5).
    """

    def __init__(
        self,
        owner: Owner,
        standings: Standings,
        *,
        terms: KeyLease | None,
        record: RecordRevocation,
        monotonic: Clock,
    ) -> None:
        self._owner = owner
        self._standings = standings
        self._terms = terms
        self._record = record
        self._monotonic = monotonic
        self._changed = threading.Condition()

    def admit(self, peer: VerifiedPeer) -> None:
        """Refuse an instance that was revoked; raises ``lease-revoked``."""
        self._standings.require_good(peer.instance)

    def host(self, instance: PublicKey) -> str:
        """What made the evidence that its first lease began with; empty without one."""
        return self._standings.host(instance)

    def grant(self, peer: VerifiedPeer, resource: Resource, proven_at_s: float) -> None:
        """A key goes to a peer whose evidence was judged after ``proven_at_s``."""
        if resource.lease is not None:
            self._standings.grant(
                peer.instance, resource.lease, proven_at_s, _attester(peer)
            )

    def answer(self, request: LeaseRequest, visit: SessionVisit) -> Standing:
        """Answer one request.

        Raises:
            StaleError: ``lease-revoked``, or ``not-renewed``.
            PolicyError: if somebody else's lease is asked about.
        """
        peer = visit.peer
        if request.action == "ask":
            assert request.instance is not None
            self._require_own(peer)
            return self._wait(request.instance, request.wait_s)
        if peer.result is None:
            raise PolicyError(
                "a lease is about a peer that showed evidence", code="evidence-missing"
            )
        if request.action == "prove":
            self._prove(peer, visit.renewed())
        else:
            self._standings.give_back(peer.instance)
        return self._standings.standing(peer.instance, self._monotonic())

    def fail(self, peer: VerifiedPeer, error: SealiftError) -> None:
        """A peer's renewal was refused: its lease ends, if it has one."""
        standing = self._standings.standing(peer.instance, self._monotonic())
        if standing.due_s or standing.rule == HEARTBEAT_MISSING:
            self.revoke(peer.instance, error.code)

    def revoke(self, instance: PublicKey, rule: str) -> None:
        """End a lease for good, and log it."""

        def record(epoch: int) -> None:
            self._record(instance, rule, epoch)

        try:
            self._standings.revoke(instance, rule, record)
        finally:
            with self._changed:
                self._changed.notify_all()

    def revoke_open(self, rule: str) -> None:
        """End every lease that is open: what keys are released by has ended."""
        for instance in self._standings.open():
            self.revoke(instance, rule)

    def open_leases(self) -> int:
        """How many are open now."""
        return len(self._standings)

    def look(self) -> float:
        """Revoke whoever is silent for too long; seconds until the next look.

        Raises:
            UnavailableError: a full disk, say: whoever is overdue stays so.
        """
        for instance in self._standings.overdue(self._monotonic()):
            self.revoke(instance, HEARTBEAT_MISSING)
        ends_s = self._standings.next_end_s(self._monotonic())
        return WATCH_S if ends_s is None else max(0.001, min(ends_s, WATCH_S))

    def _prove(self, peer: VerifiedPeer, proven_at_s: float) -> None:
        if self._terms is not None:
            self._standings.prove(
                peer.instance, self._terms, proven_at_s, _attester(peer)
            )

    def _wait(self, instance: PublicKey, wait_s: float) -> Standing:
        deadline = self._monotonic() + wait_s
        with self._changed:
            while True:
                now_s = self._monotonic()
                found = self._standings.standing(instance, now_s)
                if not found.good or now_s >= deadline:
                    return found
                self._changed.wait(min(deadline - now_s, WATCH_S))

    def _require_own(self, peer: VerifiedPeer) -> None:
        if peer.identity != self._owner.key:
            raise PolicyError(
                "only the owner's own holder may ask where an instance stands",
                code="not-the-owner",
            )


def _attester(peer: VerifiedPeer) -> str:
    assert peer.result is not None, "leases are for who showed evidence"
    return peer.result.claims.attester


class SessionVisit:
    """One session at the desk: since when its peer's evidence is known to be good.

    Evidence is judged somewhere between two requests. The earlier of the two times is
    taken, so a lease is never thought fresher than it is.

    Args:
        session: Of the peer.
        monotonic: Seconds that never go back.
        accepted_at_s: When the session's handshake began.
    """

    def __init__(
        self, session: Session, monotonic: Clock, accepted_at_s: float
    ) -> None:
        self._session = session
        self._monotonic = monotonic
        self._judged_after_s = accepted_at_s
        self._last_answer_s = accepted_at_s
        self._th2 = session.th2

    @property
    def peer(self) -> VerifiedPeer:
        """Who is at the other end, as of the latest renewal."""
        return self._session.peer

    @property
    def th2(self) -> bytes:
        """Names the session."""
        return self._session.th2

    @property
    def judged_after_s(self) -> float:
        """A time before which the evidence in force was not judged."""
        if self._session.th2 != self._th2:
            self._th2, self._judged_after_s = self._session.th2, self._last_answer_s
        return self._judged_after_s

    def renewed(self) -> float:
        """``judged_after_s`` of a renewal that was not counted yet.

        Raises:
            StaleError: ``not-renewed``, if there was none since the last answer.
        """
        if self._session.th2 == self._th2:
            raise PolicyError(
                "the session was not renewed since the last answer",
                why="a lease is renewed by fresh evidence",
                code="not-renewed",
            )
        return self.judged_after_s

    def answered(self) -> None:
        """An answer is about to go out."""
        self._last_answer_s = self._monotonic()
