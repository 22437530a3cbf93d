"""The orchestrator: who is visited when, under which lease. It sees no data and no key.

It is trusted for progress only: what counts (visits per holder, distinct holders, what
leaves) is enforced by the accelerator, and it signs nothing but leases (rules H8, M4).
A holder that is dead, stalled or misbehaving loses its visit; the job says whether it
is waited for or skipped, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from sealift.crypto.sign import Signer
from sealift.errors import JobError, PeerError, SealiftError
from sealift.events import Sink, emit
from sealift.ids import Role, VisitId
from sealift.release.signed import VerifiedAgreement
from sealift.session.session import Session
from sealift.travel.lease import (
    Lease,
    SignedLease,
    check_mode,
    check_seconds,
    sign_lease,
)
from sealift.travel.messages import (
    FAREWELL_S,
    BufferOffered,
    Failed,
    Finished,
    FinishJob,
    Granted,
    JobFinished,
    JobReady,
    OfferVisit,
    Output,
    StartJob,
    VisitEnded,
    VisitPhase,
    Withdrawn,
    await_end,
    receive_message,
    send_message,
)
from sealift.travel.roster import Roster
from sealift.travel.schedule import Stop, plan_job
from sealift.travel.settings import TravelSettings
from sealift.travel.state import Clock
from sealift.travel.told import NEVER_LATER, told_errors

ANSWER_WAIT_S: Final = 60.0
WriteOutput = Callable[[Output], None]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended.

    Attributes:
        visits: Verified visits.
        skipped: Planned visits that were skipped.
        finished: The accelerator's signed account.
    """

    visits: int
    skipped: int
    finished: JobFinished


class Orchestrator:
    """Runs one job over the roles in its roster.

    Args:
        agreement: Verified; names parties, resources and rules.
        settings: How the job travels.
        roster: Live sessions.
        signer: The operator's identity; signs leases.
        job: Name of the job.
        clock: Monotonic seconds.
        sink: Where progress goes.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        settings: TravelSettings,
        *,
        roster: Roster,
        signer: Signer,
        job: str,
        clock: Clock,
        sink: Sink,
    ) -> None:
        self._agreement = agreement
        self._settings = settings
        self._roster = roster
        self._signer = signer
        self._job = job
        self._clock = clock
        self._sink = sink
        self._number = 0
        self._verified = 0
        self._skipped = 0

    def run(self, start: StartJob, write_output: WriteOutput) -> RunSummary:
        """Gather the roles, run every planned visit, collect the output.

        Raises:
            PeerError: if the accelerator is missing or gone.
            JobError: if the recipe failed.
            PolicyError: if the job's leases would last longer than agreed.
        """
        agreed = self._agreement.agreement.travel
        check_seconds(self._settings.lease_s, agreed.lease_s)
        check_mode(self._settings.mode, agreed.modes)
        outcome = "failed"
        try:
            self._gather()
            self._start(start)
            self._visit_all()
            finished = self._finish(write_output)
            outcome = "finished"
        finally:
            self._dismiss(outcome)
        return RunSummary(self._verified, self._skipped, finished)

    def _gather(self) -> None:
        deadline = self._clock() + self._settings.gather_s
        self._accelerator(self._settings.gather_s)
        for holder in self._agreement.agreement.holders:
            left = max(0.0, deadline - self._clock())
            try:
                self._roster.wait_for(Role.HOLDER, holder, left)
            except PeerError as error:
                if self._settings.on_missing == "wait":
                    raise
                emit(self._sink, "holder.missing", holder=holder, line=str(error))
        emit(self._sink, "job.gathered", holders=len(self._agreement.agreement.holders))

    def _start(self, start: StartJob) -> None:
        accelerator = self._accelerator()
        send_message(accelerator, start)
        limit_s = self._settings.brokers_s + ANSWER_WAIT_S
        with told_errors():
            ready = receive_message(accelerator, JobReady, timeout_s=limit_s)
        self._settings = replace(self._settings, buffer_bytes=ready.buffer_bytes)
        emit(
            self._sink,
            "job.ready",
            level=ready.level,
            keys=ready.keys,
            position=ready.position,
            buffer_bytes=ready.buffer_bytes,
            why=ready.why,
            sandbox=ready.sandbox,
        )

    def _visit_all(self) -> None:
        resources = self._agreement.agreement.resources
        for group in plan_job(resources, self._settings):
            for stop in group.stops:
                self._attend(stop)

    def _attend(self, stop: Stop) -> None:
        """Visit a holder, again if the job waits for it, or skip it."""
        deadline = self._clock() + self._settings.wait_s
        waits, line = self._settings.on_missing == "wait", ""
        for _attempt in range(self._settings.attempts if waits else 1):
            left = max(0.0, deadline - self._clock()) if waits else 0.0
            try:
                holder = self._roster.wait_for(Role.HOLDER, stop.holder, left)
            except PeerError as error:
                self._skip(stop, str(error))
                return
            ended = self._visit(stop, holder)
            if ended.outcome == "verified":
                self._verified += 1
                return
            if ended.fatal:
                raise JobError("the job failed", why=ended.line, code=ended.reason)
            line = ended.line
            if ended.reason in NEVER_LATER:
                break
        self._skip(stop, line)

    def _visit(self, stop: Stop, holder: Session) -> VisitEnded:
        accelerator = self._accelerator()
        offer = self._offer(stop)
        send_message(accelerator, offer)
        offered = receive_message(
            accelerator, BufferOffered, Failed, timeout_s=ANSWER_WAIT_S
        )
        if isinstance(offered, Failed):
            return self._refused(offer, offered)
        signed = sign_lease(self._lease(offer, offered, accelerator), self._signer)
        self._grant(signed, holder, accelerator)
        limit_s = self._settings.lease_s + self._settings.work_s
        while True:
            told = receive_message(
                accelerator, VisitPhase, VisitEnded, timeout_s=limit_s
            )
            if isinstance(told, VisitEnded):
                self._emit_end(offer, told)
                return told
            emit(self._sink, "visit.phase", **_names(offer), phase=told.phase)

    def _refused(self, offer: OfferVisit, failed: Failed) -> VisitEnded:
        """The accelerator makes no offer: no key for it, or too many visits."""
        ended = VisitEnded(
            visit=offer.visit, outcome="failed", reason=failed.code, line=failed.line
        )
        self._emit_end(offer, ended)
        return ended

    def _grant(
        self, signed: SignedLease, holder: Session, accelerator: Session
    ) -> None:
        """The holder first: if it is gone, the accelerator need not wait for it."""
        try:
            send_message(holder, Granted(signed))
        except PeerError:
            self._roster.leave(holder)
            send_message(accelerator, Withdrawn(signed.lease.visit))
        else:
            send_message(accelerator, Granted(signed))

    def _offer(self, stop: Stop) -> OfferVisit:
        self._number += 1
        offer = OfferVisit(
            visit=VisitId.generate(),
            number=self._number,
            epoch=stop.epoch,
            holder=stop.holder,
            resource=stop.resource,
            purpose=stop.purpose,
            first_row=stop.first_row,
            rows=stop.rows,
        )
        emit(self._sink, "visit.offered", **_names(offer), rows=offer.rows)
        return offer

    def _lease(
        self, offer: OfferVisit, offered: BufferOffered, accelerator: Session
    ) -> Lease:
        resource = self._agreement.resource(offer.resource)
        return Lease(
            job=self._job,
            visit=offer.visit,
            agreement=self._agreement.digest,
            accelerator=accelerator.peer.instance,
            holder=offer.holder,
            resource=offer.resource,
            purpose=offer.purpose,
            handle=offered.handle,
            offset=0,
            max_bytes=offer.rows * resource.row_bytes,
            dtype="uint8",
            shape=(offer.rows, resource.row_bytes),
            first_row=offer.first_row,
            mode="write-only",
            lease_s=self._settings.lease_s,
            content=resource.content,
            crossing=self._settings.mode,
        )

    def _finish(self, write_output: WriteOutput) -> JobFinished:
        accelerator = self._accelerator()
        send_message(accelerator, FinishJob(self._job))
        while True:
            with told_errors():
                told = receive_message(
                    accelerator, Output, JobFinished, timeout_s=ANSWER_WAIT_S
                )
            if isinstance(told, JobFinished):
                return told
            write_output(told)

    def _dismiss(self, outcome: str) -> None:
        """Tell every holder, and wait until it has heard: the relay ends with us."""
        finished = Finished(outcome, self._agreement.digest)
        told = []
        for session in self._roster.sessions(Role.HOLDER):
            with suppress(SealiftError):
                send_message(session, finished)
                told.append(session)
        deadline = self._clock() + FAREWELL_S
        for session in told:
            await_end(session, max(0.0, deadline - self._clock()))

    def _skip(self, stop: Stop, line: str) -> None:
        self._skipped += 1
        emit(
            self._sink,
            "visit.skipped",
            holder=stop.holder,
            resource=stop.resource,
            epoch=stop.epoch,
            line=line,
        )

    def _emit_end(self, offer: OfferVisit, ended: VisitEnded) -> None:
        phases = {f"{name}_s": seconds for name, seconds in ended.phases_s.items()}
        metrics = {f"metric.{name}": value for name, value in ended.metrics.items()}
        emit(
            self._sink,
            "visit.ended",
            **_names(offer),
            outcome=ended.outcome,
            reason=ended.reason,
            line=ended.line,
            rows=offer.rows,
            sealed_bytes=ended.sealed_bytes,
            scrubbed_bytes=ended.scrubbed_bytes,
            **phases,
            **metrics,
        )

    def _accelerator(self, timeout_s: float = 0.0) -> Session:
        return self._roster.wait_for(Role.ACCELERATOR, "accelerator", timeout_s)


def _names(offer: OfferVisit) -> dict[str, str | int]:
    return {
        "visit": offer.visit.to_text(),
        "number": offer.number,
        "epoch": offer.epoch,
        "holder": offer.holder,
        "purpose": offer.purpose,
    }
