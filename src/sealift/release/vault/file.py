"""The vault's file: every write is synced to the disk, and secrets in it are wrapped.

There are two connections, so that readers need not wait for a writer's sync. Each secret
is wrapped under a separate key, derived from the owner's identity and a fresh salt, so
the file cannot be opened without the identity file and its passphrase (rule C10: the
wrapping key is not beside the database; while a broker runs it is in that process). The
use of a secret is bound to it, so two secrets cannot be exchanged.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sealift.codec import encode
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    RefusedError,
    UnavailableError,
)
from sealift.release.database import (
    BUSY_TIMEOUT_S,
    database_errors,
    open_database,
    transaction,
)

APPLICATION_ID: Final = 0x5EA11062
SALT_BYTES: Final = 32
_MOMENT_S: Final = 0.1


def mark_owner(connection: sqlite3.Connection, owner: PublicKey) -> None:
    """Write down whose vault it is, so that damage is not taken for another identity."""
    connection.execute("INSERT INTO seen VALUES (?, 1)", (_owned_by(owner),))


class VaultFile:
    """Two connections to one vault, each for one thread at a time.

    Args:
        path: The file.
        identity: The owner's; secrets are wrapped for it.

    Attributes:
        connection: The one that writes, for whoever holds ``lock``.
        lock: For that connection.

    Raises:
        UnavailableError, MalformedError: as ``open_database``.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.owner = identity.name
        self._identity = identity
        self.connection = open_database(path, APPLICATION_ID)
        self.lock = threading.Lock()
        self._read = open_database(path, APPLICATION_ID)
        self._read_lock = threading.Lock()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is on the disk at its end, or none of it."""
        with self.lock, transaction(self.connection, self.path):
            yield self.connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What was committed."""
        with self._read_lock, database_errors(self.path):
            yield self._read

    @contextmanager
    def deleting(self) -> Iterator[sqlite3.Connection]:
        """A transaction that leaves nothing of what it deletes in the file nor beside it.

        Pages are overwritten where rows were deleted; the log beside the file would keep
        their earlier content until what was committed is in the file and it is emptied,
        before anybody writes or reads here again.

        Raises:
            UnavailableError: as ``writing``; ``key-lingers``: it is committed, and another
                process that reads the file keeps the log. The next one empties it.
        """
        with self.lock:
            with transaction(self.connection, self.path):
                yield self.connection
            emptied = self._empty_log()
        if not emptied:
            raise UnavailableError(
                f"deleted bytes are still in {self.path}-wal",
                why="another process is reading the vault",
                code="key-lingers",
            )

    def _empty_log(self) -> bool:
        """Put into the file what is in the log.

        Whoever reads elsewhere is waited for while reads here go on; then those here
        wait, for a moment.
        """
        with database_errors(self.path):
            if self._checkpoint(BUSY_TIMEOUT_S):
                return True
            with self._read_lock:
                return self._checkpoint(_MOMENT_S)

    def _checkpoint(self, wait_s: float) -> bool:
        wait_ms = int(wait_s * 1000)
        self.connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
        try:
            query = "PRAGMA wal_checkpoint(TRUNCATE)"
            return not self.connection.execute(query).fetchone()[0]
        finally:
            wait_ms = int(BUSY_TIMEOUT_S * 1000)
            self.connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

    def close(self) -> None:
        """Close both, each once whoever uses it is done: SQLite ends the process else."""
        with self._read_lock:
            self._read.close()
        with self.lock:
            self.connection.close()

    def wrap(self, secret: SecretKey, context: object) -> tuple[bytes, bytes]:
        """A secret as it lies in the file: (fresh salt, ciphertext and tag).

        Args:
            secret: Stays as it is.
            context: A record of the codec that names its use.
        """
        salt = secrets.token_bytes(SALT_BYTES)
        # The salt makes the key fresh, so the nonce may be zero: one use per key.
        sealed = self._aead(salt).seal(
            bytes(NONCE_BYTES), secret.reveal(TOKEN), encode(context)
        )
        return salt, sealed

    def unwrap(self, wrapped: tuple[bytes, bytes], context: object) -> SecretKey:
        """The secret that was wrapped for this context.

        Raises:
            RefusedError: ``vault-locked``, if the identity does not open it.
            IntegrityError: ``vault-damaged``, if it is this identity's vault, and
                something was overwritten.
        """
        salt, sealed = wrapped
        try:
            return SecretKey(
                self._aead(salt).open(bytes(NONCE_BYTES), sealed, encode(context))
            )
        except AuthenticationError:
            raise self._unopened() from None

    def _aead(self, salt: bytes) -> Aead:
        return Aead(Suite.AES_256_GCM, self._identity.derive(Label.VAULT, salt))

    def _unopened(self) -> RefusedError:
        with self.reading() as connection:
            query = "SELECT 1 FROM seen WHERE name = ?"
            owner = (_owned_by(self._identity.public_key),)
            own = connection.execute(query, owner).fetchone() is not None
        if own:
            return IntegrityError(
                f"{self.path} is damaged",
                why=f"it belongs to {self.owner}, and a secret in it was overwritten",
                code="vault-damaged",
            )
        return RefusedError(
            f"{self.path} does not open with the identity {self.owner}",
            code="vault-locked",
        )


def _owned_by(owner: PublicKey) -> str:
    return f"owner/{owner.to_text()}"
