"""Attestation results as EAR tokens: what a relying party elsewhere can read.

The claims are those of Veraison's profile of draft-ietf-rats-ear, which Trustee speaks
too; ours besides carry the names of job, agreement and level. A token is bound to a
nonce and to the key that the evidence bound, so that it is of no use to anybody else.
Source: draft-ietf-rats-ear-04; AR4SI for the vector; spec/evidence.md section Results.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sealift.attest.level import Tier
from sealift.attest.result import AttestationResult
from sealift.attest.trust import TrustVector, tier_of
from sealift.attest.verifier import Claims
from sealift.crypto.ecdsa import EcdsaKey
from sealift.crypto.jws import TokenSigner, verify_token
from sealift.errors import EvidenceError, MalformedError, StaleError
from sealift.ids import Digest

PROFILE: Final = "tag:github.com,2023:veraison/ear"
VALID_S: Final = 300
_CLAIMS: Final = {
    "instance-identity": "instance_identity",
    "configuration": "configuration",
    "executables": "executables",
    "file-system": "file_system",
    "hardware": "hardware",
    "runtime-opaque": "runtime_opaque",
    "storage-opaque": "storage_opaque",
    "sourced-data": "sourced_data",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a token is for.

    Attributes:
        nonce: Of whoever asked for it (8 to 64 bytes).
        key: SHA-256 of the key that the evidence bound.
        agreement: Under which it was appraised.
        job: Name of the job, or empty.
    """

    nonce: bytes
    key: Digest
    agreement: Digest
    job: str = ""


def issue(
    result: AttestationResult,
    binding: Binding,
    signer: TokenSigner,
    *,
    at_s: int,
    software: str,
) -> str:
    """The signed token over a result, valid for five minutes."""
    return signer.sign(token_claims(result, binding, at_s=at_s, software=software))


def token_claims(
    result: AttestationResult, binding: Binding, *, at_s: int, software: str
) -> dict[str, Any]:
    """What the token says."""
    return {
        "eat_profile": PROFILE,
        "iat": at_s,
        "exp": at_s + VALID_S,
        "eat_nonce": _text(binding.nonce),
        "ear.verifier-id": {"developer": "Sealift", "build": software},
        "cnf": {"kid": binding.key.to_text()},
        "sealift.agreement": binding.agreement.to_text(),
        "sealift.job": binding.job,
        "sealift.level": result.standing,
        "submods": _submodules(result, binding.agreement),
    }


def verify(token: str, key: EcdsaKey, binding: Binding, *, at_s: int) -> dict[str, Any]:
    """The claims of a token that was issued for ``binding`` by the holder of ``key``.

    Raises:
        AuthenticationError: if the signature does not verify.
        StaleError: ``token-expired``, or ``token-foreign`` for another nonce.
        EvidenceError: ``token-foreign`` for another key, agreement or job, or where a
            status is better than its vector.
        MalformedError: if it is no EAR.
    """
    claims = verify_token(token, key, at_s=at_s)
    if claims.get("eat_profile") != PROFILE:
        raise MalformedError("the token is no EAR of a known profile")
    if claims.get("eat_nonce") != _text(binding.nonce):
        raise StaleError("the token is for another nonce", code="token-foreign")
    bound = (
        claims.get("cnf"),
        claims.get("sealift.agreement"),
        claims.get("sealift.job"),
    )
    ours = ({"kid": binding.key.to_text()}, binding.agreement.to_text(), binding.job)
    if bound != ours:
        raise EvidenceError(
            "the token is for another key, agreement or job", code="token-foreign"
        )
    _require_honest_status(claims)
    return claims


def _submodules(result: AttestationResult, agreement: Digest) -> dict[str, Any]:
    """``cpu0`` says the worst of all parts: who reads nothing else is not misled."""
    lead = _submodule(result.claims, agreement)
    lead["sealift.evidence"] = result.evidence.to_text()
    devices = result.claims.devices.items()
    return {
        "cpu0": lead,
        **{name: _submodule(claims, agreement) for name, claims in devices},
    }


def _submodule(claims: Claims, agreement: Digest) -> dict[str, Any]:
    return {
        "ear.status": claims.trust.tier.value,
        "ear.trustworthiness-vector": _vector(claims.trust),
        "ear.appraisal-policy-id": f"sealift:{agreement.to_text()}",
        "sealift.attester": claims.attester,
        "sealift.measurements": {
            name: raw.hex() for name, raw in sorted(claims.measurements.items())
        },
    }


def _vector(trust: TrustVector) -> dict[str, int]:
    return {name: getattr(trust, field) for name, field in _CLAIMS.items()}


def _require_honest_status(claims: Mapping[str, Any]) -> None:
    submods = claims.get("submods")
    if not isinstance(submods, dict) or not submods:
        raise MalformedError("the token has no submodules", field="submods")
    for name, each in submods.items():
        if not isinstance(each, dict):
            raise MalformedError("a submodule is no object", field="submods")
        if each.get("ear.status") != _worst(each.get("ear.trustworthiness-vector")):
            raise EvidenceError(
                f"the status of {str(name)[:40]} is not that of its claims",
                code="token-foreign",
            )


def _worst(vector: object) -> Tier:
    if not isinstance(vector, dict) or set(vector) - set(_CLAIMS):
        raise MalformedError("not a trustworthiness vector", field="submods")
    for value in vector.values():
        if type(value) is not int:
            raise MalformedError("a trust claim is no integer", field="submods")
        tier_of(value)
    return TrustVector(**{_CLAIMS[name]: value for name, value in vector.items()}).tier


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
