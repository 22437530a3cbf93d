"""The input of a decision: kinds of secrets, who asks, what the owner's side knows now.

One of these facts is whether the agreement is the latest of its line. A restored database
forgets later agreements; other owners do not. Of n owners, q must confirm the number of
the agreement: any two such sets share more than f owners, so one honest owner is in both
(``2 q > n + f``, rule H6). An owner proves this by the entry of its own log in which its
broker began to serve the agreement, under a signed head that others save. A broker
releases nothing until enough owners confirmed that they serve this agreement; an owner
that serves a successor does not confirm it.

The callers fill these in; ``release/decision.py`` decides by them and by nothing else.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sealift.crypto.sign import PublicKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PolicyError,
    SealiftError,
    StaleError,
)
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Party, Resource, RunTerms
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.log.entries import LogEntry, Logged
from sealift.session.endpoint import VerifiedPeer


class ReleaseKind(StrEnum):
    """What can leave. A new kind needs its row in the table of rules and kinds."""

    DATA_KEY = "data-key"
    MODEL_KEY = "model-key"
    CHECKPOINT_SHARE = "checkpoint-share"
    FED_DEVICE = "fed-device"
    ROWS = "rows"
    PASSES = "passes"


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom it is decided: its name and its own key, not the agreement's."""

    name: str
    key: PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseState:
    """What the owner's side knows at this moment. A missing fact means refusal.

    Attributes:
        verified: The agreement that is served, with what is known of it now.
        at_s: Seconds since 1970, by this side's clock.
        ended: What statements known here ended it; None for nothing.
        in_force: The agreement of this line that the owner's vault has in force.
        sightings: What other owners' brokers said that they serve.
        revoked: The rule for which the asker's instance was revoked, or empty.
        host: What made the evidence that its open lease began with; empty without one.
        evidence_age_s: Seconds since a time before which its evidence was not judged.
        uses: How often each resource's key was released.
        held: Resources whose keys this very instance got.
        fresh: Whether the challenge was never used before.
        runs: Runs that were counted under this line; None where they are not known.
        visits: Visits for this purpose that were counted, without those asked for.
        epsilons: What each table with a budget will have cost after what is asked for.
    """

    owner: Owner
    verified: VerifiedAgreement
    at_s: float
    ended: SealiftError | None
    revoked: str
    in_force: Digest | None = None
    sightings: tuple[Sighting, ...] = ()
    host: str = ""
    evidence_age_s: float = math.inf
    uses: Mapping[str, int] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    fresh: bool = False
    runs: frozenset[Digest] | None = None
    visits: float = math.inf
    epsilons: Mapping[str, Spending] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spending:
    """What rounds over a table cost, by the owner's ledger.

    Attributes:
        before: Epsilon of all that was debited.
        after: With what is asked for.
    """

    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQuestion:
    """One question.

    Attributes:
        peer: Who asks, as its session proved it.
        resource: Its name; shares and fed devices are about all that the owner brings,
            passes about all its rows for that purpose.
        purpose: What it will be used for.
        run: What the job sets that it is for.
        visits: Of a pass: how many it counts as.
        attempt: Of a pass: what a repeated question has in common.
    """

    kind: ReleaseKind
    peer: VerifiedPeer
    resource: str = ""
    purpose: str = ""
    run: RunTerms | None = None
    visits: int = 0
    attempt: bytes = b""

    def resources(self, state: ReleaseState) -> tuple[Resource, ...]:
        """What it is about: every rule must hold for every one."""
        if self.kind in (ReleaseKind.CHECKPOINT_SHARE, ReleaseKind.FED_DEVICE):
            return state.verified.agreement.resources_of(state.owner.name)
        if self.kind is ReleaseKind.PASSES:
            own = state.verified.agreement.resources_of(state.owner.name)
            part = "heldout" if self.purpose == "heldout" else "train"
            return tuple(each for each in own if each.part == part)
        return (state.verified.resource(self.resource),)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One owner's confirmation that its broker served this agreement.

    Attributes:
        owner: Its name.
        number: Of the agreement in its line.
        digest: The agreement.
    """

    owner: str
    number: int
    digest: Digest


def read_sighting(served: Logged, *, owner: Party, agreement: Agreement) -> Sighting:
    """What an owner's log says about an agreement.

    Args:
        served: The entry of its log with which serving began.
        owner: With the key that signs its log.
        agreement: Which agreement the entry must be about.

    Raises:
        IntegrityError: ``head-unsigned``, ``entry-not-in-log``, or ``not-the-owner``:
            another log.
        MalformedError: ``bad-answer``: the entry says something else.
    """
    if served.head.body.log != owner.sign:
        raise IntegrityError(
            f"the log does not belong to {owner.name}", code="not-the-owner"
        )
    said = served.verify(owner.sign)
    if not isinstance(said, LogEntry) or said.kind != "agreement":
        raise MalformedError(
            "the log entry is not about the start of this broker", code="bad-answer"
        )
    if said.agreement != agreement.digest:
        raise MalformedError(
            "the log entry is about another agreement", code="bad-answer"
        )
    return Sighting(owner.name, agreement.number, agreement.digest)


def require_latest(agreement: Agreement, sightings: Iterable[Sighting]) -> None:
    """Refuse an agreement if too few owners confirmed it, or one has a later one.

    A faulty owner can block everybody in this way, as it can by not answering; it cannot
    make an old agreement look like the latest.

    Args:
        agreement: That is to be served.
        sightings: What owners of its data said, this side's own memory included.

    Raises:
        PolicyError: ``quorum-missing``.
        StaleError: ``agreement-rolled-back``, naming who saw which number; or
            ``agreement-forked``: another document of the same number.
    """
    rule = agreement.board.rollback if agreement.board else None
    if rule is None:
        return
    known = [each for each in sightings if each.owner in agreement.holders]
    _refuse_later(agreement, known)
    owners = {each.owner for each in known}
    if len(owners) < rule.quorum:
        raise PolicyError(
            "too few owners confirmed which agreement is the latest",
            why=f"{', '.join(sorted(owners)) or 'nobody'} confirmed it; "
            f"{rule.quorum} of {len(agreement.holders)} owners must",
            code="quorum-missing",
        )


def _refuse_later(agreement: Agreement, sightings: Iterable[Sighting]) -> None:
    for each in sightings:
        if each.number > agreement.number:
            raise StaleError(
                f"{each.owner} has a later agreement {agreement.name}",
                why=f"it has number {each.number}, and this one is number {agreement.number}",
                code="agreement-rolled-back",
            )
        if each.number == agreement.number and each.digest != agreement.digest:
            raise StaleError(
                f"{each.owner} has another agreement with number {each.number}",
                why=f"its digest is {each.digest.short}; this one's is {agreement.digest.short}",
                code="agreement-forked",
            )


class RollbackGate:
    """Collects what owners saw. Threads may share it.

    Args:
        agreement: That is to be served.
        own: This owner's sighting.
    """

    def __init__(self, agreement: Agreement, own: Sighting) -> None:
        self._agreement = agreement
        self._sightings = {own.owner: own}
        self._lock = threading.Lock()

    @property
    def missing(self) -> tuple[str, ...]:
        """Owners that are still to be asked; empty once the gate is open."""
        if self._is_open():
            return ()
        with self._lock:
            said = set(self._sightings)
        return tuple(name for name in self._agreement.holders if name not in said)

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        """What owners said so far."""
        with self._lock:
            return tuple(self._sightings.values())

    def admit(self, sighting: Sighting) -> None:
        """An owner said what it serves.

        Raises:
            StaleError: ``agreement-rolled-back`` or ``agreement-forked``.
        """
        with self._lock:
            self._sightings[sighting.owner] = sighting
        try:
            self.require_open()
        except PolicyError:
            return  # too few so far

    def require_open(self) -> None:
        """Refuse to release before a quorum was heard.

        Raises:
            PolicyError: ``quorum-missing``.
            StaleError: ``agreement-rolled-back`` or ``agreement-forked``.
        """
        require_latest(self._agreement, self.sightings)

    def ask(self, see: Callable[[str], Sighting | None]) -> None:
        """Ask whoever is missing, once each.

        Args:
            see: Asks one owner's broker; None if it does not answer.
        """
        for owner in self.missing:
            sighting = see(owner)
            if sighting is not None:
                self.admit(sighting)

    def _is_open(self) -> bool:
        try:
            self.require_open()
        except PolicyError:
            return False
        return True
