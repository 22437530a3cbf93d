"""The accelerator's side of a visit: offer, load, hand to the work, scrub, receipt.

A visit has a pool and a state machine of its own, so that its scrub touches nothing of
another visit that loads meanwhile (rule H2). Loading and work are apart: what is loaded
waits for the orchestrator's word, and one group of visits is worked on at a time.
Whatever goes wrong ends in a revoked visit and a scrubbed pool. A scrub that does not
hold is not a failed visit: it ends the process.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from sealift.errors import PolicyError, SealiftError, StaleError
from sealift.release.agreement import part_for
from sealift.release.receipt import ScrubSummary
from sealift.session.session import Session
from sealift.travel.accelerator.load import CargoLoader
from sealift.travel.accelerator.setup import (
    GroupResult,
    HostSetup,
    LoadedCargo,
    LoadedVisit,
    PhaseTimer,
    ReleasedResource,
    StartOverError,
    Work,
)
from sealift.travel.visit.lease import Lease, SignedLease, verify_lease
from sealift.travel.visit.memory import scrub
from sealift.travel.visit.messages import (
    BufferOffered,
    Failed,
    FailedError,
    OfferVisit,
    Receipted,
    VisitEnded,
    VisitPhase,
    send_message,
)
from sealift.travel.visit.state import Visit, VisitState

CODE: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")


class HostedVisit:
    """One visit, from its offer to its end.

    Attributes:
        offer: What the orchestrator asked for.
        departed: Why its owner's rows may not be here any more, once they may not.
    """

    def __init__(self, offer: OfferVisit, setup: HostSetup) -> None:
        setup.rules.admit(offer)
        self.offer = offer
        self._setup = setup
        self._timer = PhaseTimer(setup.clock, self._tell_phase)
        self._released = self._find(offer)
        self._session: Session | None = None
        self._loader: CargoLoader | None = None
        self._lease: Lease | None = None
        self._loaded = LoadedVisit(0, 0)
        self._scrubbed: ScrubSummary | None = None
        self._ending = threading.RLock()  # a stop may come from another thread
        self.departed: Failed | None = None
        with self._timer.phase("offer"):
            resource = self._released.resource
            buffer_bytes = offer.rows * resource.row_bytes
            self._pool = setup.make_pool(buffer_bytes, resource.record_bytes)
        self._visit = Visit(
            offer.visit, self._pool.handle, buffer_bytes, clock=setup.clock
        )

    @property
    def state(self) -> VisitState:
        """Where the visit stands."""
        return self._visit.state

    def offered(self) -> BufferOffered:
        """The answer to the orchestrator."""
        return BufferOffered(
            self.offer.visit, self._pool.handle, self._visit.buffer_bytes
        )

    @property
    def cargo(self) -> LoadedCargo:
        """What the work gets to see."""
        return LoadedCargo(self.offer, self._released.resource, self._pool.shared)

    def load(self, signed: SignedLease) -> VisitEnded | None:
        """Meet the holder and load; how it ended, if nothing was loaded.

        Raises:
            StaleError: if it has ended.
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        if self._scrubbed is not None:
            raise StaleError("this visit has already ended", code="visit-ended")
        try:
            self._load(signed)
        except SealiftError as error:
            return self.fail(_forget(error))
        except BaseException:  # a signal: scrub, then let it pass
            self.abandon("stopped")
            raise
        self._timer.begin("wait")
        return None

    def begin(self) -> VisitEnded | None:
        """The recipe sees the rows from here on; how it ended, if it may not."""
        try:
            self._visit.begin_training()
            self._setup.rules.begin(self.offer)
            self._setup.debit(self.offer)  # last: what was debited is used
        except SealiftError as error:
            return self.fail(_forget(error))
        if self.departed is not None:  # keys ended while the broker was asked
            return self.fail(self.departed)
        self._timer.end("wait")
        self._timer.begin("train")
        return None

    def finish(self, result: GroupResult) -> VisitEnded:
        """All rows were worked on: scrub, and only then the receipt.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        if self.departed is not None:
            return self.fail(self.departed)
        self._timer.end("train")
        self._setup.rules.count(self.offer)
        self._visit.begin_scrub()
        scrubbed = self._scrub()
        metrics = result.metrics.get(self.offer.resource, {})
        self._hand_receipt(scrubbed, metrics)
        return self._ended(scrubbed, metrics=dict(metrics), curve=result.curve)

    def fail(self, failure: Failed, *, fatal: bool = False) -> VisitEnded:
        """Revoke, scrub, tell the holder; the visit counts for nothing.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        failure = self.departed or failure
        for phase in ("wait", "train"):
            self._timer.end(phase)
        with self._ending:
            if self._scrubbed is None:
                self._visit.revoke(failure.code)
            scrubbed = self._scrub()
        if self._session is not None:
            with suppress(SealiftError), self._timer.phase("receipt"):
                send_message(self._session, failure)
            self.close_session()
        return self._ended(scrubbed, failure, fatal=fatal)

    def withdraw(self) -> VisitEnded:
        """The orchestrator grants nothing: the holder is gone."""
        return self.fail(Failed("holder-missing", "the holder is disconnected"))

    def depart(self, failure: Failed) -> None:
        """Its owner's keys have ended: no frame is admitted, nothing of it is worked on."""
        self.departed = failure
        self.revoke(failure.code)

    def revoke(self, reason: str) -> None:
        """No frame is admitted from here on; whoever loads notices. Never waits."""
        with self._ending:
            if self._scrubbed is None:
                self._visit.revoke(reason)

    def abandon(self, reason: str) -> ScrubSummary | None:
        """Revoke and scrub from any state; the last scrub. Safe to repeat."""
        with self._ending:
            if self._scrubbed is None:
                self._visit.revoke(reason)
                self._scrub()
        self.close_session()
        return self._scrubbed

    def close_session(self) -> None:
        """Hang up on the holder; a load that waits for it ends."""
        if self._loader is not None:
            self._loader.stop()
        if self._session is not None:
            self._session.close()

    def run(self, signed: SignedLease) -> VisitEnded:
        """A whole visit as a group of its own.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        ended = self.load(signed)
        if ended is not None:
            return ended
        try:
            ((_visit, ended),) = work_together([self], self._setup.work)
        except SealiftError:
            raise
        except BaseException:  # a signal: scrub, then let it pass
            self.abandon("stopped")
            raise
        return ended

    def _find(self, offer: OfferVisit) -> ReleasedResource:
        departed = self._setup.departed.get(offer.holder)
        if departed is not None:
            raise departed
        released = self._setup.released.get(offer.resource)
        if released is None or released.resource.owner != offer.holder:
            raise PolicyError(
                "the key for these rows was not released", code="no-such-resource"
            )
        resource = released.resource
        if part_for(offer.purpose) != resource.part:
            raise PolicyError(
                "the visit asks for rows that the table does not have", code="bad-rows"
            )
        resource.require_cells(offer.first_row, offer.rows)
        resource.require_purpose(offer.purpose)
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
            self._loader = CargoLoader(
                self._visit, self._released, self._pool, self._setup
            )
            self._loaded = self._loader.load(session)
        with self._timer.phase("check"):
            self._setup.check(self.cargo)

    def _scrub(self) -> ScrubSummary:
        with self._ending:
            if self._scrubbed is None:
                with self._timer.phase("scrub"):
                    report = scrub(self._pool.regions())
                    self._visit.end()
                    self._pool.close()
                self._scrubbed = report
            return self._scrubbed

    def _hand_receipt(
        self, scrubbed: ScrubSummary, metrics: Mapping[str, float]
    ) -> None:
        """To the holder, which may be gone by now."""
        if self._session is None or self._lease is None:
            return
        with suppress(SealiftError), self._timer.phase("receipt"):
            receipt = self._setup.sign(
                self._lease, self._loaded, self._timer.seconds, scrubbed
            )
            send_message(self._session, Receipted(receipt, dict(metrics)))
        self.close_session()

    def _ended(
        self,
        scrubbed: ScrubSummary,
        failure: Failed | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        curve: tuple[float, ...] = (),
        fatal: bool = False,
    ) -> VisitEnded:
        return VisitEnded(
            visit=self.offer.visit,
            outcome="verified" if failure is None else "failed",
            reason=failure.code if failure else "",
            line=failure.line if failure else "",
            sealed_bytes=self._loaded.sealed_bytes,
            phases_s=dict(self._timer.seconds),
            metrics=dict(metrics or {}),
            scrubbed_bytes=scrubbed.scrubbed_bytes,
            fatal=fatal,
            curve=curve,
        )

    def _check_against_offer(self, lease: Lease) -> None:
        offer, resource = self.offer, self._released.resource
        names = ("visit", "holder", "resource", "purpose", "first_row")
        same = all(getattr(lease, name) == getattr(offer, name) for name in names)
        shape = (offer.rows, resource.row_bytes)
        if not same or (lease.shape, lease.content) != (shape, resource.content):
            raise PolicyError("the lease differs from the offer", code="foreign-lease")

    def _tell_phase(self, phase: str) -> None:
        message = VisitPhase(self.offer.visit, phase)
        self._setup.tell(message)
        # A holder whose visit was revoked waits for the refusal, not for progress.
        told = phase in ("train", "scrub") and not self._visit.revoked_for
        if told and self._session is not None:
            with suppress(SealiftError):
                send_message(self._session, message)


def work_together(
    visits: Sequence[HostedVisit], work: Work
) -> Iterator[tuple[HostedVisit, VisitEnded]]:
    """Work on loaded visits as one group; each visit with its end, as it ends.

    A signal passes; the caller abandons what is left.

    Raises:
        StartOverError: if the work cannot go on here; the caller abandons everything.
        IntegrityError: if a scrub did not hold; the process must stop.
    """
    begun = []
    for visit in visits:
        refused = visit.begin()
        if refused is None:
            begun.append(visit)
        else:
            yield visit, refused
    if not begun:
        return
    try:
        result = work([visit.cargo for visit in begun])
    except StartOverError:
        raise
    except SealiftError as error:
        failure = _forget(error)  # of no party: rows were checked, keys are here
        left = next((each.departed for each in begun if each.departed), None)
        for visit in begun:  # what was cut because somebody left is nobody's failure
            yield visit, visit.fail(left or failure, fatal=left is None)
    else:
        for visit in begun:
            yield visit, visit.finish(result)


def _forget(error: SealiftError) -> Failed:
    """Keep an error's name and line; let go of every frame that may hold rows."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None:
            waiting += [each.__context__, each.__cause__]
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = each.__context__ = each.__cause__ = None
    # Whoever refused says why; what is no name of an error stays ``peer-failed``.
    told = error.failed.code if isinstance(error, FailedError) else ""
    return Failed(told if CODE.fullmatch(told) else error.code, str(error))
