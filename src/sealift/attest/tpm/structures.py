"""Structures that a TPM writes, and public areas of keys (TPMT_PUBLIC) with their Names.

Strict: whoever opens a structure says when it must be at its end. Source: TPM 2.0 Library
part 2, sections 8.3 (attributes) and 12.2 (public area); part 1 section 16 (Names); TCG
algorithm registry (numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from sealift.attest.binary import Cursor
from sealift.crypto.hash import STRONG_HASHES, HashName, digest
from sealift.crypto.vendorkeys import EcdsaKey, RsaKey
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import Digest

T = TypeVar("T")
ALG_RSA: Final = 0x0001
ALG_AES: Final = 0x0006
ALG_NULL: Final = 0x0010
ALG_RSASSA: Final = 0x0014
ALG_RSAPSS: Final = 0x0016
ALG_ECDSA: Final = 0x0018
ALG_ECC: Final = 0x0023
ALG_CFB: Final = 0x0043
HASHES: Final[dict[int, HashName]] = {
    0x0004: "sha1",
    0x000B: "sha256",
    0x000C: "sha384",
    0x000D: "sha512",
}
HASH_NUMBER: Final = {name: number for number, name in HASHES.items()}


class TpmReader(Cursor):
    """A cursor over the bytes of one structure.

    Args:
        raw: The bytes.
        what: Name of the structure, for errors.
    """

    __slots__ = ()

    def __init__(self, raw: bytes, what: str) -> None:
        super().__init__(raw, what, "big")

    def sized(self) -> bytes:
        """A part behind its length (TPM2B)."""
        return self.take(self.number(2))

    def hash_name(self) -> HashName:
        """A hash algorithm.

        Raises:
            MalformedError: for one that no evidence uses.
        """
        return self.one_of(HASHES, "hash algorithm")

    def one_of(self, known: dict[int, T], what: str) -> T:
        """What a number of two bytes stands for."""
        number = self.number(2)
        if number not in known:
            raise self.malformed(f"unknown {what} {number:#06x}")
        return known[number]

    def finish(self) -> None:
        """Refuse bytes that are left over."""
        if left := len(self.raw) - self.offset:
            raise self.malformed(f"{left} bytes too many")

    def malformed(self, why: str) -> MalformedError:
        """The refusal of these bytes."""
        return MalformedError(
            f"the bytes are not a {self.what}", why=why, offset=self.offset
        )


def sized(content: bytes) -> bytes:
    """``content`` behind its length in two bytes (TPM2B)."""
    return len(content).to_bytes(2, "big") + content


FIXED_TPM: Final = 1 << 1
FIXED_PARENT: Final = 1 << 4
SENSITIVE_DATA_ORIGIN: Final = 1 << 5
USER_WITH_AUTH: Final = 1 << 6
ENCRYPTED_DUPLICATION: Final = 1 << 11
RESTRICTED: Final = 1 << 16
DECRYPT: Final = 1 << 17
SIGN: Final = 1 << 18
X509_SIGN: Final = 1 << 19
_KNOWN: Final = 0x000F0CF6
# Made in the TPM, never leaves it, signs nothing that the TPM did not write itself.
ATTESTATION_ON: Final = (
    FIXED_TPM | FIXED_PARENT | SENSITIVE_DATA_ORIGIN | RESTRICTED | SIGN
)
ATTESTATION_OFF: Final = DECRYPT | ENCRYPTED_DUPLICATION | X509_SIGN

_CURVES: Final = {0x0003: "P-256", 0x0004: "P-384", 0x0005: "P-521"}
SCHEMES: Final = {
    ALG_RSASSA: "rsassa",
    ALG_RSAPSS: "rsapss",
    ALG_ECDSA: "ecdsa",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a key signs: ``rsassa``, ``rsapss`` or ``ecdsa``, over which hash."""

    name: str
    hash: HashName


@dataclass(frozen=True, slots=True)
class Public:
    """The public area of a key.

    Attributes:
        raw: The TPMT_PUBLIC itself.
        name_hash: Hash of its Name.
        attributes: TPMA_OBJECT.
        policy: authPolicy, or nothing.
        symmetric_bits: Of its AES-CFB if it protects others, else 0.
        scheme: How it signs; None if each signature says so.
        key: The public key.
    """

    raw: bytes
    name_hash: HashName
    attributes: int
    policy: bytes
    symmetric_bits: int
    scheme: Scheme | None
    key: EcdsaKey | RsaKey

    @property
    def name(self) -> bytes:
        """The Name: nameAlg in two bytes, and the digest of the public area."""
        number = HASH_NUMBER[self.name_hash].to_bytes(2, "big")
        return number + digest(self.name_hash, self.raw)

    @property
    def spki_digest(self) -> Digest:
        """SHA-256 of the key as SubjectPublicKeyInfo, as certificates name it."""
        return Digest.of(self.key.to_spki())


def parse_public(raw: bytes) -> Public:
    """Parse a TPMT_PUBLIC of an RSA or an elliptic curve key.

    Raises:
        MalformedError: for anything else, trailing bytes included.
    """
    reader = TpmReader(raw, "TPM public area")
    kind = reader.one_of({ALG_RSA: "rsa", ALG_ECC: "ecc"}, "kind of key")
    name_hash = reader.hash_name()
    attributes = reader.number(4)
    if attributes & ~_KNOWN:
        raise reader.malformed(f"reserved attributes {attributes & ~_KNOWN:#x}")
    policy, symmetric_bits = reader.sized(), 0
    if reader.one_of({ALG_AES: True, ALG_NULL: False}, "symmetric algorithm"):
        symmetric_bits = reader.number(2)
        reader.one_of({ALG_CFB: "cfb"}, "mode of AES")
        if symmetric_bits not in (128, 192, 256):
            raise reader.malformed(f"AES of {symmetric_bits} bits")
    name = reader.one_of({ALG_NULL: "", **SCHEMES}, "signature scheme")
    scheme = Scheme(name, reader.hash_name()) if name else None
    key = _parse_rsa(reader) if kind == "rsa" else _parse_ecc(reader)
    reader.finish()
    return Public(raw, name_hash, attributes, policy, symmetric_bits, scheme, key)


def require_attestation_key(public: Public) -> Scheme:
    """Refuse a key that could sign what its TPM did not write; return how it signs.

    Raises:
        EvidenceError: ``tpm-key-attributes`` or ``tpm-weak-hash``.
    """
    attributes = public.attributes
    missing = ATTESTATION_ON & ~attributes
    unwanted = ATTESTATION_OFF & attributes
    if missing or unwanted or public.symmetric_bits or public.scheme is None:
        raise EvidenceError(
            "the key that signed the quote is not an attestation key",
            why=(
                f"its attributes {attributes:#x} lack {missing:#x} or have "
                f"{unwanted:#x}"
            )
            if missing or unwanted
            else "it names no signature scheme",
            code="tpm-key-attributes",
        )
    if public.scheme.hash not in STRONG_HASHES or public.name_hash not in STRONG_HASHES:
        raise EvidenceError("the attestation key uses SHA-1", code="tpm-weak-hash")
    return public.scheme


def _parse_rsa(reader: TpmReader) -> RsaKey:
    bits, exponent = reader.number(2), reader.number(4)
    modulus = reader.sized()
    if len(modulus) * 8 != bits:
        raise reader.malformed(f"a modulus of {len(modulus)} bytes")
    return RsaKey(int.from_bytes(modulus, "big"), exponent or 65537)


def _parse_ecc(reader: TpmReader) -> EcdsaKey:
    curve = reader.one_of(_CURVES, "curve")
    reader.one_of({ALG_NULL: ""}, "key derivation")
    x, y = reader.sized(), reader.sized()
    if len(x) != len(y):
        raise reader.malformed("coordinates of different lengths")
    return EcdsaKey(curve, x + y)
