"""Hybrid key exchange: X25519 (RFC 7748) and ML-KEM-768 (FIPS 203) side by side.

An attacker has to break both. ``SharedSecret = ss_mlkem || ss_x25519`` as in rule C7;
whoever uses it derives keys through a transcript hash that covers both publics.
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError

X25519_BYTES: Final = 32
MLKEM_PUBLIC_BYTES: Final = 1184
MLKEM_CIPHERTEXT_BYTES: Final = 1088
OFFER_BYTES: Final = X25519_BYTES + MLKEM_PUBLIC_BYTES
ANSWER_BYTES: Final = X25519_BYTES + MLKEM_CIPHERTEXT_BYTES


class Offer:
    """The initiator's fresh private halves; good for one exchange.

    ``public`` is X25519 public (32 bytes) || ML-KEM-768 encapsulation key (1184).
    """

    __slots__ = ("_mlkem", "_x25519", "public")

    def __init__(self) -> None:
        self._x25519 = X25519PrivateKey.generate()
        self._mlkem = MLKEM768PrivateKey.generate()
        self.public: bytes = (
            self._x25519.public_key().public_bytes_raw()
            + self._mlkem.public_key().public_bytes_raw()
        )

    @classmethod
    def generate(cls) -> Offer:
        """A fresh offer."""
        return cls()

    def finish(self, answer: bytes) -> SecretKey:
        """The 64-byte shared secret from the responder's answer.

        Raises:
            MalformedError: if the answer has the wrong length.
            AuthenticationError: if a public value in it cannot be used.
        """
        if len(answer) != ANSWER_BYTES:
            raise MalformedError(f"a key exchange answer has {ANSWER_BYTES} bytes")
        mlkem_secret = self._mlkem.decapsulate(answer[X25519_BYTES:])
        return _combine(mlkem_secret, self._x25519, answer[:X25519_BYTES])


def respond(offer: bytes) -> tuple[bytes, SecretKey]:
    """Answer an offer: (X25519 public || ML-KEM ciphertext, 64-byte shared secret).

    Raises:
        MalformedError: if the offer has the wrong length.
        AuthenticationError: if a public value in it cannot be used.
    """
    if len(offer) != OFFER_BYTES:
        raise MalformedError(f"a key exchange offer has {OFFER_BYTES} bytes")
    try:
        mlkem = MLKEM768PublicKey.from_public_bytes(offer[X25519_BYTES:])
        mlkem_secret, ciphertext = mlkem.encapsulate()
    except ValueError:
        raise AuthenticationError from None
    x25519 = X25519PrivateKey.generate()
    shared = _combine(mlkem_secret, x25519, offer[:X25519_BYTES])
    return x25519.public_key().public_bytes_raw() + ciphertext, shared


def _combine(mlkem: bytes, own: X25519PrivateKey, peer_public: bytes) -> SecretKey:
    try:
        x25519 = own.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError:  # the all-zero shared secret of a low-order point
        raise AuthenticationError from None
    return SecretKey(mlkem + x25519)
