"""A released key on the wire: sealed, signed, logged; and how its receiver checks it.

HPKE in base mode hides and does not authenticate, so the owner signs enc || ciphertext
|| H(info), and the receiver checks the opened key against the resource's commitment in
the agreement as well (rule C9): nobody can plant a key.
Source: spec/release.md section Release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.channel.record.commitment import key_commitment
from sealift.codec import decode, encode
from sealift.crypto import hpke
from sealift.crypto.hash import sha256, verify_equal
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey
from sealift.crypto.kdf import Label
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import Signer
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
    RefusedError,
    StaleError,
)
from sealift.ids import Digest
from sealift.release.agreement import Part, Party, Resource
from sealift.release.log.entries import (
    Inclusion,
    LogEntry,
    SignedTreeHead,
    verify_entry,
    verify_head,
)

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
    """

    resource: str
    purpose: Part
    challenge: bytes

    def __post_init__(self) -> None:
        check_challenge(self.challenge)


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
class KeyRelease:
    """What crosses: the sealed key, and the log entry that was written before.

    Attributes:
        key: The sealed key.
        entry: Canonical bytes of the log entry.
        inclusion: Shows that the log holds the entry.
        head: Covers it; shown to every holder.
    """

    key: SealedKey
    entry: bytes
    inclusion: Inclusion
    head: SignedTreeHead


def check_challenge(challenge: bytes) -> None:
    """Refuse a challenge of another length."""
    if len(challenge) != CHALLENGE_BYTES:
        raise MalformedError(
            f"a challenge has {CHALLENGE_BYTES} bytes", field="challenge"
        )


def seal_key(
    data_key: SecretKey, info: ReleaseInfo, *, recipient: HpkePublicKey, owner: Signer
) -> SealedKey:
    """Seal a data key to the recipient's session key and sign it as its owner."""
    raw = encode(info)
    sealed = hpke.seal_key(data_key, raw, recipient)
    signature = owner.sign(Label.RELEASE, _signed_bytes(sealed, raw))
    return SealedKey(info, sealed, signature)


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
        IntegrityError: ``release-unlogged`` or ``other-key``.
        AuthenticationError: if it does not open.
    """
    if release.key.info != expected:
        raise StaleError(
            "the key was released for something else",
            why="another agreement, resource, session or challenge",
            code="release-foreign",
        )
    raw = encode(expected)
    sealed, signature = release.key.sealed, release.key.signature
    verify_owner(Label.RELEASE, _signed_bytes(sealed, raw), signature, owner)
    _verify_logged(release, Digest.of(raw), owner)
    data_key = private.open(raw, sealed)
    _verify_commitment(data_key, resource)
    return data_key


def verify_owner(label: Label, message: bytes, signature: bytes, owner: Party) -> None:
    """Demand that the owner signed what was released, a key or a share of one.

    Raises:
        RefusedError: ``release-unsigned``.
    """
    try:
        owner.sign.verify(label, message, signature)
    except AuthenticationError:
        raise RefusedError(
            f"what was released is not signed by {owner.name}", code="release-unsigned"
        ) from None


def _verify_logged(release: KeyRelease, info: Digest, owner: Party) -> None:
    head = verify_head(release.head)
    if head.log != owner.sign:
        raise PolicyError("the release is in another owner's log", code="other-log")
    verify_entry(release.entry, release.inclusion, head)
    entry = decode(LogEntry, release.entry)
    if (entry.kind, entry.info) != ("release", info):
        raise IntegrityError(
            "the log entry is about something else", code="release-unlogged"
        )


def _verify_commitment(data_key: SecretKey, resource: Resource) -> None:
    try:
        computed = key_commitment(data_key, resource.name)
        verify_equal(computed.raw, resource.key.raw)
    except AuthenticationError:
        data_key.wipe()
        raise IntegrityError(
            f"the key of {resource.name} is not the one in the agreement",
            fix="The resource was sealed again: its owner needs a successor agreement",
            code="other-key",
        ) from None


def info_digest(info: ReleaseInfo) -> Digest:
    """What the log says about a release."""
    return Digest.of(encode(info))


def _signed_bytes(sealed: bytes, info: bytes) -> bytes:
    # The hash has a fixed length and stands last, so the two parts cannot blur.
    return sealed + sha256(info)
