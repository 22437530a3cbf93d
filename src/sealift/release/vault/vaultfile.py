"""A vault's file as its owner's broker uses it: one writes, and others read meanwhile.

A write holds its connection until the disk has it. Whoever only reads has a connection
of its own, and sees what was committed: it need not wait for somebody else's sync.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sealift.release.database import (
    database_errors,
    open_database,
    transaction,
)


class VaultFile:
    """Two connections to one file, each for one thread at a time.

    Args:
        connection: Writes; owned from here on.
        path: The file.
        application_id: Its kind.

    Attributes:
        connection: The one that writes, for whoever holds ``lock``.
        lock: For that connection.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, application_id: int
    ) -> None:
        self.path = path
        self.connection = connection
        self.lock = threading.Lock()
        self._read = open_database(path, application_id)
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

    def close(self) -> None:
        """Close both, each once whoever uses it is done: SQLite ends the process else."""
        with self._read_lock:
            self._read.close()
        with self.lock:
            self.connection.close()
