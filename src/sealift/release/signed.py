"""Signatures under an agreement: everybody's, or it binds nobody.

``verify`` is the only maker of a ``VerifiedAgreement``: every party of the document has
signed these very bytes. There is no threshold, so no majority can write a rule for an
owner who did not sign it (rule H7). The file on disk is canonical JSON as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sealift.attest.collateral import Collateral
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser, no_time
from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.crypto.kdf import Label
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
    StaleError,
    UsageError,
)
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Party, Resource
from sealift.release.files import read_whole, write_whole

MAX_AGREEMENT_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class SignedAgreement:
    """An agreement and the signatures found under it, not verified yet."""

    agreement: Agreement
    signatures: dict[str, bytes] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Parties that have not signed, in the order of parties."""
        names = (party.name for party in self.agreement.parties)
        return tuple(name for name in names if name not in self.signatures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a process judges evidence with, beside the signed document.

    Attributes:
        collateral: Of this side, never of the attester (rule H13).
        clock: Seconds since 1970, to judge certificates and collateral at.
    """

    collateral: Collateral = field(default_factory=Collateral)
    clock: Callable[[], float] = no_time


class _VerifiedToken:
    """Shows that an agreement comes from ``verify``."""


_VERIFIED: Final = _VerifiedToken()


@dataclass(frozen=True, slots=True)
class VerifiedAgreement:
    """An agreement that every one of its parties signed.

    Attributes:
        agreement: The document.
        equipment: What this process judges evidence with, beside the document.
    """

    agreement: Agreement
    equipment: Equipment = field(default_factory=Equipment, compare=False)
    token: _VerifiedToken | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not _VERIFIED:
            raise UsageError("verified agreements are made by verify() only")

    @property
    def digest(self) -> Digest:
        """Digest of the agreement."""
        return self.agreement.digest

    @property
    def accept(self) -> tuple[Level, ...]:
        """Accepted levels."""
        return self.agreement.accept

    def equipped(self, equipment: Equipment) -> VerifiedAgreement:
        """The same agreement, with what evidence is judged with."""
        return replace(self, equipment=equipment)

    def appraiser(self) -> Appraiser:
        """Decides about evidence under this agreement."""
        return Appraiser(
            accept=self.accept,
            references=self.agreement.reference_values(),
            collateral=self.equipment.collateral,
            clock=self.equipment.clock,
        )

    def party(self, name: str) -> Party:
        """The party of that name; raises PolicyError if there is none."""
        return self.agreement.party(name)

    def resource(self, name: str) -> Resource:
        """The resource of that name; raises PolicyError if there is none."""
        return self.agreement.resource(name)


def sign(agreement: Agreement, identity: Identity) -> bytes:
    """One party's signature.

    Raises:
        PolicyError: if the identity is no party, or the agreement names another key.
    """
    party = agreement.party(identity.name)
    if party.sign != identity.public_key:
        raise PolicyError(
            f"the agreement names another key for {identity.name}",
            fix="Put your current card into the agreement, or sign with the other key",
            code="other-key",
        )
    return identity.sign(Label.AGREEMENT, encode(agreement))


def add_signature(signed: SignedAgreement, identity: Identity) -> SignedAgreement:
    """``signed`` with one more signature; raises like ``sign``."""
    signature = sign(signed.agreement, identity)
    return replace(signed, signatures={**signed.signatures, identity.name: signature})


def verify(signed: SignedAgreement) -> VerifiedAgreement:
    """Return the agreement if all its parties signed it.

    Raises:
        PolicyError: ``agreement-unsigned``, naming who has not signed.
        IntegrityError: ``agreement-altered``, naming whose signature does not fit.
    """
    verify_signatures(signed)
    if signed.missing:
        raise PolicyError(
            "the agreement is not signed by everybody",
            why=f"{', '.join(signed.missing)} missing",
            fix="Every party runs `sealift agreement sign`; no key is released before",
            code="agreement-unsigned",
        )
    return VerifiedAgreement(signed.agreement, token=_VERIFIED)


def verify_signatures(signed: SignedAgreement) -> SignedAgreement:
    """Return ``signed`` if every signature that is there fits; some may be missing.

    Raises:
        IntegrityError: ``agreement-altered``, naming whose signature does not fit.
        MalformedError: if somebody signed who is no party.
    """
    _require_known_signers(signed)
    message = encode(signed.agreement)
    for party in signed.agreement.parties:
        if party.name in signed.signatures:
            _verify_one(party, message, signed.signatures[party.name])
    return signed


def verify_successor(successor: VerifiedAgreement, previous: Agreement) -> None:
    """Check that one agreement directly follows another.

    Raises:
        StaleError: ``agreement-line``, if it does not.
    """
    after = successor.agreement
    expected = (previous.name, previous.number + 1, previous.digest)
    if (after.name, after.number, after.predecessor) != expected:
        raise StaleError(
            "the agreement does not follow the one before",
            why=f"{after.name} {after.number} after {previous.name} {previous.number}",
            fix="Name the digest of the agreement in force as predecessor",
            code="agreement-line",
        )


def load_signed(path: Path) -> SignedAgreement:
    """Read a signed agreement; nothing in it is verified yet.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is no agreement, or was edited by hand.
    """
    raw = read_whole(path, MAX_AGREEMENT_BYTES)
    try:
        return decode(SignedAgreement, raw, max_bytes=MAX_AGREEMENT_BYTES)
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not an agreement: {error.what}",
            why=error.why,
            fix="Use the file as `sealift agreement sign` wrote it",
            field=error.field,
            offset=error.offset,
            code="bad-agreement-file",
        ) from None


def save_signed(signed: SignedAgreement, path: Path) -> None:
    """Write a signed agreement, whole or not at all."""
    write_whole(path, encode(signed))


def _verify_one(party: Party, message: bytes, signature: bytes) -> None:
    try:
        party.sign.verify(Label.AGREEMENT, message, signature)
    except AuthenticationError:
        raise IntegrityError(
            f"the signature of {party.name} does not fit this agreement",
            why="it was altered after it was signed, or another key signed it",
            fix="Ask for the original file, or have it signed again",
            code="agreement-altered",
        ) from None


def _require_known_signers(signed: SignedAgreement) -> None:
    names = {party.name for party in signed.agreement.parties}
    strangers = sorted(set(signed.signatures) - names)
    if strangers:
        raise MalformedError(
            "a signature by somebody who is no party",
            why=strangers[0][:80],
            field="signatures",
            code="bad-agreement-file",
        )
