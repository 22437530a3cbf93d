"""A secret for one recipient, sealed by HPKE and signed; most of all a released key.

HPKE in base mode encrypts and does not authenticate, so the sender signs enc || ciphertext
|| H(info). A released key is also logged, and its receiver compares the opened key with
the resource's commitment in the agreement (rule C9), so nobody can replace a key.
Source: spec/release.md section Release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.channel.record.commitment import key_commitment
from sealift.codec import encode
from sealift.crypto.hash import sha256, verify_equal
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey, seal_key
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    RefusedError,
    StaleError,
)
from sealift.ids import Digest
from sealift.release.agreement import Part, Party, Resource, RunTerms
from sealift.release.log.entries import Logged

CHALLENGE_BYTES: Final = 32
# Counted by the receiver from the moment it made the challenge; a release is made at
# once, so this only bounds how long a delayed answer is of use.
EXPIRY_S: Final = 60


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Asks for the key of one resource.

    Attributes:
        purpose: What it will be used for.
        challenge: 32 fresh random bytes; the answer carries them.
        run: Of rows: what the job sets that the key is for.
    """

    resource: str
    purpose: Part
    challenge: bytes
    run: RunTerms | None = None

    def __post_init__(self) -> None:
        check_challenge(self.challenge)

    def grant_info(
        self, agreement: Digest, owner: str, recipient: bytes
    ) -> ReleaseInfo:
        """What the answer to it is bound to, on both sides."""
        return ReleaseInfo(
            agreement=agreement,
            resource=self.resource,
            purpose=self.purpose,
            owner=owner,
            recipient=recipient,
            challenge=self.challenge,
            expiry_s=EXPIRY_S,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseInfo:
    """What a released key is bound to (rule C9).

    Attributes:
        recipient: th2 of the session with the recipient.
        expiry_s: Seconds after the challenge was made, by the recipient's clock.
    """

    agreement: Digest
    resource: str
    purpose: Part
    owner: str
    recipient: bytes
    challenge: bytes
    expiry_s: int


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A data key, sealed to one session's recipient and signed by its owner."""

    info: ReleaseInfo
    sealed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class KeyRelease(Logged):
    """What crosses: the log entry that was written before, and the sealed key."""

    key: SealedKey


def check_challenge(challenge: bytes) -> None:
    """Refuse a challenge of another length."""
    if len(challenge) != CHALLENGE_BYTES:
        raise MalformedError(
            f"a challenge must have {CHALLENGE_BYTES} bytes", field="challenge"
        )


def seal_grant(
    secret: SecretKey,
    info: object,
    *,
    recipient: HpkePublicKey,
    signer: Signer,
    label: Label,
) -> tuple[bytes, bytes]:
    """Seal a secret to its recipient and sign that: (sealed, signature).

    Args:
        secret: Stays as it is.
        info: A record of the codec: what the grant is bound to (rule C9).
        recipient: Who opens it.
        signer: Who grants it.
        label: Separates kinds of grants.
    """
    sealed = seal_key(secret, encode(info), recipient)
    return sealed, signer.sign(label, _signed_bytes(sealed, info))


def verify_grant(
    info: object, sealed: bytes, signature: bytes, *, signer: PublicKey, label: Label
) -> None:
    """Demand that ``signer`` granted this; raises AuthenticationError."""
    signer.verify(label, _signed_bytes(sealed, info), signature)


def open_grant(info: object, sealed: bytes, private: HpkePrivateKey) -> SecretKey:
    """The secret of a verified grant; raises AuthenticationError."""
    return private.open(encode(info), sealed)


def open_release(
    release: KeyRelease,
    *,
    expected: ReleaseInfo,
    owner: Party,
    resource: Resource,
    private: HpkePrivateKey,
) -> SecretKey:
    """Return the data key if the release is what was asked for, from its owner.

    Args:
        release: What came.
        expected: The info that our request, session and agreement lead to.
        owner: The resource's owner in the agreement.
        resource: The resource in the agreement.
        private: Our private half for this session.

    Raises:
        StaleError: ``release-foreign``: made for another request, session or agreement.
        RefusedError: ``release-unsigned``: the owner did not sign it.
        PolicyError: ``other-log``: it stands in another owner's log.
        IntegrityError: ``release-unlogged`` or ``other-key``.
        AuthenticationError: if it does not open.
    """
    if release.key.info != expected:
        raise StaleError(
            "the released key belongs to another request",
            why="its agreement, resource, session or challenge differs",
            code="release-foreign",
        )
    sealed = release.key.sealed
    verify_owner(Label.RELEASE, expected, sealed, release.key.signature, owner)
    entry = release.verify(owner.sign, "the release")
    if (entry.kind, entry.info) != ("release", info_digest(expected)):
        raise IntegrityError(
            "the log entry is not about this key release", code="release-unlogged"
        )
    data_key = open_grant(expected, sealed, private)
    _verify_commitment(data_key, resource)
    return data_key


def verify_owner(
    label: Label, info: object, sealed: bytes, signature: bytes, owner: Party
) -> None:
    """Demand that the owner signed what was released, a key or a share of one.

    Raises:
        RefusedError: ``release-unsigned``.
    """
    try:
        verify_grant(info, sealed, signature, signer=owner.sign, label=label)
    except AuthenticationError:
        raise RefusedError(
            f"the released secret is not signed by {owner.name}",
            code="release-unsigned",
        ) from None


def _verify_commitment(data_key: SecretKey, resource: Resource) -> None:
    try:
        computed = key_commitment(data_key, resource.name)
        verify_equal(computed.raw, resource.key.raw)
    except AuthenticationError:
        data_key.wipe()
        raise IntegrityError(
            f"the key of {resource.name} is not the one in the agreement",
            fix="The resource was sealed again: sign a successor with its owner's new card",
            code="other-key",
        ) from None


def info_digest(info: object) -> Digest:
    """What the log says about a release."""
    return Digest.of(encode(info))


def _signed_bytes(sealed: bytes, info: object) -> bytes:
    # The hash has a fixed length and stands last, so the two parts cannot blur.
    return sealed + sha256(encode(info))
