"""The file of an audit log: what stands in it, and whether it holds together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sealift.codec import decode
from sealift.errors import IntegrityError
from sealift.release.database import database_errors
from sealift.release.log.entries import SignedTreeHead, TreeHead
from sealift.release.log.tree import LogTree

APPLICATION_ID: Final = 0x5EA11061
SCHEMA: Final = """
CREATE TABLE entries (position INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
CREATE TABLE heads (size INTEGER PRIMARY KEY, head BLOB NOT NULL) STRICT
"""


def require_last_head(tree: LogTree, last: SignedTreeHead, path: Path) -> None:
    """The last head covers all entries, and fits them; raises ``log-damaged``."""
    if last.size != len(tree):
        raise damaged(path, f"{len(tree)} entries, the last head covers {last.size}")
    require_root(tree, last.head, path)


def require_root(tree: LogTree, head: TreeHead, path: Path) -> None:
    """A head fits the entries that it covers; raises ``log-damaged``."""
    if head.size > len(tree) or tree.root(head.size) != head.root.raw:
        raise damaged(path, f"the head of {head.size} entries does not fit them")


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
        raise damaged(path, "it has no head")
    return decode(SignedTreeHead, row[0])


def rolled_back(size: int, covered: int) -> IntegrityError:
    """The error for a log that lost its end."""
    return IntegrityError(
        "the log was rolled back",
        why=f"it has {size} entries, a head from outside covers {covered}",
        code="log-rolled-back",
    )


def damaged(path: Path, why: str) -> IntegrityError:
    """The error for a log that does not hold together."""
    return IntegrityError(
        f"the log {path} does not hold together", why=why, code="log-damaged"
    )
