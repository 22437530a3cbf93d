"""The audit log on disk: entries and signed heads in one SQLite file, under a Merkle tree.

``append`` returns only when entry and head are on the disk, so a caller that appends
before it releases a key has the entry whatever happens next (rule H6). Entries that arrive
while the disk is busy are written together, under one head. Opening for writing checks the
file against its own last head. The log's owner could still write another log from the
start; only a head that somebody else saved proves that (``release/log/heads.py``).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.hash import sha256
from sealift.crypto.merkle import leaf_hash, node_hash
from sealift.crypto.sign import Signer, sign_document
from sealift.errors import IntegrityError, MalformedError, PolicyError, UsageError
from sealift.ids import Digest
from sealift.release.database import (
    GroupCommit,
    create_database,
    database_errors,
    open_database,
    transaction,
)
from sealift.release.log.entries import (
    Entry,
    Inclusion,
    Logged,
    SignedTreeHead,
    TreeHead,
    verify_head,
)


class LogTree:
    """Leaf hashes and the roots of all complete subtrees over them."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        # _levels[k][i] is the root of leaves i * 2^k .. (i + 1) * 2^k - 1
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    def __len__(self) -> int:
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        level, node = 0, leaf
        self._levels[0].append(node)
        while len(self._levels[level]) % 2 == 0:
            left, right = self._levels[level][-2:]
            node, level = node_hash(left, right), level + 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(node)

    def root(self, size: int | None = None) -> bytes:
        """The tree head over the first ``size`` leaves, all by default."""
        size = len(self) if size is None else size
        if not 0 <= size <= len(self):
            raise UsageError(f"the log has {len(self):,} entries, not {size:,}")
        return self._range(0, size) if size else sha256(b"")

    def truncate(self, size: int) -> None:
        """Take back the leaves from ``size`` on."""
        for level, nodes in enumerate(self._levels):
            del nodes[size >> level :]

    def inclusion_proof(self, index: int, size: int) -> tuple[bytes, ...]:
        """PATH(index, D[size]), leaf side first."""
        if not 0 <= index < size <= len(self):
            raise UsageError(f"no entry {index} in a log of {size}")
        return self._path(index, 0, size)

    def consistency_proof(self, first: int, second: int) -> tuple[bytes, ...]:
        """PROOF(first, D[second])."""
        if not 0 < first <= second <= len(self):
            raise UsageError(f"no consistency proof from {first} to {second}")
        return self._subproof(first, 0, second, complete=True)

    def _path(self, index: int, low: int, high: int) -> tuple[bytes, ...]:
        if high - low == 1:
            return ()
        middle = low + _split(high - low)
        if index < middle:
            return (*self._path(index, low, middle), self._range(middle, high))
        return (*self._path(index, middle, high), self._range(low, middle))

    def _subproof(
        self, first: int, low: int, high: int, *, complete: bool
    ) -> tuple[bytes, ...]:
        if first == high:
            return () if complete else (self._range(low, high),)
        middle = low + _split(high - low)
        if first <= middle:
            left = self._subproof(first, low, middle, complete=complete)
            return (*left, self._range(middle, high))
        right = self._subproof(first, middle, high, complete=False)
        return (*right, self._range(low, middle))

    def _range(self, low: int, high: int) -> bytes:
        """Root over leaves low .. high - 1; ``low`` is a multiple of a subtree's size."""
        length = high - low
        if length & (length - 1) == 0:
            level = length.bit_length() - 1
            return self._levels[level][low >> level]
        middle = low + _split(length)
        return node_hash(self._range(low, middle), self._range(middle, high))


def _split(length: int) -> int:
    """The largest power of two below ``length``."""
    return 1 << (length - 1).bit_length() - 1


APPLICATION_ID: Final = 0x5EA11061
SCHEMA: Final = """
CREATE TABLE entries (position INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
CREATE TABLE heads (size INTEGER PRIMARY KEY, head BLOB NOT NULL) STRICT
"""


def require_last_head(tree: LogTree, last: SignedTreeHead, path: Path) -> None:
    """The last head covers all entries, and fits them; raises ``log-damaged``."""
    if last.body.size != len(tree):
        raise damaged(
            path,
            f"it has {len(tree):,} entries, and its last head covers {last.body.size:,}",
        )
    require_root(tree, last.body, path)


def require_root(tree: LogTree, head: TreeHead, path: Path) -> None:
    """A head fits the entries that it covers; raises ``log-damaged``."""
    if head.size > len(tree) or tree.root(head.size) != head.root.raw:
        raise damaged(
            path, f"the signed head over {head.size:,} entries does not match them"
        )


def stored_entries(connection: sqlite3.Connection, path: Path) -> Iterator[bytes]:
    """Canonical bytes of every entry, in order.

    Read at once: a reader that takes its time must not keep the broker from writing.
    """
    with database_errors(path):
        query = "SELECT position, entry FROM entries ORDER BY 1"
        rows = connection.execute(query).fetchall()
    for expected, (position, raw) in enumerate(rows):
        if position != expected:
            raise damaged(path, f"entry {expected} is missing")
        yield raw


def stored_heads(
    connection: sqlite3.Connection, path: Path
) -> Iterator[SignedTreeHead]:
    """Every head that was ever signed, smallest first."""
    with database_errors(path):
        query = "SELECT head FROM heads ORDER BY size"
        rows = connection.execute(query).fetchall()
    for (raw,) in rows:
        yield decode(SignedTreeHead, raw)


def last_head(connection: sqlite3.Connection, path: Path) -> SignedTreeHead:
    """The head that covers most."""
    with database_errors(path):
        query = "SELECT head FROM heads ORDER BY size DESC LIMIT 1"
        row = connection.execute(query).fetchone()
    if row is None:
        raise damaged(path, "it has no signed head")
    return decode(SignedTreeHead, row[0])


def rolled_back(size: int, covered: int) -> IntegrityError:
    """The error for a log whose last entries are missing."""
    return IntegrityError(
        "the log was rolled back",
        why=f"it has {size:,} entries, and a head from another place covers {covered:,}",
        code="log-rolled-back",
    )


def damaged(path: Path, why: str) -> IntegrityError:
    """The error for a log whose entries and heads contradict each other."""
    return IntegrityError(f"the log {path} is damaged", why=why, code="log-damaged")


Clock = Callable[[], float]


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
            if last.body.log != signer.public_key:
                raise PolicyError(
                    f"{path} is the log of another owner", code="other-log"
                )
            # Else the next head would sign whatever somebody wrote into the file.
            verify_head(last)
            require_last_head(log._tree, last, path)
        except BaseException:
            connection.close()
            raise
        return log

    def append(self, entry: Entry) -> Logged:
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
                raise MalformedError("the first size of a log must be the smaller one")
            return self._tree.consistency_proof(first, second) if first else ()

    def close(self) -> None:
        """Close the file, once whoever writes or reads it is done."""
        with self._lock:
            self._connection.close()

    def _append(self, raws: Sequence[bytes]) -> list[Logged]:
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
                Logged(raw, self._inclusion(before + i), head)
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
        return sign_document(head, self._signer)

    def _store_head(self, head: SignedTreeHead) -> None:
        self._connection.execute(
            "INSERT INTO heads VALUES (?, ?)", (head.body.size, encode(head))
        )
