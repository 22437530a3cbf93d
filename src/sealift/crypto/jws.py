"""JSON Web Tokens signed ES256 (RFC 7515, RFC 7519): the form of attestation results.

Time is an argument, the algorithm is fixed, and the key is the caller's: a key that a
token carries in its own header is never used.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from sealift.crypto.ecdsa import EcdsaKey
from sealift.errors import AuthenticationError, MalformedError, StaleError

ALGORITHM: Final = "ES256"
MAX_TOKEN_BYTES: Final = 1 << 18


class TokenSigner:
    """An ES256 private key in memory."""

    __slots__ = ("_private",)

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> TokenSigner:
        """A fresh key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @property
    def public_key(self) -> EcdsaKey:
        """The key that verifies."""
        numbers = self._private.public_key().public_numbers()
        return EcdsaKey("P-256", numbers.x.to_bytes(32) + numbers.y.to_bytes(32))

    def sign(
        self, claims: Mapping[str, Any], *, kid: str = "", shows_key: bool = False
    ) -> str:
        """A compact token over ``claims``.

        Args:
            claims: What it says.
            kid: Names the key in the header.
            shows_key: Whether the header carries the public key, as Trustee's do; that
                it does proves nothing.
        """
        headers: dict[str, Any] = {"kid": kid} if kid else {}
        if shows_key:
            headers["jwk"] = self._jwk()
        pem = self._private.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        return jwt.encode(
            dict(claims), pem, algorithm=ALGORITHM, headers=headers or None
        )

    def _jwk(self) -> dict[str, str]:
        point = self.public_key.point
        x, y = (
            base64.urlsafe_b64encode(part).rstrip(b"=").decode()
            for part in (point[:32], point[32:])
        )
        return {"kty": "EC", "crv": "P-256", "alg": ALGORITHM, "x": x, "y": y}

    def __repr__(self) -> str:
        return "<TokenSigner>"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled or copied")


def verify_token(token: str, key: EcdsaKey, *, at_s: int) -> dict[str, Any]:
    """The claims of a token that ``key`` signed and that is valid at ``at_s``.

    Raises:
        AuthenticationError: if the signature does not verify.
        StaleError: ``token-expired``, also if it names no end or comes from the future.
        MalformedError: if it is no token.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise MalformedError("a token is too large")
    unchecked = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.to_spki_pem(),
            algorithms=[ALGORITHM],
            options={**unchecked, "verify_aud": False},  # type: ignore[arg-type]
        )
    except jwt.InvalidSignatureError:
        raise AuthenticationError from None
    except jwt.PyJWTError:
        raise MalformedError("not a token signed ES256") from None
    _require_time(claims, at_s)
    return claims


def _require_time(claims: Mapping[str, Any], at_s: int) -> None:
    began, ends = claims.get("iat"), claims.get("exp")
    if not (isinstance(began, int) and isinstance(ends, int) and began <= at_s < ends):
        raise StaleError(
            "the token is not of this time", fix="Attest again", code="token-expired"
        )
