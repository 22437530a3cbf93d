"""How others check a log: by saved heads, and by its whole file (rule H6).

A log's owner signs all its heads, so a consistent file proves nothing against the owner. A
head that somebody else saved does, because it must be a prefix of the log.

The first head of a log is accepted after a check of its signature. Every later head needs
a consistency proof that it belongs to the same log, which a log that was rolled back or
forked cannot give.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.merkle import leaf_hash
from sealift.crypto.sign import PublicKey
from sealift.errors import IntegrityError, MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement import Party
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import CLOCKS_DIFFER_S
from sealift.release.database import open_database
from sealift.release.files import locked, read_whole, write_whole
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
    TreeHead,
    read_entry,
    verify_growth,
    verify_head,
)

MAX_FILE_BYTES: Final = 1 << 20
# (log, first, second) -> consistency proof, from that log's broker
Prove = Callable[[PublicKey, int, int], tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file's form."""

    heads: dict[str, SignedTreeHead] = field(default_factory=dict)


def _no_proof(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
    raise PolicyError(
        "a log head came without proof that the log only grew",
        why=f"from {first} to {second} entries",
        code="head-unproven",
    )


class HeadStore:
    """The last head seen of every log, in one file that several processes may share.

    Args:
        path: The file; made when the first head is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept = _load(path)

    def last(self, log: PublicKey) -> SignedTreeHead | None:
        """The largest head that was kept of a log."""
        return self._kept.get(log.to_text())

    def admit(self, signed: SignedTreeHead, prove: Prove = _no_proof) -> None:
        """Check a head against the one kept, and keep the larger of the two.

        Args:
            signed: The head that somebody showed us.
            prove: Gets the consistency proof between two sizes, smaller first; the
                proof need not come from a trusted place.

        Raises:
            IntegrityError: ``head-unsigned``, or ``log-forked``: rolled back or forked.
            PolicyError: ``head-unproven``, if there is no proof.
        """
        head = verify_head(signed)
        while True:
            kept = self._reload(signed.body.log)
            if kept is not None:
                _verify_same_log(kept.body, head, prove)  # may dial: under no lock
                if head.size <= kept.body.size:
                    return
            if self._replace(kept, signed):
                return

    def _reload(self, log: PublicKey) -> SignedTreeHead | None:
        """The larger head of what this process saw and what the file holds."""
        with self._lock:
            seen = (*self._kept.values(), *_load(self._path).values())
            by_size = sorted(seen, key=lambda signed: signed.body.size)
            self._kept = {signed.body.log.to_text(): signed for signed in by_size}
            return self.last(log)

    def _replace(self, kept: SignedTreeHead | None, signed: SignedTreeHead) -> bool:
        """Keep ``signed``, unless somebody else kept another head meanwhile."""
        with locked(self._path.parent):
            if self._reload(signed.body.log) != kept:
                return False
            with self._lock:
                heads = {**self._kept, signed.body.log.to_text(): signed}
                write_whole(self._path, encode(_Kept(heads)))
                self._kept = heads
        return True


def _verify_same_log(kept: TreeHead, head: TreeHead, prove: Prove) -> None:
    if head.size == 0 < kept.size:
        # The empty log is a prefix of every log, so no proof would catch this one.
        raise IntegrityError(
            "the log was emptied",
            why=f"a head over {kept.size:,} entries was saved before",
            fix="Keep the saved head: it proves that its owner rolled the log back",
            code="log-forked",
        )
    earlier, later = sorted((kept, head), key=lambda entry: entry.size)
    proof: tuple[bytes, ...] = ()
    if 0 < earlier.size < later.size:
        proof = prove(head.log, earlier.size, later.size)
    verify_growth(earlier, later, proof)


class ShownHeads:
    """The heads that an accelerator sends to holders: the latest of each log it used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[PublicKey, SignedTreeHead] = {}

    def show(self, head: SignedTreeHead) -> None:
        """Show this one from now on, in place of an earlier one of its log."""
        with self._lock:
            shown = self._heads.get(head.body.log)
            if shown is None or shown.body.size < head.body.size:
                self._heads[head.body.log] = head

    def __call__(self) -> tuple[SignedTreeHead, ...]:
        """One head of each log."""
        with self._lock:
            return tuple(self._heads.values())


def log_owner(signed: SignedTreeHead, verified: VerifiedAgreement) -> Party:
    """Whose log it is: one owner key, one log. The signature is checked elsewhere.

    Raises:
        PolicyError: ``other-log``: of no party.
    """
    for party in verified.agreement.parties:
        if party.sign == signed.body.log:
            return party
    raise PolicyError(
        "a log head belongs to no party of the agreement", code="other-log"
    )


def demand_dated(signed: SignedTreeHead, verified: VerifiedAgreement) -> None:
    """A log's head is not of later than now, as far as clocks may differ.

    Else whatever is dated by it, and its author, would be refused at the end.

    Raises:
        PolicyError: ``head-of-the-future``, with the log's owner.
    """
    later_s = signed.body.at_s - verified.equipment.clock()
    if later_s > CLOCKS_DIFFER_S:
        owner = log_owner(signed, verified).name
        raise PolicyError(
            f"the log of {owner} is dated {later_s:,.0f} s after this machine's time",
            why=f"the clocks of two machines may differ by {CLOCKS_DIFFER_S} s",
            code="head-of-the-future",
        )


def find_head(path: Path, log: PublicKey) -> SignedTreeHead:
    """The head of a log in a file: a single head, or a store of many.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is neither.
        PolicyError: ``no-head``, if it holds no head of this log.
    """
    raw = read_whole(path, MAX_FILE_BYTES)
    try:
        kept = decode(_Kept, raw).heads
    except MalformedError:
        single = _single_head(raw, path)
        kept = {single.body.log.to_text(): single}
    if log.to_text() not in kept:
        raise PolicyError(
            f"{path} has no head of this log",
            why=f"the log's owner is {log}",
            code="no-head",
        )
    return kept[log.to_text()]


def _single_head(raw: bytes, path: Path) -> SignedTreeHead:
    try:
        return decode(SignedTreeHead, raw)
    except MalformedError as error:
        raise MalformedError(
            f"{path} has no log heads", why=error, code="bad-heads"
        ) from None


def _load(path: Path) -> dict[str, SignedTreeHead]:
    if not path.exists():
        return {}
    raw = read_whole(path, MAX_FILE_BYTES)
    return decode(_Kept, raw, max_bytes=MAX_FILE_BYTES).heads


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
        heads: Signed heads, each of which fits the entries before it.
        continues: Size of the outside head that it continues; None without one.
    """

    owner: PublicKey
    size: int
    releases: int
    refusals: int
    checkpoints: int
    root: Digest
    heads: int
    continues: int | None

    @property
    def statement(self) -> str:
        """What the check proves, as a sentence."""
        if self.continues is None:
            return (
                f"all {self.size:,} entries fit the {self.heads:,} heads that the owner's key "
                "signed; none was compared with a head that another party kept, so the owner "
                "could have written another log"
            )
        return f"the log continues the saved head over {self.continues:,} entries"


def _reading(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    return closing(open_database(path, APPLICATION_ID, read_only=True))


def read_entries(path: Path) -> Iterator[Entry]:
    """Every entry, in order, without checking any signature."""
    with _reading(path) as connection:
        for raw in stored_entries(connection, path):
            yield read_entry(raw)


def read_head(path: Path) -> SignedTreeHead:
    """The latest head that a log file claims; nothing is verified."""
    with _reading(path) as connection:
        return last_head(connection, path)


def verify_log(path: Path, *outside: SignedTreeHead) -> LogReport:
    """Check a log file: every entry parses, every signed head fits.

    Args:
        path: The log file.
        outside: Heads of this log that were kept elsewhere; without one the owner's
            own word is all there is (rule H6). The file is read once for all of them.

    Raises:
        IntegrityError: if a head is unsigned or does not fit, or one of ``outside`` is
            not a head of this log.
    """
    with _reading(path) as connection:
        raws = list(stored_entries(connection, path))
        heads = list(stored_heads(connection, path))
    kinds = [str(read_entry(raw).kind) for raw in raws]
    tree = LogTree(leaf_hash(raw) for raw in raws)
    last = _verify_heads(tree, heads, path)
    own = frozenset(heads)  # these were verified, and so were their places in the tree
    for kept in outside:
        if kept not in own:
            _require_continuation(tree, last, kept)
    return LogReport(
        owner=last.body.log,
        size=len(tree),
        releases=kinds.count("release"),
        refusals=kinds.count("refusal") + kinds.count("checkpoint-refusal"),
        checkpoints=kinds.count("checkpoint"),
        root=last.body.root,
        heads=len(heads),
        continues=max((each.body.size for each in outside), default=None),
    )


def _verify_heads(
    tree: LogTree, heads: list[SignedTreeHead], path: Path
) -> SignedTreeHead:
    if not heads:
        raise damaged(path, "it has no signed head")
    for signed in heads:
        verify_head(signed)
        if signed.body.log != heads[-1].body.log:
            raise damaged(path, "two different keys sign it")
        require_root(tree, signed.body, path)
    require_last_head(tree, heads[-1], path)
    return heads[-1]


def _require_continuation(
    tree: LogTree, last: SignedTreeHead, outside: SignedTreeHead
) -> None:
    kept = verify_head(outside)
    if kept.size > len(tree):
        raise rolled_back(len(tree), kept.size)
    proof = tree.consistency_proof(kept.size, len(tree)) if kept.size else ()
    verify_growth(kept, last.body, proof)
