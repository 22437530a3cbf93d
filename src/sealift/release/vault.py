"""The vault: an owner's data keys, wrapped, in one SQLite file.

Each key is wrapped under a key of its own, derived from the owner's identity and a
fresh salt, so the file is worth nothing without the identity file and its passphrase
(rule C10: the wrapping key is not beside the database; while a broker runs it is in
that process). The vault also remembers which agreement is in force in each line, and
never goes back (rule H7).
Not promised: an older copy of the whole file brings older memory back.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.commitment import key_commitment
from sealift.codec import encode
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.hash import verify_equal
from sealift.crypto.identity import Identity
from sealift.crypto.kdf import Label
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    RefusedError,
    StaleError,
    UnavailableError,
    UsageError,
)
from sealift.ids import Digest, check_name
from sealift.release.database import (
    create_database,
    database_errors,
    open_database,
    transaction,
)
from sealift.release.signed import VerifiedAgreement

APPLICATION_ID: Final = 0x5EA11062
SALT_BYTES: Final = 32
_SCHEMA: Final = """
CREATE TABLE keys (resource TEXT PRIMARY KEY, commitment TEXT NOT NULL,
                   salt BLOB NOT NULL, wrapped BLOB NOT NULL) STRICT;
CREATE TABLE agreements (line TEXT PRIMARY KEY, number INTEGER NOT NULL,
                         digest TEXT NOT NULL) STRICT
"""


@dataclass(frozen=True, slots=True)
class _KeyContext:
    """What a wrapped key is bound to."""

    owner: str
    resource: str
    commitment: Digest


class Vault:
    """One owner's keys. Made by ``Vault.create`` and ``Vault.open``."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, identity: Identity
    ) -> None:
        self._connection = connection
        self._path = path
        self._identity = identity
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, identity: Identity) -> Vault:
        """An empty vault; raises UsageError if the file exists."""
        return cls(create_database(path, _SCHEMA, APPLICATION_ID), path, identity)

    @classmethod
    def open(cls, path: Path, identity: Identity) -> Vault:
        """An existing vault; raises MalformedError if it is none."""
        return cls(open_database(path, APPLICATION_ID), path, identity)

    def store(self, resource: str, data_key: SecretKey) -> Digest:
        """Keep a data key; returns its commitment for the agreement (rule C9).

        Raises:
            UsageError: ``key-exists``: a data key is never replaced.
            UnavailableError: if it cannot be written; the vault is as before.
        """
        check_name(resource, what="resource name")
        commitment = key_commitment(data_key, resource)
        context = _KeyContext(self._identity.name, resource, commitment)
        salt = secrets.token_bytes(SALT_BYTES)
        wrapped = self._wrap(salt, data_key, context)
        with self._lock, transaction(self._connection, self._path):
            if self._row(resource):
                raise UsageError(
                    f"the vault holds a key for {resource} already",
                    fix="Seal under another name; keys are never overwritten",
                    code="key-exists",
                )
            self._connection.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?)",
                (resource, commitment.to_text(), salt, wrapped),
            )
        return commitment

    def fetch(self, resource: str) -> SecretKey:
        """The data key of a resource, checked against its own commitment.

        Raises:
            UnavailableError: ``no-key``, if the vault does not hold it.
            RefusedError: ``vault-locked``, if the identity does not open it.
        """
        with self._lock, database_errors(self._path):
            row = self._row(resource)
        if row is None:
            raise UnavailableError(
                f"the vault holds no key for {resource}",
                fix="Seal the resource with this vault, or restore the vault",
                code="no-key",
            )
        commitment = Digest.from_text(row[0])
        context = _KeyContext(self._identity.name, resource, commitment)
        data_key = self._unwrap(row[1], row[2], context)
        _require_commitment(data_key, resource, commitment)
        return data_key

    def resources(self) -> dict[str, Digest]:
        """Names and key commitments of everything held."""
        with self._lock, database_errors(self._path):
            query = "SELECT resource, commitment FROM keys ORDER BY 1"
            rows = self._connection.execute(query).fetchall()
        return {name: Digest.from_text(text) for name, text in rows}

    def activate(self, verified: VerifiedAgreement) -> None:
        """Bring an agreement into force, if it is not already.

        Raises:
            StaleError: ``agreement-superseded`` for an older one, ``agreement-line``
                for one that does not follow the one in force.
        """
        agreement = verified.agreement
        with self._lock, transaction(self._connection, self._path):
            row = self._connection.execute(
                "SELECT number, digest FROM agreements WHERE line = ?",
                (agreement.name,),
            ).fetchone()
            if row == (agreement.number, verified.digest.to_text()):
                return
            _require_successor(verified, row)
            self._connection.execute(
                "INSERT OR REPLACE INTO agreements VALUES (?, ?, ?)",
                (agreement.name, agreement.number, verified.digest.to_text()),
            )

    def in_force(self, line: str) -> Digest | None:
        """Digest of the agreement in force in a line."""
        with self._lock, database_errors(self._path):
            row = self._connection.execute(
                "SELECT digest FROM agreements WHERE line = ?", (line,)
            ).fetchone()
        return Digest.from_text(row[0]) if row else None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _row(self, resource: str) -> tuple[str, bytes, bytes] | None:
        query = "SELECT commitment, salt, wrapped FROM keys WHERE resource = ?"
        row: tuple[str, bytes, bytes] | None
        row = self._connection.execute(query, (resource,)).fetchone()
        return row

    def _wrap(self, salt: bytes, data_key: SecretKey, context: _KeyContext) -> bytes:
        # The salt makes the key fresh, so the nonce may be zero: one use per key.
        aead = Aead(Suite.AES_256_GCM, self._identity.derive(Label.VAULT, salt))
        return aead.seal(bytes(NONCE_BYTES), data_key.reveal(TOKEN), encode(context))

    def _unwrap(self, salt: bytes, wrapped: bytes, context: _KeyContext) -> SecretKey:
        aead = Aead(Suite.AES_256_GCM, self._identity.derive(Label.VAULT, salt))
        try:
            return SecretKey(aead.open(bytes(NONCE_BYTES), wrapped, encode(context)))
        except AuthenticationError:
            raise RefusedError(
                f"{self._path} does not open with the identity {context.owner}",
                fix="Use the identity that the vault was made with",
                code="vault-locked",
            ) from None


def _require_commitment(data_key: SecretKey, resource: str, expected: Digest) -> None:
    try:
        verify_equal(key_commitment(data_key, resource).raw, expected.raw)
    except AuthenticationError:
        raise IntegrityError(
            f"the key of {resource} is not the one committed to", code="other-key"
        ) from None


def _require_successor(
    verified: VerifiedAgreement, row: tuple[int, str] | None
) -> None:
    """The first agreement may have any number: an owner can join a running line."""
    after = verified.agreement
    if row is None:
        return
    number, digest = row
    if after.number <= number:
        raise StaleError(
            "another agreement is in force",
            why=f"this owner's keys are under number {number} of {after.name}, "
            f"and this one is number {after.number}",
            fix=f"Use that one, sign number {number + 1} with it as predecessor, or give "
            "a new undertaking another name",
            code="agreement-superseded",
        )
    before = after.predecessor.to_text() if after.predecessor else ""
    if (after.number, before) != (number + 1, digest):
        raise StaleError(
            "the agreement does not follow the one before",
            why=f"number {number} of {after.name} is in force here",
            fix="Name the digest of the agreement in force as predecessor",
            code="agreement-line",
        )
