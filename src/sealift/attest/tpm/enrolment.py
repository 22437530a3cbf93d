"""Enrolment: which TPM an attestation key lives in, as a party found out once.

A TPM never signs with its endorsement key, so a quote alone does not show whose it is.
A broker makes a credential that only the certified endorsement key's TPM can open, and
only for the attestation key of that name; the host answers with the secret; the broker
signs what that proved. From then on verifying is a function of bytes: evidence carries
the enrolment, and the agreement names the keys whose enrolments count.
Source: TPM 2.0 Library part 1, section 24; spec/evidence-tpm.md section Enrolment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.tpm.public import (
    DECRYPT,
    FIXED_TPM,
    RESTRICTED,
    SIGN,
    Public,
    parse_public,
    require_attestation_key,
)
from sealift.crypto.certificate import Certificate
from sealift.crypto.hash import verify_equal
from sealift.crypto.kdf import Label
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import PublicKey, Signer
from sealift.crypto.tpmcredential import Credential, make_credential
from sealift.errors import AuthenticationError, EvidenceError
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
            _require_signature(signed)
            return signed
    raise EvidenceError(
        "the attestation key is not enrolled",
        why="nobody whom the agreement names found it beside this endorsement key",
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
            "not the endorsement key of the certificate",
            why="it is another key, or one that does more than decrypt",
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
            why="its attestation key is not in the TPM of that endorsement key",
            code="tpm-not-activated",
        ) from None


def _require_signature(signed: SignedEnrolment) -> None:
    try:
        verify_enrolment(signed)
    except AuthenticationError:
        raise EvidenceError(
            "an enrolment is not genuine",
            why=f"{signed.enroller} did not sign it so",
            code="tpm-not-enrolled",
        ) from None
