"""The audit log on disk: entries and signed heads in one SQLite file.

``append`` returns only when entry and head are on the disk, so a caller that appends
before it lets a key go has the entry whatever happens next (rule H6). Opening for
writing checks the file against its own last head. Whoever owns the log can still write
another one from the start: only a head kept elsewhere shows that (``release/heads.py``).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.merkle import leaf_hash
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import IntegrityError, MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.audit import (
    Inclusion,
    LogEntry,
    SignedTreeHead,
    TreeHead,
    sign_head,
    verify_growth,
    verify_head,
)
from sealift.release.database import (
    create_database,
    database_errors,
    open_database,
    transaction,
)
from sealift.release.tree import LogTree

APPLICATION_ID: Final = 0x5EA11061
Clock = Callable[[], float]
_SCHEMA: Final = """
CREATE TABLE entries (position INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
CREATE TABLE heads (size INTEGER PRIMARY KEY, head BLOB NOT NULL) STRICT
"""


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
        self, connection: sqlite3.Connection, path: Path, signer: Signer, clock: Clock
    ) -> None:
        self._connection = connection
        self._path = path
        self._signer = signer
        self._clock = clock
        self._lock = threading.Lock()
        self._tree = LogTree(leaf_hash(entry) for entry in _entries(connection, path))

    @classmethod
    def create(cls, path: Path, signer: Signer, clock: Clock) -> AuditLog:
        """An empty log; ``clock`` gives seconds since 1970.

        Raises:
            UsageError: if the file exists.
            UnavailableError: if it cannot be written.
        """

        def fill(connection: sqlite3.Connection) -> None:
            log = cls(connection, path, signer, clock)
            log._store_head(log._sign(0, log._tree.root()))

        connection = create_database(path, _SCHEMA, APPLICATION_ID, fill)
        return cls(connection, path, signer, clock)

    @classmethod
    def open(cls, path: Path, signer: Signer, clock: Clock) -> AuditLog:
        """An existing log.

        Raises:
            IntegrityError: ``log-damaged``, if it does not fit its own last head.
            PolicyError: ``other-log``, if another key signs it.
        """
        log = cls(open_database(path, APPLICATION_ID), path, signer, clock)
        _require_last_head(log._tree, log.head(), path)
        if log.head().log != signer.public_key:
            raise PolicyError(f"{path} is another owner's log", code="other-log")
        return log

    def append(self, entry: LogEntry) -> Appended:
        """Write and sync an entry and the head that covers it.

        Raises:
            UnavailableError: ``disk-full`` and others; the log is as before.
        """
        raw = encode(entry)
        with self._lock:
            index = len(self._tree)
            head = self._sign(index + 1, self._tree.root_with(leaf_hash(raw)))
            with transaction(self._connection, self._path):
                self._connection.execute(
                    "INSERT INTO entries VALUES (?, ?)", (index, raw)
                )
                self._store_head(head)
            self._tree.append(leaf_hash(raw))
            path = self._tree.inclusion_proof(index, index + 1)
        return Appended(raw, Inclusion(index, path), head)

    def head(self) -> SignedTreeHead:
        """The latest signed head."""
        return _last_head(self._connection, self._path)

    def consistency(self, first: int, second: int) -> tuple[bytes, ...]:
        """Proof that the first ``first`` entries are a prefix of the first ``second``.

        Raises:
            IntegrityError: ``log-rolled-back``, if the log has not that many entries.
            MalformedError: if the two sizes are in the wrong order.
        """
        with self._lock:
            if second > len(self._tree):
                raise _rolled_back(len(self._tree), second)
            if not 0 <= first <= second:
                raise MalformedError("sizes of a log go from small to large")
            return self._tree.consistency_proof(first, second) if first else ()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _sign(self, size: int, root: bytes) -> SignedTreeHead:
        key = self._signer.public_key
        head = TreeHead(key, size, Digest(root), int(self._clock()))
        return sign_head(head, self._signer)

    def _store_head(self, head: SignedTreeHead) -> None:
        self._connection.execute(
            "INSERT INTO heads VALUES (?, ?)", (head.size, encode(head))
        )


@dataclass(frozen=True, slots=True)
class LogReport:
    """What ``verify_log`` found.

    Attributes:
        owner: The key that signs the log.
        size: Entries.
        releases: Entries that are releases.
        refusals: Entries that are refusals.
        root: Root over all entries.
        continues: Size of the outside head that it continues; None without one.
    """

    owner: PublicKey
    size: int
    releases: int
    refusals: int
    root: Digest
    continues: int | None

    @property
    def statement(self) -> str:
        """What this proves, in words."""
        if self.continues is None:
            return "self-consistent only: no head from outside was compared"
        return f"continues the head of {self.continues} entries that you kept"


def read_entries(path: Path) -> Iterator[LogEntry]:
    """Every entry, in order, without checking any signature."""
    connection = open_database(path, APPLICATION_ID, read_only=True)
    try:
        for raw in _entries(connection, path):
            yield decode(LogEntry, raw)
    finally:
        connection.close()


def read_head(path: Path) -> SignedTreeHead:
    """The latest head that a log file claims; nothing is verified."""
    connection = open_database(path, APPLICATION_ID, read_only=True)
    try:
        return _last_head(connection, path)
    finally:
        connection.close()


def verify_log(path: Path, outside: SignedTreeHead | None = None) -> LogReport:
    """Check a log file: every entry parses, every signed head fits.

    Args:
        path: The log file.
        outside: A head of this log that was kept elsewhere; without one the owner's
            own word is all there is (rule H6).

    Raises:
        IntegrityError: if a head is unsigned or does not fit, or ``outside`` is not a
            head of this log.
    """
    connection = open_database(path, APPLICATION_ID, read_only=True)
    try:
        raws = list(_entries(connection, path))
        heads = list(_heads(connection, path))
    finally:
        connection.close()
    kinds = [decode(LogEntry, raw).kind for raw in raws]
    tree = LogTree(leaf_hash(raw) for raw in raws)
    last = _verify_heads(tree, heads, path)
    if outside is not None:
        _require_continuation(tree, last, outside)
    return LogReport(
        owner=last.log,
        size=len(tree),
        releases=kinds.count("release"),
        refusals=kinds.count("refusal"),
        root=last.root,
        continues=outside.size if outside else None,
    )


def _verify_heads(
    tree: LogTree, heads: list[SignedTreeHead], path: Path
) -> SignedTreeHead:
    if not heads:
        raise _damaged(path, "it has no head")
    for signed in heads:
        verify_head(signed)
        if signed.log != heads[-1].log:
            raise _damaged(path, "two keys sign it")
        _require_root(tree, signed.head, path)
    _require_last_head(tree, heads[-1], path)
    return heads[-1]


def _require_continuation(
    tree: LogTree, last: SignedTreeHead, outside: SignedTreeHead
) -> None:
    kept = verify_head(outside)
    if kept.size > len(tree):
        raise _rolled_back(len(tree), kept.size)
    proof = tree.consistency_proof(kept.size, len(tree)) if kept.size else ()
    verify_growth(kept, last.head, proof)


def _require_last_head(tree: LogTree, last: SignedTreeHead, path: Path) -> None:
    if last.size != len(tree):
        raise _damaged(path, f"{len(tree)} entries, the last head covers {last.size}")
    _require_root(tree, last.head, path)


def _require_root(tree: LogTree, head: TreeHead, path: Path) -> None:
    if head.size > len(tree) or tree.root(head.size) != head.root.raw:
        raise _damaged(path, f"the head of {head.size} entries does not fit them")


def _entries(connection: sqlite3.Connection, path: Path) -> Iterator[bytes]:
    with database_errors(path):
        rows = connection.execute("SELECT position, entry FROM entries ORDER BY 1")
        for expected, (position, raw) in enumerate(rows):
            if position != expected:
                raise _damaged(path, f"entry {expected} is missing")
            yield raw


def _heads(connection: sqlite3.Connection, path: Path) -> Iterator[SignedTreeHead]:
    with database_errors(path):
        for (raw,) in connection.execute("SELECT head FROM heads ORDER BY size"):
            yield decode(SignedTreeHead, raw)


def _last_head(connection: sqlite3.Connection, path: Path) -> SignedTreeHead:
    with database_errors(path):
        query = "SELECT head FROM heads ORDER BY size DESC LIMIT 1"
        row = connection.execute(query).fetchone()
    if row is None:
        raise _damaged(path, "it has no head")
    return decode(SignedTreeHead, row[0])


def _rolled_back(size: int, covered: int) -> IntegrityError:
    return IntegrityError(
        "the log was rolled back",
        why=f"it has {size} entries, a head from outside covers {covered}",
        fix="Ask its owner for the whole log",
        code="log-rolled-back",
    )


def _damaged(path: Path, why: str) -> IntegrityError:
    return IntegrityError(
        f"the log {path} does not hold together",
        why=why,
        fix="Restore it from a copy; a broker does not serve from a damaged log",
        code="log-damaged",
    )
