"""The messages of the KBS protocol, version 0.4.0, and what evidence binds of them.

Others write them, so they are JSON in any layout, with fields that we do not know; what
we use is checked. The evidence binds the hash over the canonical form (RFC 8785) of
{tee-pubkey, nonce, additional-evidence}; our nonce ends with the digest of the
agreement, so whoever attests is bound to it (rule M5), whatever client it uses.
Source: kbs_attestation_protocol.md of confidential-containers/trustee v0.21.0.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import dataclass
from typing import Any, Final

from sealift.codec import encode, parse_foreign
from sealift.crypto.hash import HashName, digest, sha256
from sealift.crypto.jwe import RecipientKey
from sealift.errors import MalformedError, PolicyError
from sealift.ids import DIGEST_BYTES, Digest

VERSION: Final = "0.4.0"
COOKIE: Final = "kbs-session-id"
DEFAULT_HASH: Final[HashName] = "sha384"
HASHES: Final[tuple[HashName, ...]] = ("sha384", "sha512", "sha256")
RANDOM_BYTES: Final = 32
MAX_AUTH_BYTES: Final = 16 << 10
MAX_ATTEST_BYTES: Final = 8 << 20
SEALIFT_TEE: Final = "sealift"
TEES: Final = frozenset(
    {
        "az-snp-vtpm",
        "az-tdx-vtpm",
        "snp",
        "sgx",
        "tdx",
        "cca",
        "csv",
        "se",
        "tpm",
        SEALIFT_TEE,
    }
)


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """What a client begins with: its TEE, and the hash to bind with."""

    tee: str
    hash_name: HashName


@dataclass(frozen=True, slots=True)
class Attestation:
    """What a client answers a challenge with.

    Attributes:
        nonce: As it says.
        tee_key: Where resources are encrypted to.
        primary: Evidence of the CPU's TEE or TPM, in the form of its kind.
        additional: Evidence of devices: JSON text, or empty.
    """

    nonce: str
    tee_key: RecipientKey
    primary: Any
    additional: str

    def runtime_claims(self) -> dict[str, Any]:
        """What the token repeats: the key that it is bound to, and the nonce."""
        return {"nonce": self.nonce, "tee-pubkey": dict(self.tee_key.jwk)}

    def bound(self, name: HashName) -> bytes:
        """What the primary evidence must carry: the hash over all three."""
        return digest(name, self._covered())

    def device_bound(self, name: HashName) -> bytes:
        """What the evidence of a device must carry."""
        return digest(name, encode(self.runtime_claims()))

    def binder(self) -> bytes:
        """SHA-256 of the same bytes, which names the attestation in our log."""
        return sha256(self._covered())

    def _covered(self) -> bytes:
        return encode({**self.runtime_claims(), "additional-evidence": self.additional})


def make_nonce(agreement: Digest) -> str:
    """A fresh nonce that names the agreement: base64 of 32 random bytes and digest."""
    raw = secrets.token_bytes(RANDOM_BYTES) + agreement.raw
    return base64.b64encode(raw).decode()


def nonce_bytes(nonce: str) -> bytes:
    """The bytes of a nonce that ``make_nonce`` made."""
    return base64.b64decode(nonce)


def agreement_of_nonce(nonce: str) -> Digest | None:
    """The agreement that a nonce names, if it is one of ours."""
    try:
        raw = base64.b64decode(nonce, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != RANDOM_BYTES + DIGEST_BYTES:
        return None
    return Digest(raw[RANDOM_BYTES:])


def parse_auth(raw: bytes) -> AuthRequest:
    """Parse what /auth gets.

    Raises:
        MalformedError: ``kbs-bad-message``.
        PolicyError: ``kbs-version``, ``kbs-sample-refused``, ``kbs-tee-unknown`` or
            ``kbs-no-hash``.
    """
    fields = _object(parse_foreign(raw, max_bytes=MAX_AUTH_BYTES), "the request")
    if fields.get("version") != VERSION:
        raise PolicyError(
            "another version of the KBS protocol",
            why=f"{str(fields.get('version'))[:20]!r}, this server speaks {VERSION}",
            fix=f"Use a client that speaks {VERSION}",
            code="kbs-version",
        )
    tee = _text(fields, "tee")
    _require_tee(tee)
    return AuthRequest(tee, _select_hash(fields.get("extra-params")))


def parse_attestation(raw: bytes) -> Attestation:
    """Parse what /attest gets.

    Raises:
        MalformedError: ``kbs-bad-message`` or ``tee-key-unusable``.
    """
    fields = _object(parse_foreign(raw, max_bytes=MAX_ATTEST_BYTES), "the attestation")
    runtime = _object(fields.get("runtime-data"), "runtime-data")
    evidence = _object(fields.get("tee-evidence"), "tee-evidence")
    additional = evidence.get("additional_evidence", "")
    if not isinstance(additional, str):
        raise bad_message("additional_evidence is no text")
    return Attestation(
        _text(runtime, "nonce"),
        RecipientKey.from_jwk(runtime.get("tee-pubkey")),
        evidence.get("primary_evidence"),
        additional,
    )


def bad_message(why: str) -> MalformedError:
    """The refusal of a message that is none of the protocol."""
    return MalformedError(
        "not a message of the KBS protocol", why=why, code="kbs-bad-message"
    )


def _require_tee(tee: str) -> None:
    if tee == "sample":
        raise PolicyError(
            "sample evidence refused",
            why="anybody can make it, and it says nothing",
            fix="Attest with a TEE or a TPM; for development, use sealift's own client",
            code="kbs-sample-refused",
        )
    if tee not in TEES:
        raise PolicyError(
            "a kind of TEE that is not known",
            why=repr(tee[:40]),
            code="kbs-tee-unknown",
        )


def _select_hash(extra: object) -> HashName:
    offered = (
        extra.get("supported-hash-algorithms") if isinstance(extra, dict) else None
    )
    if offered is None:
        return DEFAULT_HASH
    if not isinstance(offered, list) or len(offered) > 16:
        raise bad_message("supported-hash-algorithms is no short list")
    names = {each.lower() for each in offered if isinstance(each, str)}
    for name in HASHES:
        if name in names:
            return name
    raise PolicyError(
        "no hash algorithm in common",
        why=f"this server takes {', '.join(HASHES)}",
        code="kbs-no-hash",
    )


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_message(f"{name} is no object")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > 1024:
        raise bad_message(f"{name} is no text, or too long")
    return value
