"""Shares of checkpoint keys in an owner's vault: at most two per job, one of them valid.

``commit`` deletes the share of the checkpoint before in the same transaction, so exactly
one is valid at any time. Deleted bytes are overwritten in the file and in the log beside
it, but not in copies of the vault.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final, Literal

from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import UnavailableError
from sealift.ids import Digest
from sealift.release.checkpoint import CheckpointMark, CheckpointStatus
from sealift.release.vault.file import VaultFile

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

    def __init__(self, file: VaultFile) -> None:
        self._file = file

    def status(self, key: JobKey) -> CheckpointStatus:
        """What is held for a job."""
        with self._file.reading() as connection:
            marks = {
                state: CheckpointMark(
                    number, Digest.from_text(sealed), tuple(split.split())
                )
                for state, number, sealed, split in connection.execute(
                    "SELECT state, number, sealed, split FROM shares WHERE agreement = ? AND job = ?",
                    key.columns,
                )
            }
            finished = _job(connection, key)[1]
        return CheckpointStatus(marks.get("committed"), marks.get("pending"), finished)

    def worker(self, key: JobKey) -> PublicKey | None:
        """The instance that works on a job now."""
        with self._file.reading() as connection:
            instance = _job(connection, key)[0]
        return PublicKey.from_text(instance) if instance else None

    def was_superseded(self, key: JobKey, instance: PublicKey) -> bool:
        """Whether another instance took this one's job over."""
        with self._file.reading() as connection:
            row = connection.execute(
                "SELECT 1 FROM superseded WHERE agreement = ? AND job = ? AND instance = ?",
                (*key.columns, instance.to_text()),
            ).fetchone()
        return row is not None

    def claim(self, key: JobKey, instance: PublicKey) -> None:
        """Let an instance work on a job; the one before never does again."""
        with self._file.writing() as connection:
            before, finished = _job(connection, key)
            if before == instance.to_text():
                return
            if before:
                connection.execute(
                    "INSERT OR IGNORE INTO superseded VALUES (?, ?, ?)",
                    (*key.columns, before),
                )
            connection.execute(
                "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)",
                (*key.columns, instance.to_text(), int(finished)),
            )

    def deposit(self, key: JobKey, mark: CheckpointMark, share: SecretKey) -> None:
        """Hold a share that does not count yet, in place of any such before it."""
        wrapped = self._file.wrap(share, self._context(key, mark))
        with self._file.writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO shares VALUES (?, ?, 'pending', ?, ?, ?, ?, ?)",
                (
                    *key.columns,
                    mark.number,
                    mark.sealed.to_text(),
                    " ".join(mark.split),
                    *wrapped,
                ),
            )

    def commit(self, key: JobKey) -> None:
        """The pending share counts; the one that counted is deleted.

        Raises:
            UnavailableError: ``key-lingers``: done, and what was deleted is still there.
        """
        with self._file.deleting() as connection:
            _delete(connection, key, "committed")
            connection.execute(
                "UPDATE shares SET state = 'committed' WHERE agreement = ? AND job = ? AND state = 'pending'",
                key.columns,
            )
            _set_finished(connection, key, 0)

    def overwrite(self) -> None:
        """Overwrite what lingered; raises ``key-lingers`` while it still does."""
        with self._file.deleting():
            pass

    def finish(self, key: JobKey) -> None:
        """Delete every share of a job, and raise like ``commit``; numbers are kept."""
        with self._file.deleting() as connection:
            _delete(connection, key, "pending")
            connection.execute(
                "UPDATE shares SET salt = x'', wrapped = x'' WHERE agreement = ? AND job = ?",
                key.columns,
            )
            _set_finished(connection, key, 1)

    def fetch(self, key: JobKey, mark: CheckpointMark) -> SecretKey:
        """The share of the checkpoint that counts.

        Raises:
            UnavailableError: ``no-share``, if that is another one or the job finished.
            RefusedError: ``vault-locked``, if the identity does not open it.
        """
        with self._file.reading() as connection:
            row = connection.execute(
                "SELECT salt, wrapped FROM shares WHERE agreement = ? AND job = ? "
                "AND state = 'committed' AND sealed = ?",
                (*key.columns, mark.sealed.to_text()),
            ).fetchone()
        if row is None or not row[1]:
            raise UnavailableError(
                f"the vault has no share of checkpoint {mark.number} of {key.job}",
                code="no-share",
            )
        return self._file.unwrap(row, self._context(key, mark))

    def _context(self, key: JobKey, mark: CheckpointMark) -> _ShareContext:
        return _ShareContext(self._file.owner, key.agreement, key.job, mark)


def _job(connection: sqlite3.Connection, key: JobKey) -> tuple[str, bool]:
    row = connection.execute(
        "SELECT instance, finished FROM jobs WHERE agreement = ? AND job = ?",
        key.columns,
    ).fetchone()
    return (row[0], bool(row[1])) if row else ("", False)


def _delete(connection: sqlite3.Connection, key: JobKey, state: ShareState) -> None:
    connection.execute(
        "DELETE FROM shares WHERE agreement = ? AND job = ? AND state = ?",
        (*key.columns, state),
    )


def _set_finished(connection: sqlite3.Connection, key: JobKey, finished: int) -> None:
    connection.execute(
        "UPDATE jobs SET finished = ? WHERE agreement = ? AND job = ?",
        (finished, *key.columns),
    )
