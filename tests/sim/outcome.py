"""How a visit of the visit world went."""

from __future__ import annotations

from dataclasses import dataclass, field

from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError
from sealift.release.receipt import SignedReceipt
from sealift.travel.visit.lease import SignedLease
from sealift.travel.visit.messages import OfferVisit, VisitEnded


@dataclass
class Outcome:
    """How one visit went, at both ends."""

    offer: OfferVisit
    lease: SignedLease
    ended: VisitEnded | None = None
    error: BaseException | None = None
    receipt: SignedReceipt | None = None
    holder_error: SealiftError | None = None
    wire: list[bytes] = field(default_factory=list)
    secrets: dict[str, SecretKey] = field(default_factory=dict)
    th2: bytes = b""

    @property
    def reason(self) -> str:
        """Why the visit failed; empty if it did not."""
        assert self.ended is not None, self.error
        return self.ended.reason

    @property
    def verified(self) -> bool:
        """Whether the accelerator trained on the cargo and gave a receipt."""
        return self.ended is not None and self.ended.outcome == "verified"
