"""RSA signatures that others make: TPMs and the certificates of their makers.

Only verification, of moduli from 2048 to 8192 bits that no small prime divides: whoever
can factor the modulus signs in its owner's name. Source: RFC 8017; SP 800-56B 6.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import HashAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from sealift.crypto.hash import HashName, hash_algorithm
from sealift.crypto.library import reading
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Buffer

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
                f"an RSA modulus of {self.modulus.bit_length()} bits",
                why=f"{MIN_BITS} to {MAX_BITS} are taken",
            )
        if gcd(self.modulus, _SMALL_PRIMES) != 1:
            raise MalformedError("an RSA modulus with a small factor")
        if not (3 <= self.exponent <= MAX_EXPONENT and self.exponent % 2):
            raise MalformedError("an RSA exponent that is even, or of no usual size")
        self._key()

    @classmethod
    def from_spki(cls, der: bytes) -> RsaKey:
        """From a SubjectPublicKeyInfo.

        Raises:
            MalformedError: for any other key.
        """
        with reading("an RSA key"):
            key = load_der_public_key(der)
        if not isinstance(key, rsa.RSAPublicKey):
            raise MalformedError("not an RSA key")
        numbers = key.public_numbers()
        return cls(numbers.n, numbers.e)

    def to_spki(self) -> bytes:
        """The key as SubjectPublicKeyInfo."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def to_pkcs1(self) -> bytes:
        """The key as RSAPublicKey, which is what its bits in a certificate are."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.PKCS1)

    def verify_pkcs1(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check an RSASSA-PKCS1-v1_5 signature.

        Raises:
            AuthenticationError: if it does not verify.
        """
        self._verify(message, signature, padding.PKCS1v15(), hash_algorithm(name))

    def verify_pkcs1_digest(
        self, digest: bytes, signature: bytes, name: HashName
    ) -> None:
        """The same over a message of which only the hash is known.

        Raises:
            AuthenticationError: if it does not verify.
        """
        algorithm = Prehashed(hash_algorithm(name))
        self._verify(digest, signature, padding.PKCS1v15(), algorithm)

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
