"""The accelerator's side of a visit: offer, load, hand to the work, scrub, receipt.

With ``buffers = 1`` there is one visit at a time, so its data are gone, and read back as
gone, before the next holder is met (rule H2). What is done with a loaded buffer is a
callable that the caller passes in; this room knows cargo and memory, not training.
Whatever goes wrong ends in a revoked visit and a scrubbed pool. A scrub that does not
hold is not a failed visit: it ends the process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sealift.crypto.keys import SecretKey
from sealift.errors import JobError, PolicyError, SealiftError
from sealift.events import Sink, discard
from sealift.release.agreement import Resource, part_for
from sealift.release.audit import SignedTreeHead
from sealift.release.receipt import ScrubSummary, SignedReceipt
from sealift.travel.dock import Dock
from sealift.travel.lease import Lease, LeaseTerms, SignedLease, verify_lease
from sealift.travel.load import CargoLoader, Loaded
from sealift.travel.messages import (
    BufferOffered,
    Failed,
    OfferVisit,
    Receipted,
    VisitEnded,
    VisitPhase,
    send_message,
)
from sealift.travel.paths import VisitSession
from sealift.travel.phases import PhaseTimer
from sealift.travel.pool import Pool
from sealift.travel.ratchet import Ratchet
from sealift.travel.rules import VisitRules
from sealift.travel.scrub import scrub
from sealift.travel.state import Clock, State, Visit


@dataclass(frozen=True, slots=True)
class LoadedCargo:
    """What the work sees: rows of one holder's resource, in the visit's pool.

    Attributes:
        offer: Which visit this is.
        resource: As the agreement binds it.
        rows: Rows x row_bytes bytes; gone when the work returns.
    """

    offer: OfferVisit
    resource: Resource
    rows: memoryview


@dataclass(frozen=True, slots=True)
class ReleasedResource:
    """A resource whose key was released to this process."""

    resource: Resource
    data_key: SecretKey


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitAccount:
    """What a receipt is made from."""

    lease: Lease
    offer: OfferVisit
    loaded: Loaded
    phases_s: Mapping[str, float]
    scrubbed: ScrubSummary


Work = Callable[[LoadedCargo], Mapping[str, float]]
Meet = Callable[[Lease, float], VisitSession]
MakePool = Callable[[int, int], Pool]
SignReceipt = Callable[[VisitAccount], SignedReceipt]


@dataclass(slots=True, kw_only=True)
class HostSetup:
    """Everything a visit needs from outside.

    Attributes:
        released: Released resources by name.
        terms: What every lease must say.
        heads: Signed tree heads, shown to every holder.
        rules: What is enforced against the orchestrator.
        meet: Wait for the lease's holder; returns an established session.
        work: What is done with loaded cargo.
        sign: Makes and signs the receipt.
        make_pool: Makes a pool of (buffer bytes, quarantine bytes).
        clock: Seconds that also count while the machine sleeps.
        tell: Progress, to the orchestrator.
        ratchet: Keys of mode ``ratchet``; one chain per process.
        dock: Where holders may come alongside; None is the relay only.
        sink: Gets ``visit.path``.
    """

    released: Mapping[str, ReleasedResource]
    terms: LeaseTerms
    heads: tuple[SignedTreeHead, ...]
    rules: VisitRules
    meet: Meet
    work: Work
    sign: SignReceipt
    make_pool: MakePool
    clock: Clock
    tell: Callable[[VisitPhase], None]
    ratchet: Ratchet = field(default_factory=Ratchet)
    dock: Dock | None = None
    sink: Sink = discard


class HostedVisit:
    """One visit, from its offer to its end."""

    def __init__(self, offer: OfferVisit, setup: HostSetup) -> None:
        setup.rules.admit(offer)
        self._offer = offer
        self._setup = setup
        self._timer = PhaseTimer(setup.clock, self._tell_phase)
        self._released = self._find(offer)
        self._session: VisitSession | None = None
        self._lease: Lease | None = None
        self._loaded = Loaded(0, 0)
        self._scrubbed: ScrubSummary | None = None
        with self._timer.phase("offer"):
            resource = self._released.resource
            buffer_bytes = offer.rows * resource.row_bytes
            self._pool = setup.make_pool(buffer_bytes, resource.record_bytes)
        self._visit = Visit(
            offer.visit, self._pool.handle, buffer_bytes, clock=setup.clock
        )

    @property
    def state(self) -> State:
        """Where the visit stands."""
        return self._visit.state

    def offered(self) -> BufferOffered:
        """The answer to the orchestrator."""
        return BufferOffered(
            self._offer.visit, self._pool.handle, self._visit.buffer_bytes
        )

    def run(self, signed: SignedLease) -> VisitEnded:
        """Meet the holder, load, work, scrub, and say how it ended.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        metrics: Mapping[str, float] = {}
        failure: Failed | None = None
        fatal = False
        try:
            self._load(signed)
            metrics = self._train()
        except SealiftError as error:
            failure, fatal = _forget(error), isinstance(error, JobError)
            self._visit.revoke(failure.code)
        except BaseException:  # a signal: scrub, then let it pass
            self.abandon("stopped")
            raise
        scrubbed = self._scrub()
        self._answer(failure, scrubbed, metrics)
        return self._ended(failure, metrics, scrubbed, fatal=fatal)

    def withdraw(self) -> VisitEnded:
        """The orchestrator grants nothing: the holder is gone."""
        self._visit.revoke("withdrawn")
        failure = Failed("holder-missing", "the holder is gone")
        return self._ended(failure, {}, self._scrub(), fatal=False)

    def abandon(self, reason: str) -> ScrubSummary | None:
        """Revoke and scrub from any state; the last scrub. Safe to repeat."""
        if self._visit.state not in (State.VERIFIED, State.FAILED):
            self._visit.revoke(reason)
            self._scrub()
        _close(self._session)
        return self._scrubbed

    def _find(self, offer: OfferVisit) -> ReleasedResource:
        released = self._setup.released.get(offer.resource)
        if released is None or released.resource.owner != offer.holder:
            raise PolicyError("no key was released for that", code="no-such-resource")
        resource = released.resource
        inside = 0 <= offer.first_row <= resource.rows - offer.rows
        if part_for(offer.purpose) != resource.part or offer.rows < 1 or not inside:
            raise PolicyError(
                "the visit asks for rows that are not there", code="bad-rows"
            )
        return released

    def _load(self, signed: SignedLease) -> None:
        lease = verify_lease(signed, self._setup.terms)
        self._check_against_offer(lease)
        self._visit.accept(lease, self._released.resource.record_bytes)
        self._lease = lease
        with self._timer.phase("handshake"):
            session = self._setup.meet(lease, self._visit.remaining_s())
            self._session = session
        with self._timer.phase("load"):
            self._loaded = self._loader().load(session)

    def _loader(self) -> CargoLoader:
        return CargoLoader(
            self._visit,
            self._released.resource,
            self._released.data_key,
            pool=self._pool,
            heads=self._setup.heads,
            ratchet=self._setup.ratchet,
            dock=self._setup.dock,
            sink=self._setup.sink,
        )

    def _train(self) -> Mapping[str, float]:
        self._visit.begin_training()
        self._setup.rules.begin(self._offer)
        with self._timer.phase("train"):
            cargo = LoadedCargo(self._offer, self._released.resource, self._pool.buffer)
            metrics = self._setup.work(cargo)
        self._setup.rules.count(self._offer)
        self._visit.begin_scrub()
        return metrics

    def _scrub(self) -> ScrubSummary:
        with self._timer.phase("scrub"):
            report = self._scrubbed = scrub(self._pool.regions())
            self._visit.end()
            self._pool.close()
        return report

    def _answer(
        self,
        failure: Failed | None,
        scrubbed: ScrubSummary,
        metrics: Mapping[str, float],
    ) -> None:
        """Receipt or refusal to the holder; it may be gone by now."""
        session = self._session
        if session is None or self._lease is None:
            return
        with suppress(SealiftError), self._timer.phase("receipt"):
            if failure is None:
                account = VisitAccount(
                    lease=self._lease,
                    offer=self._offer,
                    loaded=self._loaded,
                    phases_s=self._timer.seconds,
                    scrubbed=scrubbed,
                )
                receipt = self._setup.sign(account)
                send_message(session, Receipted(receipt, dict(metrics)))
            else:
                send_message(session, failure)
        _close(session)

    def _ended(
        self,
        failure: Failed | None,
        metrics: Mapping[str, float],
        scrubbed: ScrubSummary,
        *,
        fatal: bool,
    ) -> VisitEnded:
        return VisitEnded(
            visit=self._offer.visit,
            outcome="verified" if failure is None else "failed",
            reason=failure.code if failure else "",
            line=failure.line if failure else "",
            sealed_bytes=self._loaded.sealed_bytes,
            phases_s=dict(self._timer.seconds),
            metrics=dict(metrics),
            scrubbed_bytes=scrubbed.scrubbed_bytes,
            fatal=fatal,
        )

    def _check_against_offer(self, lease: Lease) -> None:
        offer, resource = self._offer, self._released.resource
        expected = (
            offer.visit,
            offer.holder,
            offer.resource,
            offer.purpose,
            offer.first_row,
            (offer.rows, resource.row_bytes),
            resource.content,
        )
        told = (
            lease.visit,
            lease.holder,
            lease.resource,
            lease.purpose,
            lease.first_row,
            lease.shape,
            lease.content,
        )
        if told != expected:
            raise PolicyError("the lease is not what was offered", code="foreign-lease")

    def _tell_phase(self, phase: str) -> None:
        message = VisitPhase(self._offer.visit, phase)
        self._setup.tell(message)
        # A holder whose visit was revoked waits for the refusal, not for progress.
        told = phase in ("train", "scrub") and not self._visit.revoked_for
        if told and self._session is not None:
            with suppress(SealiftError):
                send_message(self._session, message)


def _forget(error: SealiftError) -> Failed:
    """Keep an error's name and line; let go of every frame that may hold rows."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None:
            waiting += [each.__context__, each.__cause__]
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = each.__context__ = each.__cause__ = None
    return Failed(error.code, str(error))


def _close(session: VisitSession | None) -> None:
    if session is not None:
        session.close()
