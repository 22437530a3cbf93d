"""An owner appoints one instance of a broker to release its keys, for a time.

The owner signs it once it has judged the broker's evidence, with the digest of that
evidence in it. It names the key that the instance made for this owner alone, the
agreement, each resource by its key's commitment, and how often each key may go out. The
number is taken from the owner's own count first, so that nothing which happens to the
broker's machine makes it larger. What an appointment is good for is decided in
``release/speaking.py``.
Source: spec/release.md section Shared broker (rules C9 and C10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sealift.attest.level import check_level
from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.kdf import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import AuthenticationError, MalformedError, RefusedError
from sealift.ids import Digest, check_name


@dataclass(frozen=True, slots=True)
class Allotment:
    """One resource of the owner.

    Attributes:
        resource: Its name.
        key: Commitment to its data key, as in the agreement.
        uses: How often this instance may release it; 0 for any number.
    """

    resource: str
    key: Digest
    uses: int

    def __post_init__(self) -> None:
        check_name(self.resource, what="resource name")
        if not 0 <= self.uses <= MAX_INTEGER:
            raise MalformedError("out of range", field="uses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appointment:
    """What one owner lets one instance of a broker do.

    Attributes:
        agreement: Under which; a successor needs another appointment.
        owner: Who appoints.
        key: Signs releases, shares and heads in this owner's place; it and the keys that
            it wraps are in the memory of one process.
        resources: All that the owner brings.
        level: What the broker's evidence proved to the owner.
        evidence: Digest of that evidence.
        at_s: Seconds since 1970, by the owner's clock.
        not_after: Until when it is good, likewise.
    """

    format: Literal["sealift-appointment"] = "sealift-appointment"
    version: Literal[1] = 1
    agreement: Digest
    owner: str
    key: PublicKey
    resources: tuple[Allotment, ...]
    level: str
    evidence: Digest
    at_s: int
    not_after: int

    def __post_init__(self) -> None:
        check_name(self.owner, what="party name")
        check_level(self.level)
        if not 0 <= self.at_s < self.not_after <= MAX_INTEGER:
            raise MalformedError("it ends before it begins", field="not_after")

    def uses(self, resource: str) -> int:
        """How often a resource's key may be released; 0 for any number."""
        return next(each.uses for each in self.resources if each.resource == resource)


@dataclass(frozen=True, slots=True)
class SignedAppointment:
    """An appointment and its owner's signature, not verified yet."""

    appointment: Appointment
    signature: bytes

    @property
    def digest(self) -> Digest:
        """Names it in the log that begins with it."""
        return Digest.of(encode(self))


def sign_appointment(appointment: Appointment, owner: Signer) -> SignedAppointment:
    """Sign as the owner."""
    signature = owner.sign(Label.APPOINTMENT, encode(appointment))
    return SignedAppointment(appointment, signature)


def verify_appointment_signature(
    signed: SignedAppointment, owner: PublicKey
) -> Appointment:
    """The appointment, if this key signed it; what it is good for is not looked at.

    Raises:
        RefusedError: ``appointment-unsigned``.
    """
    message = encode(signed.appointment)
    try:
        owner.verify(Label.APPOINTMENT, message, signed.signature)
    except AuthenticationError:
        raise RefusedError(
            f"{signed.appointment.owner} did not sign this appointment",
            why="it was altered, or somebody else speaks for that owner",
            fix="Ask the owner whether it entrusted its keys to this broker",
            code="appointment-unsigned",
        ) from None
    return signed.appointment
