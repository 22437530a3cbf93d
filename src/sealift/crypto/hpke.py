"""Hybrid encryption to a key, X25519 and ML-KEM-768: an attacker has to break both.

HPKE (RFC 9180) hides a secret for the holder of one key: KDF HKDF-SHA-256, AEAD
AES-256-GCM, base mode, which does not authenticate: who sends a key signs it besides
(rule C9). A session exchanges fresh keys instead (RFC 7748, FIPS 203):
``SharedSecret = ss_mlkem || ss_x25519`` as in rule C7, and whoever uses it derives keys
through a transcript hash that covers both publics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import decode_key_text, encode_key_text
from sealift.errors import AuthenticationError, MalformedError, UsageError

MLKEM_PUBLIC_BYTES: Final = 1184
PUBLIC_BYTES: Final = MLKEM_PUBLIC_BYTES + 32
SEED_BYTES: Final = 64 + 32
_PREFIX = "hpke:"
_SUITE = hpke.Suite(
    hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM
)


@dataclass(frozen=True, slots=True)
class HpkePublicKey:
    """ML-KEM-768 encapsulation key || X25519 public key; text ``hpke:<base64url>``."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != PUBLIC_BYTES:
            raise MalformedError(f"an HPKE public key has {PUBLIC_BYTES} bytes")

    @classmethod
    def from_text(cls, text: str) -> HpkePublicKey:
        """Parse the text form.

        Raises:
            MalformedError: for any other text.
        """
        return cls(decode_key_text(text, _PREFIX))

    def to_text(self) -> str:
        """``hpke:<base64url without padding>``."""
        return encode_key_text(self.raw, _PREFIX)

    def seal(self, info: bytes, plaintext: bytes) -> bytes:
        """Seal a small secret (encapsulated key || ciphertext).

        Raises:
            MalformedError: if this key is not a valid point or matrix.
        """
        try:
            key = hpke.MLKEM768X25519PublicKey(
                MLKEM768PublicKey.from_public_bytes(self.raw[:MLKEM_PUBLIC_BYTES]),
                X25519PublicKey.from_public_bytes(self.raw[MLKEM_PUBLIC_BYTES:]),
            )
            return _SUITE.encrypt(plaintext, key, info)
        except ValueError:
            raise MalformedError("not a usable HPKE public key") from None


def seal_key(key: SecretKey, info: bytes, recipient: HpkePublicKey) -> bytes:
    """Seal a key, which nobody on the way reads; raises like ``HpkePublicKey.seal``."""
    return recipient.seal(info, key.reveal(TOKEN))


class HpkePrivateKey:
    """The private half: ML-KEM seed (64 bytes) || X25519 private key (32 bytes)."""

    __slots__ = ("_key", "_seed", "public")

    def __init__(self, seed: SecretKey) -> None:
        if len(seed) != SEED_BYTES:
            raise MalformedError(f"an HPKE private key has {SEED_BYTES} bytes")
        material = seed.reveal(TOKEN)
        mlkem = MLKEM768PrivateKey.from_seed_bytes(material[:64])
        x25519 = X25519PrivateKey.from_private_bytes(material[64:])
        self._seed = seed
        self._key: hpke.MLKEM768X25519PrivateKey | None = hpke.MLKEM768X25519PrivateKey(
            mlkem, x25519
        )
        self.public = HpkePublicKey(
            mlkem.public_key().public_bytes_raw()
            + x25519.public_key().public_bytes_raw()
        )

    @classmethod
    def generate(cls) -> HpkePrivateKey:
        """A fresh key."""
        return cls(SecretKey.generate(SEED_BYTES))

    @property
    def seed(self) -> SecretKey:
        """What an identity file stores."""
        return self._seed

    def open(self, info: bytes, sealed: bytes) -> SecretKey:
        """Open what ``public.seal`` made for the same ``info``.

        Raises:
            AuthenticationError: if it does not open.
            MalformedError: if it holds nothing; anybody can seal.
            UsageError: after ``wipe``.
        """
        key = self._key
        if key is None:
            raise UsageError("this key was wiped", fix="Start a fresh session")
        try:
            secret = _SUITE.decrypt(sealed, key, info)
        except (InvalidTag, ValueError):
            raise AuthenticationError from None
        if not secret:
            raise MalformedError("a sealed secret is empty")
        return SecretKey(secret)

    def wipe(self) -> None:
        """Overwrite the seed and drop the key; nothing opens any more."""
        self._key = None
        self._seed.wipe()

    def __repr__(self) -> str:
        return "<HpkePrivateKey>"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled or copied")


X25519_BYTES: Final = 32
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
