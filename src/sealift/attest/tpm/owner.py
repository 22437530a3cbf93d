"""Whose TPM it is: the chain of its endorsement key, the pin, and the enrolment.

Source: TCG EK Credential Profile 2.5, section 3.1.2 (names of makers in certificates);
RFC 5280.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sealift.attest.check import Check, check
from sealift.attest.collateral import Collateral, read_revocations, require_recent
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues
from sealift.attest.tpm.enrolment import SignedEnrolment, find_enrolment
from sealift.attest.tpm.evidence import TpmBody
from sealift.attest.tpm.references import TpmReferences, TpmRoot
from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import verify_chain
from sealift.crypto.ocsp import Revocations
from sealift.errors import EvidenceError, PolicyError

_MANUFACTURER: Final = "2.23.133.2.1"
_EXTENDED_KEY_USAGE: Final = "2.5.29.37"
_EK_PURPOSE: Final = bytes.fromhex("0605 6781050801")  # 2.23.133.8.1 in DER
_MODEL: Final = "2.23.133.2.2"
_SOFTWARE_MANUFACTURERS: Final = frozenset({"id:00001014"})
_SOFTWARE_MODELS: Final = frozenset({"swtpm"})


@dataclass(frozen=True, slots=True)
class Owner:
    """A TPM that a root vouches for, and who tied the quoting key to it.

    Attributes:
        certificate: Of the endorsement key.
        root: The root that its chain ends in.
        enrolment: That of the quoting key.
    """

    certificate: Certificate
    root: TpmRoot
    enrolment: SignedEnrolment

    @property
    def is_software(self) -> bool:
        """Whether the TPM is a program, whatever the references call its root."""
        return self.root.operator == "software" or says_software(self.certificate)

    @property
    def level(self) -> Level:
        """The level that such a TPM can prove by itself."""
        return Level.DEVELOPMENT if self.is_software else Level.ATTESTED_HOST


def find_owner(
    body: TpmBody,
    name: bytes,
    *,
    references: ReferenceValues,
    tpm: TpmReferences,
    collateral: Collateral,
    at_s: int,
) -> Owner:
    """Verify the chain and the enrolment of the key that is called ``name``.

    Raises:
        EvidenceError: ``tpm-no-endorsement``, ``tpm-not-enrolled``, or as
            ``verify_chain``.
        MalformedError: if a certificate does not parse.
    """
    certificate, root = verify_endorsement(
        body.certificates,
        tpm,
        collateral=collateral,
        at_s=at_s,
        max_age_s=references.collateral_max_age_s,
    )
    enrolment = find_enrolment(
        body.enrolments,
        name=name,
        endorsement_key=certificate.spki_digest,
        root=root.key,
        enrollers=references.enrollers,
    )
    return Owner(certificate, root, enrolment)


def verify_endorsement(
    certificates: tuple[bytes, ...],
    tpm: TpmReferences,
    *,
    collateral: Collateral,
    at_s: int,
    max_age_s: int,
) -> tuple[Certificate, TpmRoot]:
    """The endorsement key's certificate, and the accepted root that it leads to.

    Issuers may come from either side; what was revoked is known by ours (rule H13).

    Raises:
        EvidenceError: ``tpm-no-endorsement``, or as ``verify_chain`` and
            ``Revocations.require_unrevoked``.
        PolicyError: ``revocation-unknown`` or ``revocation-nowhere``.
        StaleError: ``collateral-stale``.
    """
    if not certificates:
        raise EvidenceError(
            "the evidence has no endorsement key certificate", code="tpm-no-endorsement"
        )
    leaf, *issuers = (read_certificate(raw) for raw in certificates)
    purposes = leaf.extension(_EXTENDED_KEY_USAGE)
    if leaf.is_ca or (purposes is not None and _EK_PURPOSE not in purposes):
        raise EvidenceError(
            "the first certificate is none of an endorsement key",
            why="it is one of an issuer, or was issued for something else",
            code="tpm-no-endorsement",
        )
    ours = (read_certificate(raw) for raw in collateral.named("tpm/issuer/").values())
    known = read_revocations(collateral, "tpm")
    path = verify_chain(
        leaf,
        (*issuers, *ours),
        [root.key for root in tpm.roots],
        at_s=at_s,
        revocation_lists=known.lists,
        pins_issuers=True,  # makers' intermediates are agreed on too
    )
    known.require_unrevoked(path, at_s=at_s)
    if _require_looked_up(path, known, waived=tpm.revocation == "none"):
        require_recent(collateral, at_s=at_s, max_age_s=max_age_s)
    return leaf, next(r for r in tpm.roots if r.key == path[-1].spki_digest)


def _require_looked_up(
    path: tuple[Certificate, ...], known: Revocations, *, waived: bool
) -> bool:
    """Somebody looked whether each was revoked; whether any said where to look."""
    for pair in pairwise(path):
        if known.know(*pair):
            continue
        if pair[0].names_revocation:
            raise PolicyError(
                f"nobody looked whether the certificate of {pair[0].subject} was revoked",
                why="it names where that is told, and the collateral does not have it",
                code="revocation-unknown",
            )
        if not waived:
            raise PolicyError(
                f"nobody would say that the certificate of {pair[0].subject} was revoked",
                why="it names neither a revocation list nor an OCSP responder",
                code="revocation-nowhere",
            )
    return any(known.know(*pair) for pair in pairwise(path))


def check_pinned(owner: Owner, tpm: TpmReferences) -> Check:
    """The endorsement key is one of the agreed hosts' (rule M7)."""
    found = owner.certificate.spki_digest
    return check(
        found in tpm.endorsement_keys,
        "endorsement key",
        expected=" or ".join(each.to_text() for each in tpm.endorsement_keys)
        or "no host is allowed",
        found=found.to_text(),
        code="tpm-other-host",
    )


def says_software(certificate: Certificate) -> bool:
    """Whether the certificate names a software TPM as what it certifies."""
    names = certificate.directory_names()
    return (
        names.get(_MANUFACTURER) in _SOFTWARE_MANUFACTURERS
        or names.get(_MODEL, "").lower() in _SOFTWARE_MODELS
    )
