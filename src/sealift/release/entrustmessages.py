"""What an owner and a shared broker say to each other, and how a key is sealed in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sealift.codec import encode
from sealift.crypto.hash import sha256
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.kdf import Label
from sealift.crypto.sign import Signer
from sealift.errors import AuthenticationError, MalformedError, RefusedError
from sealift.ids import Digest
from sealift.release.agreement import Party
from sealift.release.appointment import SignedAppointment
from sealift.release.audit import SignedTreeHead
from sealift.release.broker import CHALLENGE_BYTES, EXPIRY_S
from sealift.release.brokermessages import Refusal
from sealift.release.statement import SignedStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrustInfo:
    """What an entrusted key is bound to (rule C9); like ``ReleaseInfo``."""

    agreement: Digest
    resource: str
    purpose: Literal["entrust"] = "entrust"
    owner: str
    recipient: bytes
    challenge: bytes
    expiry_s: int = EXPIRY_S


@dataclass(frozen=True, slots=True)
class EntrustedKey:
    """A data key, sealed to one session of the broker and signed by its owner."""

    info: EntrustInfo
    sealed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Entrustment:
    """All that an owner gives.

    Attributes:
        keys: One for each of its resources, in the agreement's order.
    """

    appointment: SignedAppointment
    keys: tuple[EntrustedKey, ...]


@dataclass(frozen=True, slots=True)
class EntrustRequest:
    """From an owner: one of three.

    Attributes:
        begin: Asks for a challenge.
        keys: Entrusts.
        withdraw: Takes everything back.
    """

    begin: bool = False
    keys: Entrustment | None = None
    withdraw: SignedStatement | None = None

    def __post_init__(self) -> None:
        asked = (self.begin or None, self.keys, self.withdraw)
        if sum(each is not None for each in asked) != 1:
            raise MalformedError("a broker is asked one thing at a time")


@dataclass(frozen=True, slots=True)
class EntrustAnswer:
    """From the broker: exactly one.

    Attributes:
        challenge: 32 fresh bytes.
        head: Of the owner's log, which began with the appointment.
        withdrawn: Whether there were keys, which are gone now.
    """

    refusal: Refusal | None = None
    challenge: bytes | None = None
    head: SignedTreeHead | None = None
    withdrawn: bool | None = None

    def __post_init__(self) -> None:
        if self.challenge is not None and len(self.challenge) != CHALLENGE_BYTES:
            raise MalformedError(
                f"a challenge has {CHALLENGE_BYTES} bytes", field="challenge"
            )


def sign_entrusted(
    info: EntrustInfo, key: bytes, recipient: HpkePublicKey, owner: Signer
) -> EntrustedKey:
    """Seal a key's bytes for the broker and sign it as its owner."""
    sealed = recipient.seal(encode(info), key)
    signature = owner.sign(Label.ENTRUST, entrusted_bytes(sealed, info))
    return EntrustedKey(info, sealed, signature)


def entrusted_bytes(sealed: bytes, info: EntrustInfo) -> bytes:
    """What an owner signs of an entrusted key; see ``release/grant.py``."""
    return sealed + sha256(encode(info))


def verify_entrusted(given: EntrustedKey, owner: Party) -> None:
    """Demand that the owner signed it; raises ``release-unsigned``."""
    message = entrusted_bytes(given.sealed, given.info)
    try:
        owner.sign.verify(Label.ENTRUST, message, given.signature)
    except AuthenticationError:
        raise RefusedError(
            f"what was entrusted is not signed by {owner.name}",
            code="release-unsigned",
        ) from None
