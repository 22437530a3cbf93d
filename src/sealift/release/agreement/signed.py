"""Signatures under an agreement, which is valid only when all required parties signed.

Only ``verify`` makes a ``VerifiedAgreement``: every party of a first agreement has signed
exactly these bytes; ``release/agreement/successors.py`` says who must sign a successor.
It records who signed, because the key of an owner who did not is not released (rule H7).
The file on disk is canonical JSON as well, and contains all predecessors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sealift.attest.collateral import Collateral
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser, no_time
from sealift.attest.reference import ReferenceValues
from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label
from sealift.errors import MalformedError, PolicyError, UsageError
from sealift.ids import Digest
from sealift.release.agreement import VERSION, Agreement, Party, Resource
from sealift.release.agreement.statements import SignedStatement, load_statements
from sealift.release.agreement.successors import (
    Backing,
    SignedLink,
    verify_line,
    verify_link,
)
from sealift.release.files import read_whole, write_whole

MAX_AGREEMENT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class SignedAgreement(SignedLink):
    """An agreement and the signatures found under it, not verified yet.

    Attributes:
        before: The line before it, first agreement first.
    """

    before: tuple[SignedLink, ...] = ()

    @property
    def link(self) -> SignedLink:
        """It alone, as a successor carries it."""
        return SignedLink(self.agreement, self.signatures, self.former)

    @property
    def line(self) -> tuple[SignedLink, ...]:
        """The whole line, itself last."""
        return (*self.before, self.link)

    @property
    def missing(self) -> tuple[str, ...]:
        """Parties that have not signed, in the order of parties."""
        names = (party.name for party in self.agreement.parties)
        return tuple(name for name in names if name not in self.signatures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a process needs to appraise evidence, besides the signed document.

    Attributes:
        collateral: Of this side, never of the attester (rule H13).
        clock: Seconds since 1970, to judge certificates and collateral at.
        references: The agreement's, joined with the sets that it names; None takes
            those in the document.
    """

    collateral: Collateral = field(default_factory=Collateral)
    clock: Callable[[], float] = no_time
    references: ReferenceValues | None = None


class _VerifiedToken:
    """Shows that an agreement comes from ``verify``."""


_VERIFIED: Final = _VerifiedToken()


@dataclass(frozen=True, slots=True)
class VerifiedAgreement:
    """An agreement with all required signatures, and who signed it.

    Attributes:
        agreement: The document.
        backing: Who signed it, and who left its line.
        equipment: What this process judges evidence with, beside the document.
        line: The whole signed line, itself last.
        statements: What was known of it when it was verified.
    """

    agreement: Agreement
    backing: Backing
    equipment: Equipment = field(default_factory=Equipment, compare=False)
    line: tuple[SignedLink, ...] = field(default=(), repr=False, compare=False)
    statements: tuple[SignedStatement, ...] = field(default=(), compare=False)
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
        """The same agreement, with the equipment that appraises evidence."""
        return replace(self, equipment=equipment)

    def under(self, statements: Iterable[SignedStatement]) -> VerifiedAgreement:
        """The same agreement, with these statements known; raises like ``verify``."""
        known = tuple(statements)
        return replace(self, backing=verify_line(self.line, known), statements=known)

    def appraiser(self) -> Appraiser:
        """Decides about evidence under this agreement."""
        return Appraiser(
            accept=self.accept,
            references=self.equipment.references or self.agreement.reference_values(),
            rehearse=self.agreement.rehearse,
            collateral=self.equipment.collateral,
            clock=self.equipment.clock,
        )

    def party(self, name: str) -> Party:
        """The party of that name; raises PolicyError if there is none."""
        return self.agreement.party(name)

    def resource(self, name: str) -> Resource:
        """The resource of that name; raises PolicyError if there is none."""
        return self.agreement.resource(name)

    @property
    def signers(self) -> frozenset[str]:
        """Parties that signed it themselves."""
        return self.backing.signers

    def require_owner_signed(self, name: str) -> Party:
        """The party, if it signed; without its signature no key is released (rule H7).

        Raises:
            PolicyError: ``owner-unsigned`` or ``owner-left``, naming the owner.
        """
        party = self.party(name)
        if name in self.backing.left:
            raise PolicyError(
                f"{name} has left the agreement {self.agreement.name}",
                why="its keys are not released any more",
                code="owner-left",
            )
        if name not in self.backing.signers:
            raise PolicyError(
                f"{name} has not signed the agreement in force",
                why="an owner's key is released only under an agreement that the owner signed",
                fix=f"{name} must run `sealift agreement sign`",
                code="owner-unsigned",
            )
        return party

    def require_owners_signed(self) -> None:
        """Refuse a job that reads resources of an owner who has not signed, by name.

        Raises:
            PolicyError: ``owner-unsigned`` or ``owner-left``.
        """
        for name in self.agreement.holders:
            self.require_owner_signed(name)


def sign(agreement: Agreement, identity: Identity) -> bytes:
    """One party's signature.

    Raises:
        PolicyError: if the identity is no party, or the agreement names another key.
    """
    agreement.require_own_key(identity.name, identity.public_key)
    return identity.sign(Label.AGREEMENT, encode(agreement))


def add_signature(signed: SignedAgreement, identity: Identity) -> SignedAgreement:
    """``signed`` with one more signature; raises like ``sign``."""
    signature = sign(signed.agreement, identity)
    return replace(signed, signatures={**signed.signatures, identity.name: signature})


def add_former_key(signed: SignedAgreement, former: Identity) -> SignedAgreement:
    """``signed`` with the word of the key that a party had in the predecessor.

    Raises:
        PolicyError: ``not-a-party``, or ``other-key``: it is not that key.
    """
    if not signed.before:
        raise UsageError("a first agreement has no former keys to sign with")
    before = signed.before[-1].agreement
    before.require_own_key(former.name, former.public_key)
    signature = former.sign(Label.AGREEMENT, encode(signed.agreement))
    return replace(signed, former={**signed.former, former.name: signature})


def verify(
    signed: SignedAgreement, statements: Iterable[SignedStatement] = ()
) -> VerifiedAgreement:
    """Return the agreement if all required parties signed, and nobody ended it.

    Args:
        signed: The agreement with the line before it.
        statements: Vetoes, cancellations and departures that are known here.

    Raises:
        PolicyError, StaleError, IntegrityError, MalformedError: see
            ``line.verify_line``.
    """
    known = tuple(statements)
    return VerifiedAgreement(
        signed.agreement,
        verify_line(signed.line, known),
        line=signed.line,
        statements=known,
        token=_VERIFIED,
    )


def verify_signatures(signed: SignedAgreement) -> SignedAgreement:
    """Return ``signed`` if every present signature is valid; some may be missing.

    Raises:
        IntegrityError: ``agreement-altered``, naming whose signature does not fit.
        MalformedError: if somebody signed who is no party.
    """
    for link in signed.line:
        verify_link(link)
    return signed


def load_verified(path: Path) -> VerifiedAgreement:
    """Read an agreement and the statements beside it, and verify all of them.

    Raises:
        UnavailableError, MalformedError: if a file cannot be read, or is none.
        PolicyError, StaleError, IntegrityError: see ``verify``.
    """
    signed = load_signed(path)
    return verify(signed, load_statements(path.parent, signed.agreement.name))


def load_signed(path: Path) -> SignedAgreement:
    """Read a signed agreement; nothing in it is verified yet.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: ``agreement-version``: of another version of the format;
            ``bad-agreement-file``: it is no agreement, or was edited by hand.
    """
    raw = read_whole(path, MAX_AGREEMENT_BYTES)
    try:
        return decode(SignedAgreement, raw, max_bytes=MAX_AGREEMENT_BYTES)
    except MalformedError as error:
        if error.field == "agreement.version":
            raise MalformedError(
                f"{path} has another format version",
                why=f"this Sealift reads agreements of version {VERSION}",
                code="agreement-version",
            ) from None
        raise MalformedError(
            f"{path} is not an agreement: {error.what}",
            why=error.why,
            field=error.field,
            offset=error.offset,
            code="bad-agreement-file",
        ) from None


def save_signed(signed: SignedAgreement, path: Path) -> None:
    """Write a signed agreement, whole or not at all."""
    write_whole(path, encode(signed))
