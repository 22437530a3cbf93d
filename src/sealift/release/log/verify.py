"""Check a log file: what it shows by itself, and what only with a head from outside.

A log's owner signs all of its heads, so a file that holds together proves nothing
against its owner. A head that somebody else kept does: it has to be a prefix of the log
(rule H6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sealift.crypto.merkle import leaf_hash
from sealift.crypto.sign import PublicKey
from sealift.ids import Digest
from sealift.release.database import open_database
from sealift.release.log.auditlog import (
    APPLICATION_ID,
    LogTree,
    damaged,
    last_head,
    require_last_head,
    require_root,
    rolled_back,
    stored_entries,
    stored_heads,
)
from sealift.release.log.entries import (
    Entry,
    SignedTreeHead,
    read_entry,
    verify_growth,
    verify_head,
)


@dataclass(frozen=True, slots=True)
class LogReport:
    """What ``verify_log`` found.

    Attributes:
        owner: The key that signs the log.
        size: Entries.
        releases: Entries that are releases.
        refusals: Entries that are refusals, of keys and of checkpoints.
        checkpoints: Entries that let a checkpoint count.
        root: Root over all entries.
        continues: Size of the outside head that it continues; None without one.
    """

    owner: PublicKey
    size: int
    releases: int
    refusals: int
    checkpoints: int
    root: Digest
    continues: int | None

    @property
    def statement(self) -> str:
        """What this proves, in words."""
        if self.continues is None:
            return "self-consistent only: no head from outside was compared"
        return f"continues the head of {self.continues} entries that you kept"


def read_entries(path: Path) -> Iterator[Entry]:
    """Every entry, in order, without checking any signature."""
    connection = open_database(path, APPLICATION_ID, read_only=True)
    try:
        for raw in stored_entries(connection, path):
            yield read_entry(raw)
    finally:
        connection.close()


def read_head(path: Path) -> SignedTreeHead:
    """The latest head that a log file claims; nothing is verified."""
    connection = open_database(path, APPLICATION_ID, read_only=True)
    try:
        return last_head(connection, path)
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
        raws = list(stored_entries(connection, path))
        heads = list(stored_heads(connection, path))
    finally:
        connection.close()
    kinds = [str(read_entry(raw).kind) for raw in raws]
    tree = LogTree(leaf_hash(raw) for raw in raws)
    last = _verify_heads(tree, heads, path)
    if outside is not None:
        _require_continuation(tree, last, outside)
    return LogReport(
        owner=last.log,
        size=len(tree),
        releases=kinds.count("release"),
        refusals=kinds.count("refusal") + kinds.count("checkpoint-refusal"),
        checkpoints=kinds.count("checkpoint"),
        root=last.root,
        continues=outside.size if outside else None,
    )


def _verify_heads(
    tree: LogTree, heads: list[SignedTreeHead], path: Path
) -> SignedTreeHead:
    if not heads:
        raise damaged(path, "it has no head")
    for signed in heads:
        verify_head(signed)
        if signed.log != heads[-1].log:
            raise damaged(path, "two keys sign it")
        require_root(tree, signed.head, path)
    require_last_head(tree, heads[-1], path)
    return heads[-1]


def _require_continuation(
    tree: LogTree, last: SignedTreeHead, outside: SignedTreeHead
) -> None:
    kept = verify_head(outside)
    if kept.size > len(tree):
        raise rolled_back(len(tree), kept.size)
    proof = tree.consistency_proof(kept.size, len(tree)) if kept.size else ()
    verify_growth(kept, last.head, proof)
