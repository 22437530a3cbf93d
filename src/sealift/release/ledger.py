"""What a broker must never forget, beside keys and log: uses, revocations, numbers seen.

A small protocol, so that the decisions around it can be tested without a disk; what
brokers use is ``SqliteLedger``, in the vault's file. Every change is on the disk before
the call returns, so a use is debited before its key leaves (rule H6), and a revoked
instance stays revoked over restarts. An older copy of the file brings older memory
back: the audit log, and the heads that others kept, show that it happened.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Final, Protocol

from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError
from sealift.release.database import database_errors, transaction

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS uses (
    line TEXT NOT NULL, resource TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (line, resource)) STRICT;
CREATE TABLE IF NOT EXISTS revocations (
    epoch INTEGER PRIMARY KEY, instance TEXT NOT NULL UNIQUE, rule TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS seen (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT
"""


class Ledger(Protocol):
    """What is remembered, and how it may change."""

    def debit(self, line: str, resource: str, limit: int, count: int = 1) -> int:
        """Count more uses of a resource's key; the number of the last, from 1.

        Args:
            line: Name of the line of agreements; successors go on counting.
            resource: Its name.
            limit: Most uses; 0 for any number.
            count: How many more.

        Raises:
            PolicyError: ``uses-exhausted``; nothing was counted.
        """
        ...

    def uses(self, line: str, resource: str) -> int:
        """How often it was counted."""
        ...

    def revoke(self, instance: PublicKey, rule: str) -> int:
        """An instance gets nothing any more; the key epoch that begins with it.

        Revoking it again changes nothing.
        """
        ...

    def revoked(self, instance: PublicKey) -> str:
        """The rule that an instance was revoked for; empty if it was not."""
        ...

    def epoch(self) -> int:
        """The key epoch: how many instances were revoked."""
        ...

    def remember(self, name: str, number: int) -> None:
        """A numbered thing was used; the number remembered never falls."""
        ...

    def remembered(self, name: str) -> int:
        """The highest number remembered, or 0."""
        ...


class SqliteLedger:
    """The ledger in one vault; ``Vault.ledger`` makes it."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, lock: threading.Lock
    ) -> None:
        self._connection = connection
        self._path = path
        self._lock = lock

    def debit(self, line: str, resource: str, limit: int, count: int = 1) -> int:
        """See ``Ledger``."""
        with self._lock, transaction(self._connection, self._path):
            last = self._count(line, resource) + count
            require_use(last, limit, resource)
            self._connection.execute(
                "INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", (line, resource, last)
            )
        return last

    def uses(self, line: str, resource: str) -> int:
        """See ``Ledger``."""
        with self._lock, database_errors(self._path):
            return self._count(line, resource)

    def revoke(self, instance: PublicKey, rule: str) -> int:
        """See ``Ledger``."""
        with self._lock, transaction(self._connection, self._path):
            self._connection.execute(
                "INSERT INTO revocations (instance, rule) VALUES (?, ?) "
                "ON CONFLICT (instance) DO NOTHING",
                (instance.to_text(), rule),
            )
            return self._epoch()

    def revoked(self, instance: PublicKey) -> str:
        """See ``Ledger``."""
        query = "SELECT rule FROM revocations WHERE instance = ?"
        with self._lock, database_errors(self._path):
            row = self._connection.execute(query, (instance.to_text(),)).fetchone()
        return str(row[0]) if row else ""

    def epoch(self) -> int:
        """See ``Ledger``."""
        with self._lock, database_errors(self._path):
            return self._epoch()

    def remember(self, name: str, number: int) -> None:
        """See ``Ledger``."""
        with self._lock, transaction(self._connection, self._path):
            self._connection.execute(
                "INSERT INTO seen VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
                "SET number = max(number, excluded.number)",
                (name, number),
            )

    def remembered(self, name: str) -> int:
        """See ``Ledger``."""
        query = "SELECT number FROM seen WHERE name = ?"
        with self._lock, database_errors(self._path):
            row = self._connection.execute(query, (name,)).fetchone()
        return int(row[0]) if row else 0

    def _count(self, line: str, resource: str) -> int:
        row = self._connection.execute(
            "SELECT count FROM uses WHERE line = ? AND resource = ?", (line, resource)
        ).fetchone()
        return int(row[0]) if row else 0

    def _epoch(self) -> int:
        query = "SELECT count(*) FROM revocations"
        return int(self._connection.execute(query).fetchone()[0])


def require_use(count: int, limit: int, resource: str) -> None:
    """Refuse a use beyond the limit; raises ``uses-exhausted``."""
    if limit and count > limit:
        raise PolicyError(
            f"the key of {resource} was released {limit} times, as often as it may be",
            why="its owner's rule counts every release, those of resumed jobs too",
            fix="Its owner may sign a successor that allows more",
            code="uses-exhausted",
        )
