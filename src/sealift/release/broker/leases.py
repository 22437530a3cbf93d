"""Leases of released keys: which accelerators sent fresh evidence in time.

A key that is released under a lease stays valid only while its accelerator sends fresh
evidence: each renewal of the session has new evidence, which is appraised completely and
is valid from that moment, by this side's monotonic clock (rule H5). An accelerator that is
silent for longer than its heartbeat gets nothing until it sends new evidence. If it is
silent for longer than its lease, or its evidence is refused, it is revoked permanently. A
restarted process has a new instance key, so it is another instance.

A revocation is logged and saved before anybody learns of it. Keys that were delivered
before are not recalled: the instance gets nothing more, and the owner's holder, which asks
for its status, stops sending rows.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError, SealiftError, require_value
from sealift.release.agreement import KeyLease, Resource
from sealift.release.broker.messages import HEARTBEAT_MISSING, LeaseRequest, LeaseStatus
from sealift.release.decision import GRACE_S, require_good, require_same_host
from sealift.release.vault.ledger import Ledger
from sealift.session.endpoint import VerifiedPeer

if TYPE_CHECKING:
    from sealift.session.session import Session

WATCH_S: Final = 0.25

Clock = Callable[[], float]
# (instance, rule, key epoch that begins): logs a revocation and syncs the log.
RecordRevocation = Callable[[PublicKey, str, int], None]


@dataclass(frozen=True, slots=True)
class _Lease:
    terms: KeyLease
    proven_at_s: float

    @property
    def due_at_s(self) -> float:
        return self.proven_at_s + self.terms.heartbeat_s + GRACE_S

    @property
    def ends_at_s(self) -> float:
        return self.proven_at_s + self.terms.lease_s + GRACE_S


class KeyLeases:
    """The leases of one owner's broker, open and revoked. Threads may share it.

    Args:
        ledger: Remembers revocations.
        owner: The key of whom it works for; only its holder may ask about others.
        terms: The shortest of the owner's resources; None if none has a lease.
        record: Logs a revocation; until it has returned nobody is told, nor granted.
        monotonic: Seconds that never go back (rule H5).
    """

    def __init__(
        self,
        ledger: Ledger,
        owner: PublicKey,
        *,
        terms: KeyLease | None,
        record: RecordRevocation,
        monotonic: Clock,
    ) -> None:
        self._ledger = ledger
        self._owner = owner
        self._terms = terms
        self._record = record
        self._monotonic = monotonic
        self._leases: dict[PublicKey, _Lease] = {}
        self._hosts: dict[PublicKey, str] = {}  # also of leases that were given back
        self._changed = threading.Condition()

    def require_good(self, instance: PublicKey) -> None:
        """Refuse an instance that was revoked: ``lease-revoked``, or one of ``ENDS``."""
        with self._changed:
            require_good(self._ledger.revoked(instance))

    def host(self, instance: PublicKey) -> str:
        """What made the evidence that its first lease began with; empty without one."""
        with self._changed:
            return self._hosts.get(instance, "")

    def grant(
        self, instance: PublicKey, terms: KeyLease, proven_at_s: float, attester: str
    ) -> None:
        """A key with a lease goes to an instance; the shortest terms count.

        Raises:
            StaleError: ``lease-revoked``.
            PolicyError: ``attester-differs``.
        """
        with self._changed:
            self._require_same(instance, attester)
            known = self._leases.get(instance)
            terms = _shorter(terms, known.terms) if known else terms
            self._leases[instance] = _Lease(terms, proven_at_s)

    def prove(
        self, instance: PublicKey, terms: KeyLease, proven_at_s: float, attester: str
    ) -> None:
        """Fresh evidence of an instance was judged and accepted.

        Args:
            instance: Whose.
            terms: Of a lease that is not known here: open leases are in memory, so a
                broker that was started again opens them anew.
            proven_at_s: A time before which the evidence was not judged.
            attester: What made it (``Claims.attester``): that of the lease so far.

        Raises:
            StaleError: ``lease-revoked``.
            PolicyError: ``attester-differs``.
        """
        with self._changed:
            self._require_same(instance, attester)
            lease = self._leases.get(instance, _Lease(terms, proven_at_s))
            newer = max(lease.proven_at_s, proven_at_s)
            self._leases[instance] = replace(lease, proven_at_s=newer)

    def give_back(self, instance: PublicKey) -> None:
        """The instance reported that it no longer needs its keys."""
        with self._changed:
            self._leases.pop(instance, None)

    def revoke(self, instance: PublicKey, rule: str) -> None:
        """End a lease for good, and log it."""
        with self._changed:
            try:
                epoch = self._ledger.revoke(instance, rule)
                self._record(instance, rule, epoch)
                # Last: what was not logged is tried again.
                self._leases.pop(instance, None)
            finally:
                self._changed.notify_all()

    def revoke_open(self, rule: str) -> None:
        """End every lease that is open: what keys are released by has ended."""
        for instance in self.open():
            self.revoke(instance, rule)

    def fail(self, peer: VerifiedPeer, error: SealiftError) -> None:
        """A peer's renewal was refused: its lease ends, if it has one."""
        status = self.status(peer.instance, self._monotonic())
        if status.due_s or status.rule == HEARTBEAT_MISSING:
            self.revoke(peer.instance, error.code)

    def look(self) -> float:
        """Revoke whoever is silent for too long; seconds until the next look.

        Raises:
            UnavailableError: a full disk, say: whoever is overdue stays so.
        """
        for instance in self.overdue(self._monotonic()):
            self.revoke(instance, HEARTBEAT_MISSING)
        ends_s = self.next_end_s(self._monotonic())
        return WATCH_S if ends_s is None else max(0.001, min(ends_s, WATCH_S))

    def status(self, instance: PublicKey, now_s: float) -> LeaseStatus:
        """Where an instance stands at ``now_s``."""
        with self._changed:
            rule = self._ledger.revoked(instance)
            lease = self._leases.get(instance)
        if rule or lease is None:
            return LeaseStatus(instance=instance, good=not rule, rule=rule)
        due_s = max(0.0, lease.due_at_s - now_s)
        return LeaseStatus(
            instance=instance,
            good=due_s > 0,
            rule="" if due_s else HEARTBEAT_MISSING,
            due_s=due_s,
            ends_s=max(0.0, lease.ends_at_s - now_s),
        )

    def open(self) -> tuple[PublicKey, ...]:
        """Instances that hold keys under a lease."""
        with self._changed:
            return tuple(self._leases)

    def overdue(self, now_s: float) -> tuple[PublicKey, ...]:
        """Instances that were silent for a whole lease."""
        with self._changed:
            return tuple(
                instance
                for instance, lease in self._leases.items()
                if now_s >= lease.ends_at_s
            )

    def next_end_s(self, now_s: float) -> float | None:
        """Seconds until the next lease ends, or None while none is open."""
        with self._changed:
            due = [lease.ends_at_s for lease in self._leases.values()]
        return max(0.0, min(due) - now_s) if due else None

    def answer(self, request: LeaseRequest, asker: Asker) -> LeaseStatus:
        """Answer one request.

        Raises:
            StaleError: ``lease-revoked``, or ``not-renewed``.
            PolicyError: if somebody else's lease is asked about.
        """
        peer = asker.peer
        if request.action == "ask":
            if peer.identity != self._owner:
                raise PolicyError(
                    "only the owner's own holder may ask for the status of an instance",
                    code="not-the-owner",
                )
            return self._wait(require_value(request.instance), request.wait_s)
        if peer.result is None:
            raise PolicyError(
                "a lease needs a peer that sent evidence", code="evidence-missing"
            )
        if request.action == "give-back":
            self.give_back(peer.instance)
        else:
            proven_at_s = asker.renewed()
            if self._terms is not None:
                attester = peer.result.claims.attester
                self.prove(peer.instance, self._terms, proven_at_s, attester)
        return self.status(peer.instance, self._monotonic())

    def _wait(self, instance: PublicKey, wait_s: float) -> LeaseStatus:
        deadline = self._monotonic() + wait_s
        with self._changed:
            while True:
                now_s = self._monotonic()
                found = self.status(instance, now_s)
                if not found.good or now_s >= deadline:
                    return found
                self._changed.wait(min(deadline - now_s, WATCH_S))

    def _require_same(self, instance: PublicKey, attester: str) -> None:
        self.require_good(instance)
        require_same_host(self._hosts.setdefault(instance, attester), attester)


def _shorter(one: KeyLease, other: KeyLease) -> KeyLease:
    return KeyLease(
        min(one.lease_s, other.lease_s), min(one.heartbeat_s, other.heartbeat_s)
    )


def shortest_lease(resources: Iterable[Resource]) -> KeyLease | None:
    """The shortest terms that these resources' keys are released under, if any are."""
    terms = [resource.lease for resource in resources if resource.lease is not None]
    return reduce(_shorter, terms) if terms else None


class Asker:
    """Who asks in one session, and since when its evidence is known to be good.

    Evidence is appraised some time between two requests. The earlier of the two times is
    used, so a lease never counts as fresher than it is.

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

    def logged(self) -> dict[str, Any]:
        """What an entry of the log says about it."""
        peer, result = self.peer, self.peer.result
        return {
            "role": peer.role.value,
            "peer": peer.name,
            "instance": peer.instance,
            "session": self.th2,
            "level": result.standing if result else "",
            "evidence": result.evidence if result else None,
        }

    def renewed(self) -> float:
        """``judged_after_s`` of a renewal that was not counted yet.

        Raises:
            StaleError: ``not-renewed``, if there was none since the last answer.
        """
        if self._session.th2 == self._th2:
            raise PolicyError(
                "the session was not renewed since the last answer",
                why="a lease is renewed only with fresh evidence",
                code="not-renewed",
            )
        return self.judged_after_s

    def answered(self) -> None:
        """An answer is about to go out."""
        self._last_answer_s = self._monotonic()
