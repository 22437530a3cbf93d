"""The audit log under any history: what was promised by a head stays true, forks show.

A model keeps every entry that was ever appended and every head that was ever seen. The
log may be closed and opened, copied, rolled back to a copy, and grow on.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from sealift.codec import encode
from sealift.crypto import merkle
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import IntegrityError
from sealift.ids import Digest
from sealift.release.database import copy_database
from sealift.release.log.auditlog import APPLICATION_ID, AuditLog, LogTree
from sealift.release.log.entries import LogEntry, SignedTreeHead, verify_entry
from sealift.release.log.heads import HeadStore, verify_log

AGREEMENT = Digest.of(b"agreement")
LEAVES = [merkle.leaf_hash(bytes([i])) for i in range(70)]


@given(st.integers(0, 70))
def test_tree_agrees_with_the_oracle(size: int) -> None:
    tree = LogTree(LEAVES[:size])
    assert len(tree) == size
    assert tree.root() == merkle.root(LEAVES[:size])


@given(st.integers(0, 70), st.integers(0, 70))
def test_what_was_taken_back_leaves_nothing(size: int, more: int) -> None:
    tree = LogTree(LEAVES[: max(size, more)])
    tree.truncate(size)
    assert (len(tree), tree.root()) == (size, merkle.root(LEAVES[:size]))
    for leaf in LEAVES[size:more]:
        tree.append(leaf)
    assert tree.root() == merkle.root(LEAVES[: max(size, more)])


@given(st.integers(1, 70), st.data())
def test_proofs_agree_with_the_oracle(size: int, draw: st.DataObject) -> None:
    tree = LogTree(LEAVES)
    index = draw.draw(st.integers(0, size - 1))
    first = draw.draw(st.integers(1, size))
    leaves = LEAVES[:size]
    assert tree.inclusion_proof(index, size) == merkle.inclusion_proof(leaves, index)
    assert tree.consistency_proof(first, size) == merkle.consistency_proof(
        leaves, first
    )


@dataclass(frozen=True)
class Seen:
    """A head, and the entries that it covered when it was signed."""

    head: SignedTreeHead
    entries: tuple[bytes, ...]


class LogMachine(RuleBasedStateMachine):
    """One log, one party that keeps heads."""

    copies: Bundle[tuple[Path, tuple[bytes, ...]]] = Bundle("copies")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.key = SigningKey.generate()
        self.path = self.folder / "log"
        self.log = AuditLog.create(self.path, self.key, lambda: 0.0)
        self.entries: tuple[bytes, ...] = ()
        self.kept: Seen | None = None
        self.count = 0

    @rule(kind=st.sampled_from(["release", "refusal"]))
    def append(self, kind: str) -> None:
        self.count += 1
        entry = LogEntry(kind=kind, at_s=self.count, agreement=AGREEMENT)  # type: ignore[arg-type]
        appended = self.log.append(entry)
        self.entries += (encode(entry),)
        verify_entry(appended.entry, appended.inclusion, appended.head.body)
        assert appended.head == self.log.head()

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = AuditLog.open(self.path, self.key, lambda: 0.0)

    @rule(target=copies)
    def copy(self) -> tuple[Path, tuple[bytes, ...]]:
        self.count += 1
        path = self.folder / f"copy-{self.count}"
        copy_database(self.path, path, APPLICATION_ID)
        return path, self.entries

    @rule(copy=copies)
    def roll_back(self, copy: tuple[Path, tuple[bytes, ...]]) -> None:
        self.log.close()
        path, self.entries = copy
        shutil.copy(path, self.path)
        self.log = AuditLog.open(self.path, self.key, lambda: 0.0)

    @rule()
    def show_head(self) -> None:
        """The party admits a head exactly if what it kept is still a prefix."""
        head = self.log.head()
        store = HeadStore(self.folder / "heads.json")
        if self.continues():
            store.admit(head, self.prove)
            if self.kept is None or head.body.size >= self.kept.head.body.size:
                self.kept = Seen(head, self.entries)
        else:
            with pytest.raises(IntegrityError):
                store.admit(head, self.prove)

    def continues(self) -> bool:
        if self.kept is None:
            return True
        return self.entries[: len(self.kept.entries)] == self.kept.entries

    def prove(self, log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
        return self.log.consistency(first, second)

    @invariant()
    def the_file_holds_together(self) -> None:
        if not hasattr(self, "log"):
            return
        assert verify_log(self.path).size == len(self.entries)
        assert self.log.head().body.root.raw == merkle.root(
            [merkle.leaf_hash(entry) for entry in self.entries]
        )
        if self.kept is not None and self.continues():
            verify_log(self.path, self.kept.head)
        elif self.kept is not None:
            with pytest.raises(IntegrityError):
                verify_log(self.path, self.kept.head)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)


def test_an_emptied_log_is_noticed() -> None:
    """Found by the machine: no consistency proof is asked for from size 0."""
    machine = LogMachine()
    machine.begin()
    empty = machine.copy()
    machine.append("release")
    machine.show_head()
    machine.roll_back(empty)
    machine.show_head()
    machine.teardown()


LogMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogMachine = LogMachine.TestCase
