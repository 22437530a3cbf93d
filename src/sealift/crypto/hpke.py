"""HPKE (RFC 9180) in base mode: hide a secret for the holder of one key.

KEM is the ML-KEM-768 + X25519 hybrid, KDF HKDF-SHA-256, AEAD AES-256-GCM. Base mode
hides and does not authenticate: who sends a key signs it besides (rule C9).
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
