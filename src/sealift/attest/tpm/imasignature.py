"""File signatures that IMA lists carry (``security.ima``), version 2.

Layout: type 3, version 2, hash algorithm, key id (4 bytes), length (2 bytes,
big-endian), signature over the file's digest: RSASSA-PKCS1-v1_5 or ECDSA (DER). The key
id is a hint that nothing covers; every accepted key is tried instead.
Source: Linux security/integrity/integrity.h, include/uapi/linux/hash_info.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealift.crypto.ecdsa import EcdsaKey
from sealift.crypto.hash import HashName, digest_bytes
from sealift.crypto.rsa import RsaKey
from sealift.errors import AuthenticationError, MalformedError

_HEAD_BYTES: Final = 9
_KIND_AND_VERSION: Final = b"\x03\x02"
_HASHES: Final[dict[int, HashName]] = {4: "sha256", 5: "sha384", 6: "sha512"}

SignerKey = RsaKey | EcdsaKey


@dataclass(frozen=True, slots=True)
class FileSignature:
    """A signature over the digest of a file."""

    algorithm: HashName
    signature: bytes


def parse_signature(raw: bytes) -> FileSignature:
    """The signature of an entry.

    Raises:
        MalformedError: ``ima-signature-malformed`` for another version, a hash below
            SHA-256, or a length that does not fit.
    """
    algorithm = _HASHES.get(raw[2]) if len(raw) > _HEAD_BYTES else None
    size = int.from_bytes(raw[7:_HEAD_BYTES])
    if raw[:2] != _KIND_AND_VERSION or algorithm is None:
        raise _malformed("only version 2 over SHA-256, SHA-384 or SHA-512 is read")
    if len(raw) != _HEAD_BYTES + size:
        raise _malformed(f"{len(raw) - _HEAD_BYTES} bytes where {size} are named")
    return FileSignature(algorithm, raw[_HEAD_BYTES:])


def signer_key(spki: bytes) -> SignerKey:
    """The key of a signer, from its SubjectPublicKeyInfo.

    Raises:
        MalformedError: for a key that is neither RSA nor on a NIST curve.
    """
    try:
        return RsaKey.from_spki(spki)
    except MalformedError:
        return EcdsaKey.from_spki(spki)


def verify_file(
    raw: bytes, digest: bytes, algorithm: str, signers: Sequence[SignerKey]
) -> SignerKey:
    """The signer whose signature ``raw`` over a file's digest is.

    Raises:
        MalformedError: if ``raw`` is no signature.
        AuthenticationError: if none of the signers made it.
    """
    found = parse_signature(raw)
    if found.algorithm != algorithm or digest_bytes(found.algorithm) != len(digest):
        raise AuthenticationError
    for signer in signers:
        if _verifies(signer, digest, found):
            return signer
    raise AuthenticationError


def _verifies(signer: SignerKey, digest: bytes, found: FileSignature) -> bool:
    try:
        if isinstance(signer, RsaKey):
            signer.verify_pkcs1_digest(digest, found.signature, found.algorithm)
        else:
            signer.verify_digest(digest, found.signature, found.algorithm)
    except AuthenticationError:
        return False
    return True


def _malformed(why: str) -> MalformedError:
    return MalformedError(
        "not a file signature", why=why, code="ima-signature-malformed"
    )
