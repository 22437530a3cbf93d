"""Enrolment: which TPM an attestation key lives in, as a party found out once.

A TPM never signs with its endorsement key, so a quote alone does not show whose it is.
A broker makes a credential that only the certified endorsement key's TPM can open, and
only for the attestation key of that name; the host answers with the secret; the broker
signs what that proved. From then on verifying is a function of bytes: evidence carries
the enrolment, and the agreement names the keys whose enrolments count, the roots that an
endorsement key's chain may end in, and the hosts.
Source: TPM 2.0 Library part 1, section 24; TCG EK Credential Profile 2.5, section 3.1.2
(makers' names); spec/evidence-tpm.md section Enrolment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sealift import codec
from sealift.attest.collateral import Collateral, read_revocations, require_recent
from sealift.attest.level import Level
from sealift.attest.reference import AppraisalBasis, TpmReferences, TpmRoot
from sealift.attest.tpm.structures import (
    DECRYPT,
    FIXED_TPM,
    RESTRICTED,
    SIGN,
    Public,
    parse_public,
    require_attestation_key,
)
from sealift.attest.verifier import AppraisalCheck, check
from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import Revocations, verify_chain
from sealift.crypto.hash import verify_equal
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.crypto.sign import PublicKey, Signer
from sealift.crypto.tpmcredential import Credential, make_credential
from sealift.errors import AuthenticationError, EvidenceError, PolicyError
from sealift.ids import Digest

MAX_ENROLMENTS: Final = 16
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentRequest:
    """What a host shows to be enrolled.

    Attributes:
        attestation_key: TPMT_PUBLIC.
        endorsement_key: TPMT_PUBLIC.
        certificates: DER: of the endorsement key first, then its issuers.
    """

    attestation_key: bytes
    endorsement_key: bytes
    certificates: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What activating a credential proved.

    Attributes:
        attestation_key: Its Name (nameAlg and digest).
        endorsement_key: SHA-256 of the SubjectPublicKeyInfo.
        root: SHA-256 of the root's SubjectPublicKeyInfo.
        at_s: When, seconds since 1970.
    """

    attestation_key: bytes
    endorsement_key: Digest
    root: Digest
    at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedEnrolment:
    """An enrolment, by the party that made the credential."""

    enrolment: Enrolment
    enroller: PublicKey
    signature: bytes


def sign_enrolment(enrolment: Enrolment, signer: Signer) -> SignedEnrolment:
    """Sign an enrolment with a party's identity."""
    signature = signer.sign(Label.ENROLMENT, codec.encode(enrolment))
    return SignedEnrolment(
        enrolment=enrolment, enroller=signer.public_key, signature=signature
    )


def verify_enrolment(signed: SignedEnrolment) -> Enrolment:
    """The enrolment, if its enroller signed it; who that is, is for the caller.

    Raises:
        AuthenticationError: if the signature does not verify.
    """
    message = codec.encode(signed.enrolment)
    signed.enroller.verify(Label.ENROLMENT, message, signed.signature)
    return signed.enrolment


def find_enrolment(
    enrolments: Iterable[SignedEnrolment],
    *,
    name: bytes,
    endorsement_key: Digest,
    root: Digest,
    enrollers: Sequence[PublicKey],
) -> SignedEnrolment:
    """The enrolment of this very pair of keys by one whose word counts.

    Raises:
        EvidenceError: ``tpm-not-enrolled``.
    """
    for signed in enrolments:
        it = signed.enrolment
        pair = (it.attestation_key, it.endorsement_key, it.root)
        if pair == (name, endorsement_key, root) and signed.enroller in enrollers:
            try:
                verify_enrolment(signed)
            except AuthenticationError:
                raise EvidenceError(
                    "the enrolment is not genuine",
                    why=f"the signature of {signed.enroller} does not verify",
                    code="tpm-not-enrolled",
                ) from None
            return signed
    raise EvidenceError(
        "the attestation key is not enrolled",
        why=(
            "no enroller of the agreement has confirmed it together with this "
            "endorsement key"
        ),
        code="tpm-not-enrolled",
    )


def require_pair(request: EnrolmentRequest) -> tuple[Public, Public]:
    """Both public areas, if they are what they must be; the chain is for the caller.

    Returns:
        The endorsement key and the attestation key.

    Raises:
        EvidenceError: ``tpm-endorsement-key`` or ``tpm-key-attributes``.
        MalformedError: if something does not parse.
    """
    ak = parse_public(request.attestation_key)
    require_attestation_key(ak)
    ek = parse_public(request.endorsement_key)
    named = [Certificate(raw).spki_digest for raw in request.certificates[:1]]
    wanted = FIXED_TPM | RESTRICTED | DECRYPT
    if ek.attributes & (wanted | SIGN) != wanted or named != [ek.spki_digest]:
        raise EvidenceError(
            "the endorsement key is not the key of its certificate",
            why="it is another key, or a key that can do more than decrypt",
            code="tpm-endorsement-key",
        )
    return ek, ak


def make_challenge(ek: Public, ak_name: bytes) -> tuple[Credential, SecretKey]:
    """A credential for this pair of keys, and the secret that answers it."""
    secret = SecretKey.generate(_SECRET_BYTES)
    credential = make_credential(
        ek.key,
        name_hash=ek.name_hash,
        symmetric_bits=ek.symmetric_bits,
        name=ak_name,
        secret=secret,
    )
    return credential, secret


def check_answer(secret: SecretKey, answer: bytes) -> None:
    """The host answered with the secret.

    Raises:
        EvidenceError: ``tpm-not-activated``.
    """
    try:
        verify_equal(secret.reveal(TOKEN), answer)
    except AuthenticationError:
        raise EvidenceError(
            "the host could not open the credential",
            why="its attestation key is not in the TPM that has this endorsement key",
            code="tpm-not-activated",
        ) from None


_MANUFACTURER: Final = "2.23.133.2.1"
_EXTENDED_KEY_USAGE: Final = "2.5.29.37"
_EK_PURPOSE: Final = bytes.fromhex("0605 6781050801")  # 2.23.133.8.1 in DER
_MODEL: Final = "2.23.133.2.2"
_SOFTWARE_MANUFACTURERS: Final = frozenset({"id:00001014"})
_SOFTWARE_MODELS: Final = frozenset({"swtpm"})


@dataclass(frozen=True, slots=True)
class EnrolledTpm:
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
    certificates: tuple[bytes, ...],
    enrolments: Iterable[SignedEnrolment],
    name: bytes,
    basis: AppraisalBasis,
    tpm: TpmReferences,
) -> EnrolledTpm:
    """Verify the chain and the enrolment of the key that is called ``name``.

    Raises:
        EvidenceError: ``tpm-no-endorsement``, ``tpm-not-enrolled``, or as
            ``verify_chain``.
        MalformedError: if a certificate does not parse.
    """
    certificate, root = verify_endorsement(
        certificates,
        tpm,
        collateral=basis.collateral,
        at_s=basis.at_s,
        max_age_s=basis.references.collateral_max_age_s,
    )
    enrolment = find_enrolment(
        enrolments,
        name=name,
        endorsement_key=certificate.spki_digest,
        root=root.key,
        enrollers=basis.references.enrollers,
    )
    return EnrolledTpm(certificate, root, enrolment)


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
        EvidenceError: ``tpm-no-endorsement``, or as ``verify_chain``.
        PolicyError: ``revocation-unknown`` or ``revocation-nowhere``.
        StaleError: ``collateral-stale``.
    """
    if not certificates:
        raise EvidenceError(
            "the evidence contains no endorsement key certificate",
            code="tpm-no-endorsement",
        )
    leaf, *issuers = (read_certificate(raw) for raw in certificates)
    purposes = leaf.extension(_EXTENDED_KEY_USAGE)
    if leaf.is_ca or (purposes is not None and _EK_PURPOSE not in purposes):
        raise EvidenceError(
            "the first certificate does not belong to an endorsement key",
            why="it belongs to an issuer, or was issued for another purpose",
            code="tpm-no-endorsement",
        )
    ours = (read_certificate(raw) for raw in collateral.named("tpm/issuer/").values())
    known = read_revocations(collateral, "tpm")
    path = verify_chain(
        leaf,
        (*issuers, *ours),
        [root.key for root in tpm.roots],
        at_s=at_s,
        revocations=known,
        pins_issuers=True,  # makers' intermediates are agreed on too
    )
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
                f"it was not checked whether the certificate of {pair[0].subject} was "
                "revoked",
                why=(
                    "the certificate names a revocation service, and the collateral "
                    "lacks its answer"
                ),
                code="revocation-unknown",
            )
        if not waived:
            raise PolicyError(
                "it is not possible to check whether the certificate of "
                f"{pair[0].subject} was revoked",
                why=(
                    "the certificate names neither a revocation list nor an OCSP "
                    "responder"
                ),
                code="revocation-nowhere",
            )
    return any(known.know(*pair) for pair in pairwise(path))


def check_pinned(owner: EnrolledTpm, tpm: TpmReferences) -> AppraisalCheck:
    """The endorsement key is one of the agreed hosts' (rule M7)."""
    found = owner.certificate.spki_digest
    return check(
        found in tpm.endorsement_keys,
        "endorsement key",
        " or ".join(each.to_text() for each in tpm.endorsement_keys)
        or "no host is allowed",
        found.to_text(),
        "tpm-other-host",
    )


def says_software(certificate: Certificate) -> bool:
    """Whether the certificate names a software TPM as what it certifies."""
    names = certificate.directory_names()
    return (
        names.get(_MANUFACTURER) in _SOFTWARE_MANUFACTURERS
        or names.get(_MODEL, "").lower() in _SOFTWARE_MODELS
    )
