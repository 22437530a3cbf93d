"""Secrets at rest, each wrapped under a key of its own from the owner's identity.

The file that holds them is worth nothing without the identity file and its passphrase
(rule C10). What a secret is for is bound to it, so two of them cannot change places.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.codec import encode
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.identity import Identity
from sealift.crypto.kdf import Label
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError, IntegrityError, RefusedError

SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A secret as it lies in the file: a fresh salt, ciphertext and tag."""

    salt: bytes
    sealed: bytes


def wrap(identity: Identity, secret: SecretKey, context: object) -> Wrapped:
    """Wrap a secret; ``context`` is a record of the codec that names its use."""
    salt = secrets.token_bytes(SALT_BYTES)
    # The salt makes the key fresh, so the nonce may be zero: one use per key.
    aead = Aead(Suite.AES_256_GCM, identity.derive(Label.VAULT, salt))
    sealed = aead.seal(bytes(NONCE_BYTES), secret.reveal(TOKEN), encode(context))
    return Wrapped(salt, sealed)


def unwrap(
    identity: Identity, wrapped: Wrapped, context: object, path: Path, *, own: bool
) -> SecretKey:
    """The secret; ``path`` is the file that an error names.

    Args:
        own: Whether the file is known to be this identity's.

    Raises:
        RefusedError: ``vault-locked``, if the identity does not open it.
        IntegrityError: ``vault-damaged``, if it would, and something was overwritten.
    """
    aead = Aead(Suite.AES_256_GCM, identity.derive(Label.VAULT, wrapped.salt))
    try:
        raw = aead.open(bytes(NONCE_BYTES), wrapped.sealed, encode(context))
    except AuthenticationError:
        if own:
            raise IntegrityError(
                f"{path} is damaged",
                why=f"it is {identity.name}'s, and a secret in it was overwritten",
                code="vault-damaged",
            ) from None
        raise RefusedError(
            f"{path} does not open with the identity {identity.name}",
            code="vault-locked",
        ) from None
    return SecretKey(raw)
