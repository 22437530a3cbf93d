"""Keys of vendors, ECDSA and RSA: what TPMs, TEEs, GPUs, certificates' issuers sign with.

Only verification; our own keys are in ``sign``. Curves are those of the evidence formats: NIST P-256, P-384, P-521. RSA
moduli have 2048 to 8192 bits that no small prime divides: whoever can factor the modulus
signs in its owner's name. At the top, which library computes this room's work, and where
its exceptions end. Source: FIPS 186-5; SEC 1 for points; RFC 3279 for the DER form of a
signature; RFC 8017; SP 800-56B 6.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, prod
from typing import Final

import cryptography
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    Prehashed,
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import HashAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from sealift.crypto.hash import HashName, hash_algorithm
from sealift.errors import AuthenticationError, MalformedError, SealiftError
from sealift.ids import Buffer


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Around whatever the library makes of a stranger's bytes (rule N9).

    It raises many types of its own, which no list of them would keep up with.

    Raises:
        MalformedError: instead of anything that is not ours.
    """
    try:
        yield
    except SealiftError:
        raise
    except Exception:
        raise MalformedError(f"the bytes are not {what}") from None


def library_version() -> str:
    """For people: `cryptography 50.0.2 (OpenSSL 4.0.3 ...)`."""
    built_with = " ".join(backend.openssl_version_text().split()[:2])
    return f"cryptography {cryptography.__version__} ({built_with})"


_CURVES: Final[dict[str, tuple[ec.EllipticCurve, int]]] = {
    "P-256": (ec.SECP256R1(), 32),
    "P-384": (ec.SECP384R1(), 48),
    "P-521": (ec.SECP521R1(), 66),
}


@dataclass(frozen=True, slots=True)
class EcdsaKey:
    """A public key on a NIST curve.

    Attributes:
        curve: ``P-256``, ``P-384`` or ``P-521``.
        point: x || y, big-endian, each as long as the field (64, 96 or 132 bytes).
    """

    curve: str
    point: bytes

    def __post_init__(self) -> None:
        if self.curve not in _CURVES:
            raise MalformedError(f"{self.curve[:20]!r} is not a NIST curve")
        self._key()

    @property
    def field_bytes(self) -> int:
        """Length of a coordinate."""
        return _CURVES[self.curve][1]

    def to_spki(self) -> bytes:
        """The key as SubjectPublicKeyInfo."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def verify(
        self, message: Buffer, signature: bytes, name: HashName, *, hashed: bool = False
    ) -> None:
        """Check a DER-encoded signature over ``message``, or over what hashes to it.

        Raises:
            AuthenticationError: if it does not verify, or has another encoding.
        """
        try:
            if encode_dss_signature(*decode_dss_signature(signature)) != signature:
                raise AuthenticationError
            scheme = ec.ECDSA(_algorithm(name, hashed))
            self._key().verify(signature, bytes(message), scheme)
        except (InvalidSignature, ValueError):
            raise AuthenticationError from None

    def verify_raw(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check a signature r || s, big-endian, each as long as the field.

        Raises:
            AuthenticationError: if it does not verify, or has another length.
        """
        size = self.field_bytes
        if len(signature) != 2 * size:
            raise AuthenticationError
        r, s = (int.from_bytes(part) for part in (signature[:size], signature[size:]))
        self.verify(message, encode_dss_signature(r, s), name)

    def _key(self) -> ec.EllipticCurvePublicKey:
        curve, size = _CURVES[self.curve]
        if len(self.point) != 2 * size:
            raise MalformedError(f"a point of {self.curve} has {2 * size} bytes")
        with reading(f"a point of {self.curve}"):
            return ec.EllipticCurvePublicKey.from_encoded_point(
                curve, b"\x04" + self.point
            )


MIN_BITS: Final = 2048
MAX_BITS: Final = 8192
MAX_EXPONENT: Final = (1 << 32) - 1
_SMALL_PRIMES: Final = prod(
    n for n in range(2, 1000) if all(n % d for d in range(2, 32) if d < n)
)


@dataclass(frozen=True, slots=True)
class RsaKey:
    """A public key: modulus and exponent."""

    modulus: int
    exponent: int

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.modulus.bit_length() <= MAX_BITS:
            raise MalformedError(
                f"an RSA modulus has {self.modulus.bit_length()} bits",
                why=f"{MIN_BITS} to {MAX_BITS} are accepted",
            )
        if gcd(self.modulus, _SMALL_PRIMES) != 1:
            raise MalformedError("an RSA modulus has a small factor")
        if not (3 <= self.exponent <= MAX_EXPONENT and self.exponent % 2):
            raise MalformedError("an RSA exponent is even, or has an unusual size")
        self._key()

    def to_spki(self) -> bytes:
        """The key as SubjectPublicKeyInfo."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def to_pkcs1(self) -> bytes:
        """The key as RSAPublicKey, which is what its bits in a certificate are."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.PKCS1)

    def verify(
        self, message: Buffer, signature: bytes, name: HashName, *, hashed: bool = False
    ) -> None:
        """Check an RSASSA-PKCS1-v1_5 signature over ``message``, or what hashes to it.

        Raises:
            AuthenticationError: if it does not verify.
        """
        self._verify(message, signature, padding.PKCS1v15(), _algorithm(name, hashed))

    def verify_pss(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check an RSASSA-PSS signature, MGF1 with the same hash, any salt length.

        Raises:
            AuthenticationError: if it does not verify.
        """
        scheme = padding.PSS(padding.MGF1(hash_algorithm(name)), padding.PSS.AUTO)
        self._verify(message, signature, scheme, hash_algorithm(name))

    def _verify(
        self,
        message: Buffer,
        signature: bytes,
        scheme: padding.PKCS1v15 | padding.PSS,
        algorithm: HashAlgorithm | Prehashed,
    ) -> None:
        try:
            self._key().verify(signature, bytes(message), scheme, algorithm)
        except (InvalidSignature, ValueError):
            raise AuthenticationError from None

    def _key(self) -> rsa.RSAPublicKey:
        with reading("an RSA key"):
            return rsa.RSAPublicNumbers(self.exponent, self.modulus).public_key()


def read_key(spki: bytes) -> EcdsaKey | RsaKey:
    """The key that a SubjectPublicKeyInfo is (RFC 5480, RFC 3279).

    Raises:
        MalformedError: for a kind of key that no evidence uses, or a weak one.
    """
    with reading("a key"):
        key = load_der_public_key(spki)
    if isinstance(key, rsa.RSAPublicKey):
        numbers = key.public_numbers()
        return RsaKey(numbers.n, numbers.e)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise MalformedError("a key of an unexpected kind")
    point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]
    names = {curve.name: name for name, (curve, _) in _CURVES.items()}
    return EcdsaKey(names.get(key.curve.name, key.curve.name), point)


def _algorithm(name: HashName, hashed: bool) -> HashAlgorithm | Prehashed:
    algorithm = hash_algorithm(name)
    return Prehashed(algorithm) if hashed else algorithm
