"""Secrets at rest, each wrapped under a key of its own from the owner's identity.

The file that holds them is worth nothing without the identity file and its passphrase
(rule C10). What a secret is for is bound to it, so two of them cannot change places.
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import Final

from sealift.codec import encode
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import AuthenticationError, IntegrityError, RefusedError
from sealift.release.database import DatabaseFile

SALT_BYTES: Final = 32


def mark_owner(connection: sqlite3.Connection, owner: PublicKey) -> None:
    """Write down whose vault it is, so that damage is not taken for another identity."""
    connection.execute("INSERT INTO seen VALUES (?, 1)", (f"owner/{owner.to_text()}",))


def wrap(identity: Identity, secret: SecretKey, context: object) -> tuple[bytes, bytes]:
    """A secret as it lies in the file: (fresh salt, ciphertext and tag).

    Args:
        identity: The owner's.
        secret: Stays as it is.
        context: A record of the codec that names its use.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    # The salt makes the key fresh, so the nonce may be zero: one use per key.
    aead = Aead(Suite.AES_256_GCM, identity.derive(Label.VAULT, salt))
    sealed = aead.seal(bytes(NONCE_BYTES), secret.reveal(TOKEN), encode(context))
    return salt, sealed


def unwrap(
    identity: Identity,
    wrapped: tuple[bytes, bytes],
    context: object,
    file: DatabaseFile,
) -> SecretKey:
    """The secret that was wrapped for this context.

    Raises:
        RefusedError: ``vault-locked``, if the identity does not open it.
        IntegrityError: ``vault-damaged``, if it is this identity's vault, and something
            was overwritten.
    """
    salt, sealed = wrapped
    aead = Aead(Suite.AES_256_GCM, identity.derive(Label.VAULT, salt))
    try:
        raw = aead.open(bytes(NONCE_BYTES), sealed, encode(context))
    except AuthenticationError:
        with file.reading() as connection:
            query = "SELECT 1 FROM seen WHERE name = ?"
            owner = f"owner/{identity.public_key.to_text()}"
            own = connection.execute(query, (owner,)).fetchone() is not None
        if own:
            raise IntegrityError(
                f"{file.path} is damaged",
                why=f"it is {identity.name}'s, and a secret in it was overwritten",
                code="vault-damaged",
            ) from None
        raise RefusedError(
            f"{file.path} does not open with the identity {identity.name}",
            code="vault-locked",
        ) from None
    return SecretKey(raw)
