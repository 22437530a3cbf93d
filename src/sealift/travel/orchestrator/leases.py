"""Offers, leases and what is told about them: the orchestrator's hand in one visit."""

from __future__ import annotations

from dataclasses import dataclass

from sealift.crypto.sign import Signer
from sealift.data.schedule.visits import Stop
from sealift.errors import PeerError
from sealift.events import Sink, emit
from sealift.ids import VisitId
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.session import Session
from sealift.travel.orchestrator.roster import Roster
from sealift.travel.settings import JobSettings
from sealift.travel.visit.lease import Lease, sign_lease
from sealift.travel.visit.messages import (
    BufferOffered,
    Departed,
    Failed,
    Granted,
    OfferVisit,
    VisitEnded,
    Withdrawn,
    send_message,
)


@dataclass(frozen=True, slots=True)
class Offered:
    """An offer, and the holder that it is for."""

    offer: OfferVisit
    holder: Session


class Granting:
    """Makes offers and signs leases for one job.

    Args:
        agreement: Verified; names resources.
        settings: Of the job.
        roster: A holder that is gone leaves it.
        signer: The operator's identity; signs leases.
        job: Name of the job.
        sink: Where progress goes.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        settings: JobSettings,
        *,
        roster: Roster,
        signer: Signer,
        job: str,
        sink: Sink,
    ) -> None:
        self._agreement = agreement
        self._settings = settings
        self._roster = roster
        self._signer = signer
        self._job = job
        self._sink = sink
        self._number = 0

    def offer(self, stop: Stop, position: int) -> OfferVisit:
        """An offer for a stop, under a fresh visit id."""
        self._number += 1
        offer = OfferVisit(
            visit=VisitId.generate(),
            position=position,
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

    def grant(
        self, offered: Offered, buffer: BufferOffered, accelerator: Session
    ) -> None:
        """The holder first: if it is gone, the accelerator need not wait for it.

        Raises:
            PeerError: if the accelerator is gone.
        """
        lease = self._lease(offered.offer, buffer, accelerator)
        signed = sign_lease(lease, self._signer)
        try:
            send_message(offered.holder, Granted(signed))
        except PeerError:
            self._roster.leave(offered.holder)
            send_message(accelerator, Withdrawn(lease.visit))
        else:
            send_message(accelerator, Granted(signed))

    def tell_phase(self, offer: OfferVisit, phase: str) -> None:
        """A visit entered a phase."""
        emit(self._sink, "visit.phase", **_names(offer), phase=phase)

    def tell_again(self, stop: Stop, cause: Failed, pause_s: float) -> None:
        """A visit failed, and its holder is asked again after a pause."""
        emit(self._sink, "visit.again", **_cause(stop, cause), pause_s=pause_s)

    def tell_skipped(self, stop: Stop, cause: Failed) -> None:
        """A stop of the plan comes to nothing."""
        emit(self._sink, "visit.skipped", **_cause(stop, cause))

    def tell_departed(self, told: Departed) -> None:
        """An owner's keys have ended at the accelerator."""
        emit(self._sink, "owner.departed", owner=told.owner, line=told.line[:300])

    def tell_end(self, offer: OfferVisit, ended: VisitEnded) -> None:
        """A visit ended."""
        phases = {f"{name}_s": seconds for name, seconds in ended.phases_s.items()}
        metrics = {f"metric.{name}": value for name, value in ended.metrics.items()}
        curve = {f"curve.{place}": value for place, value in enumerate(ended.curve)}
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
            **curve,
        )

    def _lease(
        self, offer: OfferVisit, buffer: BufferOffered, accelerator: Session
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
            handle=buffer.handle,
            offset=0,
            max_bytes=offer.rows * resource.row_bytes,
            dtype="uint8",
            shape=(offer.rows, resource.row_bytes),
            first_row=offer.first_row,
            mode="write-only",
            lease_s=self._settings.run.lease_s,
            content=resource.content,
        )


def _cause(stop: Stop, cause: Failed) -> dict[str, str | int]:
    return {
        "holder": stop.holder,
        "resource": stop.resource,
        "epoch": stop.epoch,
        "reason": cause.code,
        "line": cause.line,
    }


def _names(offer: OfferVisit) -> dict[str, str | int]:
    return {
        "visit": offer.visit.to_text(),
        "number": offer.number,
        "position": offer.position,
        "epoch": offer.epoch,
        "holder": offer.holder,
        "resource": offer.resource,
        "purpose": offer.purpose,
    }
