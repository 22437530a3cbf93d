"""Which instances may go on with the keys that they got: proven lately, not revoked.

A released key with a lease is worth something only while its accelerator keeps proving
itself: each renewal of the session carries fresh evidence, judged in full, and counts
from the moment it was judged, by this side's monotonic clock (rule H5). Whoever falls
silent for longer than its heartbeat is given nothing until it proves itself again; for
longer than its lease, or fails, and it is revoked for good: an instance key is made at a
process's start, so a clean start is another instance.
Pure: time comes as an argument, memory is the ledger's.
Source: spec/release.md section Leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from sealift.crypto.sign import PublicKey
from sealift.release.agreement import KeyLease, Resource
from sealift.release.decision import GRACE_S, require_good, require_same_host
from sealift.release.vault.ledger import Ledger

HEARTBEAT_MISSING: Final = "heartbeat-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one instance stands.

    Attributes:
        instance: Its key.
        good: Whether it may go on, as far as this broker knows.
        rule: Why not, or empty.
        due_s: Seconds until it must have proven itself again; 0 without a lease: then
            nobody looks after it, and who gives rows under a lease stops.
        ends_s: Seconds until its lease ends for good; 0 once it has.
    """

    instance: PublicKey
    good: bool
    rule: str = ""
    due_s: float = 0.0
    ends_s: float = 0.0


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


class Standings:
    """The leases of one broker, open and revoked. Threads may share it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leases: dict[PublicKey, _Lease] = {}
        self._hosts: dict[PublicKey, str] = {}  # also of leases that were given back
        self._lock = threading.RLock()

    def require_good(self, instance: PublicKey) -> None:
        """Refuse an instance that was revoked: ``lease-revoked``, or one of ``ENDS``."""
        with self._lock:
            require_good(self._ledger.revoked(instance))

    def host(self, instance: PublicKey) -> str:
        """What made the evidence that its first lease began with; empty without one."""
        with self._lock:
            return self._hosts.get(instance, "")

    def grant(
        self,
        instance: PublicKey,
        terms: KeyLease,
        proven_at_s: float,
        attester: str,
    ) -> None:
        """A key with a lease goes to an instance; the shortest terms count.

        Raises:
            StaleError: ``lease-revoked``.
            PolicyError: ``attester-differs``.
        """
        with self._lock:
            self.require_good(instance)
            require_same_host(self._hosts.setdefault(instance, attester), attester)
            known = self._leases.get(instance)
            terms = _shorter(terms, known.terms) if known else terms
            self._leases[instance] = _Lease(terms, proven_at_s)

    def prove(
        self,
        instance: PublicKey,
        terms: KeyLease,
        proven_at_s: float,
        attester: str,
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
        with self._lock:
            self.require_good(instance)
            require_same_host(self._hosts.setdefault(instance, attester), attester)
            lease = self._leases.get(instance, _Lease(terms, proven_at_s))
            newer = max(lease.proven_at_s, proven_at_s)
            self._leases[instance] = replace(lease, proven_at_s=newer)

    def give_back(self, instance: PublicKey) -> None:
        """The instance needs its keys no more, and said so."""
        with self._lock:
            self._leases.pop(instance, None)

    def revoke(
        self, instance: PublicKey, rule: str, record: Callable[[int], None]
    ) -> None:
        """End a lease for good.

        Args:
            instance: Whose.
            rule: Why.
            record: Logs it, with the key epoch that begins; until it has returned
                nobody is told anything, nor granted.
        """
        with self._lock:
            epoch = self._ledger.revoke(instance, rule)
            record(epoch)
            self._leases.pop(instance, None)  # last: what was not logged is tried again

    def standing(self, instance: PublicKey, now_s: float) -> Standing:
        """Where an instance stands at ``now_s``."""
        with self._lock:
            rule = self._ledger.revoked(instance)
            lease = self._leases.get(instance)
        if rule or lease is None:
            return Standing(instance=instance, good=not rule, rule=rule)
        due_s = max(0.0, lease.due_at_s - now_s)
        return Standing(
            instance=instance,
            good=due_s > 0,
            rule="" if due_s else HEARTBEAT_MISSING,
            due_s=due_s,
            ends_s=max(0.0, lease.ends_at_s - now_s),
        )

    def __len__(self) -> int:
        """Leases that are open."""
        return len(self._leases)

    def open(self) -> tuple[PublicKey, ...]:
        """Instances that hold keys under a lease."""
        with self._lock:
            return tuple(self._leases)

    def overdue(self, now_s: float) -> tuple[PublicKey, ...]:
        """Instances that were silent for a whole lease."""
        with self._lock:
            return tuple(
                instance
                for instance, lease in self._leases.items()
                if now_s >= lease.ends_at_s
            )

    def next_end_s(self, now_s: float) -> float | None:
        """Seconds until the next lease ends, or None while none is open."""
        with self._lock:
            due = [lease.ends_at_s for lease in self._leases.values()]
        return max(0.0, min(due) - now_s) if due else None


def _shorter(one: KeyLease, other: KeyLease) -> KeyLease:
    return KeyLease(
        min(one.lease_s, other.lease_s), min(one.heartbeat_s, other.heartbeat_s)
    )


def shortest_lease(resources: Iterable[Resource]) -> KeyLease | None:
    """The shortest terms that these resources' keys are released under, if any are."""
    terms = [resource.lease for resource in resources if resource.lease is not None]
    return reduce(_shorter, terms) if terms else None
