"""The audit log on disk: entries and signed heads in one SQLite file.

``append`` returns only when entry and head are on the disk, so a caller that appends
before it lets a key go has the entry whatever happens next (rule H6). Entries that come
while the disk is busy are written together, under one head. Opening for
writing checks the file against its own last head. Whoever owns the log can still write
another one from the start: only a head kept elsewhere shows that (``release/log/heads.py``).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sealift.codec import encode
from sealift.crypto.merkle import leaf_hash
from sealift.crypto.sign import Signer
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.database import (
    create_database,
    open_database,
    transaction,
)
from sealift.release.groupcommit import GroupCommit
from sealift.release.log.entries import (
    Entry,
    Inclusion,
    SignedTreeHead,
    TreeHead,
    sign_head,
    verify_head,
)
from sealift.release.log.logfile import (
    APPLICATION_ID,
    SCHEMA,
    last_head,
    require_last_head,
    rolled_back,
    stored_entries,
)
from sealift.release.log.tree import LogTree

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry as it stands in the log, and the head that covers it."""

    entry: bytes
    inclusion: Inclusion
    head: SignedTreeHead


class AuditLog:
    """One owner's log, open for appending by one process.

    Made by ``AuditLog.create`` and ``AuditLog.open``.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        signer: Signer,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._path = path
        self._signer = signer
        self._clock = clock
        self._lock = threading.Lock()
        self._tree = LogTree(
            leaf_hash(entry) for entry in stored_entries(connection, path)
        )
        self._appending = GroupCommit(self._append)

    @classmethod
    def create(cls, path: Path, signer: Signer, clock: Clock) -> AuditLog:
        """An empty log.

        Args:
            path: The file.
            signer: The owner.
            clock: Gives seconds since 1970.

        Raises:
            UsageError: if the file exists.
            UnavailableError: if it cannot be written.
        """

        def fill(connection: sqlite3.Connection) -> None:
            log = cls(connection, path, signer, clock)
            log._store_head(log._sign(0, log._tree.root()))

        connection = create_database(path, SCHEMA, APPLICATION_ID, fill)
        return cls(connection, path, signer, clock)

    @classmethod
    def open(cls, path: Path, signer: Signer, clock: Clock) -> AuditLog:
        """An existing log.

        Raises:
            IntegrityError: ``log-damaged``, if it does not fit its own last head;
                ``head-unsigned``, if its owner did not sign that head.
            PolicyError: ``other-log``, if another key signs it.
        """
        connection = open_database(path, APPLICATION_ID)
        try:
            log = cls(connection, path, signer, clock)
            last = log.head()
            if last.log != signer.public_key:
                raise PolicyError(f"{path} is another owner's log", code="other-log")
            # Else the next head would sign whatever somebody wrote into the file.
            verify_head(last)
            require_last_head(log._tree, last, path)
        except BaseException:
            connection.close()
            raise
        return log

    def append(self, entry: Entry) -> Appended:
        """Write and sync an entry and the head that covers it.

        Raises:
            UnavailableError: ``disk-full`` and others; the log is as before.
        """
        return self._appending.run(encode(entry))

    def entries(self) -> Iterator[bytes]:
        """Canonical bytes of every entry, in order."""
        with self._lock:
            return stored_entries(self._connection, self._path)

    def head(self) -> SignedTreeHead:
        """The latest signed head that is on the disk."""
        # Under the lock: an append under way shows its head on this connection.
        with self._lock:
            return last_head(self._connection, self._path)

    def consistency(self, first: int, second: int) -> tuple[bytes, ...]:
        """Proof that the first ``first`` entries are a prefix of the first ``second``.

        Raises:
            IntegrityError: ``log-rolled-back``, if the log has not that many entries.
            MalformedError: if the two sizes are in the wrong order.
        """
        with self._lock:
            if second > len(self._tree):
                raise rolled_back(len(self._tree), second)
            if not 0 <= first <= second:
                raise MalformedError("sizes of a log go from small to large")
            return self._tree.consistency_proof(first, second) if first else ()

    def close(self) -> None:
        """Close the file, once whoever writes or reads it is done."""
        with self._lock:
            self._connection.close()

    def _append(self, raws: Sequence[bytes]) -> list[Appended]:
        """Entries that came together lie under one head."""
        with self._lock:
            before = len(self._tree)
            for raw in raws:
                self._tree.append(leaf_hash(raw))
            try:
                head = self._sign(len(self._tree), self._tree.root())
                self._store(before, raws, head)
            except BaseException:
                self._tree.truncate(before)
                raise
            return [
                Appended(raw, self._inclusion(before + i), head)
                for i, raw in enumerate(raws)
            ]

    def _inclusion(self, index: int) -> Inclusion:
        return Inclusion(index, self._tree.inclusion_proof(index, len(self._tree)))

    def _store(self, before: int, raws: Sequence[bytes], head: SignedTreeHead) -> None:
        with transaction(self._connection, self._path):
            self._connection.executemany(
                "INSERT INTO entries VALUES (?, ?)", enumerate(raws, before)
            )
            self._store_head(head)

    def _sign(self, size: int, root: bytes) -> SignedTreeHead:
        key = self._signer.public_key
        head = TreeHead(key, size, Digest(root), int(self._clock()))
        return sign_head(head, self._signer)

    def _store_head(self, head: SignedTreeHead) -> None:
        self._connection.execute(
            "INSERT INTO heads VALUES (?, ?)", (head.size, encode(head))
        )
