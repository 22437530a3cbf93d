"""ECDSA signatures that others make: TPMs, TEEs, GPUs, signers of reference values.

Only verification. Curves are those of the evidence formats: NIST P-256, P-384, P-521.
Source: FIPS 186-5; SEC 1 for points; RFC 3279 for the DER form of a signature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
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
from sealift.crypto.library import reading
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Buffer

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
            raise MalformedError(f"no NIST curve: {self.curve[:20]!r}")
        self._key()

    @classmethod
    def from_spki(cls, der: bytes) -> EcdsaKey:
        """From a SubjectPublicKeyInfo (RFC 5480).

        Raises:
            MalformedError: for any other key.
        """
        with reading("the key of an elliptic curve"):
            key = load_der_public_key(der)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise MalformedError("not the key of an elliptic curve")
        raw = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        names = {curve.name: name for name, (curve, _) in _CURVES.items()}
        return cls(names.get(key.curve.name, key.curve.name), raw[1:])

    @property
    def field_bytes(self) -> int:
        """Length of a coordinate."""
        return _CURVES[self.curve][1]

    def to_spki(self) -> bytes:
        """The key as SubjectPublicKeyInfo."""
        return self._key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def verify_der(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check a DER-encoded signature over ``message``.

        Raises:
            AuthenticationError: if it does not verify, or has another encoding.
        """
        self._verify(message, signature, hash_algorithm(name))

    def verify_digest(self, digest: bytes, signature: bytes, name: HashName) -> None:
        """Check a DER-encoded signature over a message of which only the hash is known.

        Raises:
            AuthenticationError: if it does not verify, or has another encoding.
        """
        self._verify(digest, signature, Prehashed(hash_algorithm(name)))

    def verify_raw(self, message: Buffer, signature: bytes, name: HashName) -> None:
        """Check a signature r || s, big-endian, each as long as the field.

        Raises:
            AuthenticationError: if it does not verify, or has another length.
        """
        size = self.field_bytes
        if len(signature) != 2 * size:
            raise AuthenticationError
        r, s = (int.from_bytes(part) for part in (signature[:size], signature[size:]))
        self.verify_der(message, encode_dss_signature(r, s), name)

    def _verify(
        self, message: Buffer, signature: bytes, algorithm: HashAlgorithm | Prehashed
    ) -> None:
        try:
            if encode_dss_signature(*decode_dss_signature(signature)) != signature:
                raise AuthenticationError
            self._key().verify(signature, bytes(message), ec.ECDSA(algorithm))
        except (InvalidSignature, ValueError):
            raise AuthenticationError from None

    def _key(self) -> ec.EllipticCurvePublicKey:
        curve, size = _CURVES[self.curve]
        if len(self.point) != 2 * size:
            raise MalformedError(f"a point of {self.curve} has {2 * size} bytes")
        with reading(f"a point of {self.curve}"):
            return ec.EllipticCurvePublicKey.from_encoded_point(
                curve, b"\x04" + self.point
            )
