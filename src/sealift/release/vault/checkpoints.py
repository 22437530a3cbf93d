"""Shares of checkpoint keys in an owner's vault: at most two per job, one that counts.

``commit`` deletes the share of the checkpoint before in the same transaction, so there
is no moment at which two of them count, and none at which none does. Files of SQLite are
told to overwrite what is deleted; copies of the vault are not reached by that.
"""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import UnavailableError
from sealift.ids import Digest
from sealift.release.checkpoint import CheckpointMark, CheckpointStatus
from sealift.release.database import (
    database_errors,
    overwrite_deleted,
    transaction,
)
from sealift.release.vault.ledger import is_owned
from sealift.release.vault.wrapping import Wrapped, unwrap, wrap

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS jobs (
    agreement TEXT NOT NULL, job TEXT NOT NULL, instance TEXT NOT NULL,
    finished INTEGER NOT NULL, PRIMARY KEY (agreement, job)) STRICT;
CREATE TABLE IF NOT EXISTS superseded (
    agreement TEXT NOT NULL, job TEXT NOT NULL, instance TEXT NOT NULL,
    PRIMARY KEY (agreement, job, instance)) STRICT;
CREATE TABLE IF NOT EXISTS shares (
    agreement TEXT NOT NULL, job TEXT NOT NULL, state TEXT NOT NULL,
    number INTEGER NOT NULL, sealed TEXT NOT NULL, split TEXT NOT NULL,
    salt BLOB NOT NULL, wrapped BLOB NOT NULL,
    PRIMARY KEY (agreement, job, state)) STRICT
"""
ShareState = Literal["pending", "committed"]


@dataclass(frozen=True, slots=True)
class JobKey:
    """Whose checkpoints."""

    agreement: Digest
    job: str

    @property
    def columns(self) -> tuple[str, str]:
        """As they stand in the tables."""
        return self.agreement.to_text(), self.job


@dataclass(frozen=True, slots=True)
class _ShareContext:
    """What a wrapped share is bound to."""

    owner: str
    agreement: Digest
    job: str
    mark: CheckpointMark


class CheckpointStore:
    """The shares in one vault; ``Vault.checkpoints`` makes it."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        identity: Identity,
        lock: threading.Lock,
    ) -> None:
        self._connection = connection
        self._path = path
        self._identity = identity
        self._lock = lock

    def status(self, key: JobKey) -> CheckpointStatus:
        """What is held for a job."""
        with self._lock, database_errors(self._path):
            marks = {
                state: CheckpointMark(
                    number, Digest.from_text(sealed), tuple(split.split())
                )
                for state, number, sealed, split in self._connection.execute(
                    "SELECT state, number, sealed, split FROM shares "
                    "WHERE agreement = ? AND job = ?",
                    key.columns,
                )
            }
            finished = self._job(key)[1]
        return CheckpointStatus(marks.get("committed"), marks.get("pending"), finished)

    def worker(self, key: JobKey) -> PublicKey | None:
        """The instance that works on a job now."""
        with self._lock, database_errors(self._path):
            instance = self._job(key)[0]
        return PublicKey.from_text(instance) if instance else None

    def was_superseded(self, key: JobKey, instance: PublicKey) -> bool:
        """Whether another instance took this one's job over."""
        with self._lock, database_errors(self._path):
            row = self._connection.execute(
                "SELECT 1 FROM superseded "
                "WHERE agreement = ? AND job = ? AND instance = ?",
                (*key.columns, instance.to_text()),
            ).fetchone()
        return row is not None

    def claim(self, key: JobKey, instance: PublicKey) -> None:
        """Let an instance work on a job; the one before never does again."""
        with self._lock, transaction(self._connection, self._path):
            before, finished = self._job(key)
            if before == instance.to_text():
                return
            if before:
                self._connection.execute(
                    "INSERT OR IGNORE INTO superseded VALUES (?, ?, ?)",
                    (*key.columns, before),
                )
            self._connection.execute(
                "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)",
                (*key.columns, instance.to_text(), int(finished)),
            )

    def deposit(self, key: JobKey, mark: CheckpointMark, share: SecretKey) -> None:
        """Hold a share that does not count yet, in place of any such before it."""
        wrapped = wrap(self._identity, share, self._context(key, mark))
        with self._lock, transaction(self._connection, self._path):
            self._connection.execute(
                "INSERT OR REPLACE INTO shares VALUES (?, ?, 'pending', ?, ?, ?, ?, ?)",
                (
                    *key.columns,
                    mark.number,
                    mark.sealed.to_text(),
                    " ".join(mark.split),
                    wrapped.salt,
                    wrapped.sealed,
                ),
            )

    def commit(self, key: JobKey) -> None:
        """The pending share counts; the one that counted is deleted."""
        with self._lock, transaction(self._connection, self._path):
            self._delete(key, "committed")
            self._connection.execute(
                "UPDATE shares SET state = 'committed' "
                "WHERE agreement = ? AND job = ? AND state = 'pending'",
                key.columns,
            )
            self._set_finished(key, 0)
        self._overwrite_deleted()

    def finish(self, key: JobKey) -> None:
        """Delete every share of a job; the last number is remembered."""
        with self._lock, transaction(self._connection, self._path):
            self._delete(key, "pending")
            self._connection.execute(
                "UPDATE shares SET salt = x'', wrapped = x'' "
                "WHERE agreement = ? AND job = ?",
                key.columns,
            )
            self._set_finished(key, 1)
        self._overwrite_deleted()

    def fetch(self, key: JobKey, mark: CheckpointMark) -> SecretKey:
        """The share of the checkpoint that counts.

        Raises:
            UnavailableError: ``no-share``, if that is another one or the job finished.
            RefusedError: ``vault-locked``, if the identity does not open it.
        """
        with self._lock, database_errors(self._path):
            row = self._connection.execute(
                "SELECT salt, wrapped FROM shares WHERE agreement = ? AND job = ? "
                "AND state = 'committed' AND sealed = ?",
                (*key.columns, mark.sealed.to_text()),
            ).fetchone()
            own = is_owned(self._connection, self._identity.public_key)
        if row is None or not row[1]:
            raise UnavailableError(
                f"the vault holds no share of checkpoint {mark.number} of {key.job}",
                code="no-share",
            )
        context = self._context(key, mark)
        wrapped = Wrapped(row[0], row[1])
        return unwrap(self._identity, wrapped, context, self._path, own=own)

    def _overwrite_deleted(self) -> None:
        with self._lock:
            overwrite_deleted(self._connection, self._path)

    def _context(self, key: JobKey, mark: CheckpointMark) -> _ShareContext:
        return _ShareContext(self._identity.name, key.agreement, key.job, mark)

    def _job(self, key: JobKey) -> tuple[str, bool]:
        row = self._connection.execute(
            "SELECT instance, finished FROM jobs WHERE agreement = ? AND job = ?",
            key.columns,
        ).fetchone()
        return (row[0], bool(row[1])) if row else ("", False)

    def _delete(self, key: JobKey, state: ShareState) -> None:
        self._connection.execute(
            "DELETE FROM shares WHERE agreement = ? AND job = ? AND state = ?",
            (*key.columns, state),
        )

    def _set_finished(self, key: JobKey, finished: int) -> None:
        self._connection.execute(
            "UPDATE jobs SET finished = ? WHERE agreement = ? AND job = ?",
            (finished, *key.columns),
        )
