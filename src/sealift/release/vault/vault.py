"""The vault: an owner's data keys, wrapped, in one SQLite file.

``release/vault/file.py`` wraps them. The vault also records which agreement is in force
in each line, and never returns to an earlier one (rule H7).
Not promised: an older copy of the whole file has the older records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.record.commitment import key_commitment
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, StaleError, UnavailableError, UsageError
from sealift.ids import Digest, check_name
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.database import (
    create_database,
    database_errors,
    open_database,
    transaction,
)
from sealift.release.vault.checkpoints import SCHEMA as CHECKPOINT_SCHEMA
from sealift.release.vault.checkpoints import CheckpointStore
from sealift.release.vault.file import APPLICATION_ID, VaultFile, mark_owner
from sealift.release.vault.ledger import SCHEMA as LEDGER_SCHEMA
from sealift.release.vault.ledger import Ledger

_SCHEMA: Final = """
CREATE TABLE keys (resource TEXT PRIMARY KEY, commitment TEXT NOT NULL,
                   salt BLOB NOT NULL, wrapped BLOB NOT NULL) STRICT;
CREATE TABLE agreements (line TEXT PRIMARY KEY, number INTEGER NOT NULL,
                         digest TEXT NOT NULL) STRICT
"""
# Of the file's form. 0: keys and agreements; 2: shares of checkpoints besides;
# 3: uses, revocations and numbers seen besides; 4: which instance has which keys;
# 5: rounds of private steps.
FORM: Final = 5
FORM_WITH_LEDGER: Final = 3
_ADDED: Final = f"{CHECKPOINT_SCHEMA}; {LEDGER_SCHEMA}; PRAGMA user_version = {FORM}"


@dataclass(frozen=True, slots=True)
class _KeyContext:
    """What a wrapped key is bound to."""

    owner: str
    resource: str
    commitment: Digest


class Vault:
    """One owner's keys. Made by ``Vault.create`` and ``Vault.open``.

    Attributes:
        ledger: What it remembers of releases and of those that got them.
        checkpoints: Its shares of checkpoint keys.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._file = VaultFile(path, identity)
        self.ledger = Ledger(self._file)
        self.checkpoints = CheckpointStore(self._file)

    @classmethod
    def create(cls, path: Path, identity: Identity) -> Vault:
        """An empty vault; raises UsageError if the file exists."""
        schema = f"{_SCHEMA}; {_ADDED}"

        def fill(connection: sqlite3.Connection) -> None:
            mark_owner(connection, identity.public_key)

        create_database(path, schema, APPLICATION_ID, fill).close()
        return cls(path, identity)

    @classmethod
    def open(cls, path: Path, identity: Identity) -> Vault:
        """An existing vault; one of an earlier form gets what is missing.

        Raises:
            MalformedError: if it is none, or ``vault-version``: of a later form.
        """
        bring_up(path)
        return cls(path, identity)

    def store(self, resource: str, data_key: SecretKey) -> Digest:
        """Keep a data key; returns its commitment for the agreement (rule C9).

        Raises:
            UsageError: ``key-exists``: a data key is never replaced.
            UnavailableError: if it cannot be written; the vault is as before.
        """
        return self.store_all({resource: data_key})[resource]

    def store_all(self, data_keys: Mapping[str, SecretKey]) -> dict[str, Digest]:
        """Keep several data keys in one step: all of them are in the file, or none.

        Args:
            data_keys: By resource.

        Raises:
            UsageError, UnavailableError: as ``store``, for any of them.
        """
        rows = [self._wrapped(name, key) for name, key in data_keys.items()]
        with self._file.writing() as connection:
            for resource in data_keys:
                if _row(connection, resource):
                    raise UsageError(
                        f"the vault already has a key for {resource}", code="key-exists"
                    )
            connection.executemany("INSERT INTO keys VALUES (?, ?, ?, ?)", rows)
        return {row[0]: Digest.from_text(row[1]) for row in rows}

    def _wrapped(self, resource: str, key: SecretKey) -> tuple[str, str, bytes, bytes]:
        check_name(resource, what="resource name")
        commitment = key_commitment(key, resource)
        context = _KeyContext(self._file.owner, resource, commitment)
        return resource, commitment.to_text(), *self._file.wrap(key, context)

    def fetch(self, resource: str) -> SecretKey:
        """The data key of a resource; what wraps it binds its name and commitment.

        Raises:
            UnavailableError: ``no-key``, if the vault does not hold it.
            RefusedError: ``vault-locked``, if the identity does not open it.
            IntegrityError: ``vault-damaged``, if it is this identity's and does not open.
        """
        with self._file.reading() as connection:
            row = _row(connection, resource)
        if row is None:
            raise _no_key(resource)
        commitment = Digest.from_text(row[0])
        context = _KeyContext(self._file.owner, resource, commitment)
        return self._file.unwrap(row[1:], context)

    def destroy(self, resource: str) -> None:
        """Delete a data key and overwrite where it stood; copies elsewhere remain.

        Raises:
            UnavailableError: ``no-key``, or if it cannot be written; ``key-lingers``: it
                is deleted, and what is to be overwritten is read by somebody.
        """
        with self._file.deleting() as connection:  # empties what lingers, too
            query = "DELETE FROM keys WHERE resource = ?"
            deleted = connection.execute(query, (resource,)).rowcount
        if not deleted:
            raise _no_key(resource)

    def resources(self) -> dict[str, Digest]:
        """Names and key commitments of everything held."""
        with self._file.reading() as connection:
            query = "SELECT resource, commitment FROM keys ORDER BY 1"
            rows = connection.execute(query).fetchall()
        return {name: Digest.from_text(text) for name, text in rows}

    def activate(self, verified: VerifiedAgreement) -> None:
        """Bring an agreement into force, if it is not already.

        Raises:
            StaleError: ``agreement-superseded`` for an older one, ``agreement-line``
                for one that does not follow the one in force.
        """
        agreement = verified.agreement
        with self._file.writing() as connection:
            row = connection.execute(
                "SELECT number, digest FROM agreements WHERE line = ?",
                (agreement.name,),
            ).fetchone()
            if row == (agreement.number, verified.digest.to_text()):
                return
            _require_successor(verified, row)
            connection.execute(
                "INSERT OR REPLACE INTO agreements VALUES (?, ?, ?)",
                (agreement.name, agreement.number, verified.digest.to_text()),
            )

    def in_force(self, line: str) -> Digest | None:
        """Digest of the agreement in force in a line."""
        with self._file.reading() as connection:
            row = connection.execute(
                "SELECT digest FROM agreements WHERE line = ?", (line,)
            ).fetchone()
        return Digest.from_text(row[0]) if row else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _row(
    connection: sqlite3.Connection, resource: str
) -> tuple[str, bytes, bytes] | None:
    query = "SELECT commitment, salt, wrapped FROM keys WHERE resource = ?"
    row: tuple[str, bytes, bytes] | None
    row = connection.execute(query, (resource,)).fetchone()
    return row


def _no_key(resource: str) -> UnavailableError:
    return UnavailableError(f"the vault has no key for {resource}", code="no-key")


def bring_up(path: Path) -> None:
    """Give a vault of an earlier form what is missing.

    Raises:
        MalformedError: if it is none, or ``vault-version``: of a later form.
    """
    with closing(open_database(path, APPLICATION_ID)) as connection:
        if require_known_form(connection, path) < FORM:
            with transaction(connection, path):
                for statement in _ADDED.split(";"):
                    connection.execute(statement)


def require_known_form(connection: sqlite3.Connection, path: Path) -> int:
    """The form of a vault's file; raises ``vault-version`` for a later one."""
    with database_errors(path):
        form = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if form > FORM:
        raise MalformedError(
            f"a later version of Sealift wrote {path}",
            why=f"its format is {form}, and this version supports up to {FORM}",
            code="vault-version",
        )
    return form


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
            "another agreement is in force in the vault",
            why=f"number {number} of {after.name} is in force, and this one is number {after.number}",
            fix=f"Use number {number}, sign number {number + 1} with it as "
            "predecessor, or choose another name for a new line of agreements",
            code="agreement-superseded",
        )
    # An owner may have let agreements pass that it did not sign: the line shows them.
    past = [before.to_text() for before in verified.backing.past]
    if digest not in past[number - 1 : number]:
        raise StaleError(
            "the agreement does not follow its predecessor",
            why=f"number {number} of {after.name} is in force here",
            code="agreement-line",
        )
