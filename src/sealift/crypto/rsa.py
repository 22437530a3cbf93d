"""RSA signatures that others make: TPMs and the certificates of their makers.

Only verification, of moduli from 2048 to 8192 bits. Source: RFC 8017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from sealift.crypto.hash import HashName, hash_algorithm
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Buffer

MIN_BITS: Final = 2048
MAX_BITS: Final = 8192


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
        if self.modulus % 2 == 0:
            raise MalformedError("an RSA modulus that is even")
        self._key()

    @classmethod
    def from_spki(cls, der: bytes) -> RsaKey:
        """From a SubjectPublicKeyInfo.

        Raises:
            MalformedError: for any other key.
        """
        try:
            key = load_der_public_key(der)
        except ValueError:
            key = None
        if not isinstance(key, rsa.RSAPublicKey):
            raise MalformedError("not an RSA key")
        numbers = key.public_numbers()
        return cls(numbers.n, numbers.e)

    def to_spki(self) -> bytes:
        """The key as SubjectPublicKeyInfo."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def verify_pkcs1(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check an RSASSA-PKCS1-v1_5 signature.

        Raises:
            AuthenticationError: if it does not verify.
        """
        self._verify(message, signature, padding.PKCS1v15(), name)

    def verify_pkcs1_digest(
        self, digest: bytes, signature: bytes, name: HashName
    ) -> None:
        """The same over a message of which only the hash is known.

        Raises:
            AuthenticationError: if it does not verify.
        """
        algorithm = Prehashed(hash_algorithm(name))
        try:
            self._key().verify(signature, digest, padding.PKCS1v15(), algorithm)
        except (InvalidSignature, ValueError):
            raise AuthenticationError from None

    def verify_pss(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check an RSASSA-PSS signature, MGF1 with the same hash, any salt length.

        Raises:
            AuthenticationError: if it does not verify.
        """
        scheme = padding.PSS(padding.MGF1(hash_algorithm(name)), padding.PSS.AUTO)
        self._verify(message, signature, scheme, name)

    def _verify(
        self,
        message: Buffer,
        signature: bytes,
        scheme: padding.PKCS1v15 | padding.PSS,
        name: HashName,
    ) -> None:
        try:
            self._key().verify(signature, bytes(message), scheme, hash_algorithm(name))
        except (InvalidSignature, ValueError):
            raise AuthenticationError from None

    def _key(self) -> rsa.RSAPublicKey:
        try:
            return rsa.RSAPublicNumbers(self.exponent, self.modulus).public_key()
        except ValueError:
            raise MalformedError("not an RSA key") from None
