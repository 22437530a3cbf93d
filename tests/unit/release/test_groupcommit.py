"""Everybody's change lasts, in order, and is told apart; nobody hears too early."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import PolicyError, UnavailableError
from sealift.ids import Digest
from sealift.release.database import GroupCommit
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import LogEntry, verify_entry, verify_head
from sealift.release.log.heads import verify_log
from sealift.release.vault.vault import Vault

MANY = 8


class Disk:
    """Busy with its first commit until it is let go."""

    def __init__(self) -> None:
        self.busy = threading.Event()
        self.free = threading.Event()
        self.commits: list[list[int]] = []
        self.full = False

    def commit(self, changes: Sequence[int]) -> list[int | Exception]:
        self.commits.append(list(changes))
        self.busy.set()
        assert self.free.wait(300)
        if self.full:
            raise UnavailableError("the disk is full", code="disk-full")
        odd = PolicyError("odd")
        return [odd if change % 2 else -change for change in changes]


def run_together(disk: Disk, group: GroupCommit[int, int]) -> list[int | str]:
    """One change that the disk is busy with, and ``MANY`` that wait for it."""

    def run(change: int) -> int | str:
        try:
            return group.run(change)
        except (PolicyError, UnavailableError) as error:
            return error.code

    with ThreadPoolExecutor(MANY + 1) as pool:
        first = pool.submit(run, MANY)
        assert disk.busy.wait(300)
        rest = [pool.submit(run, change) for change in range(MANY)]
        while len(group._queue) < MANY:
            pass
        assert not any(each.done() for each in (first, *rest))
        disk.free.set()
        return [each.result(300) for each in (first, *rest)]


def test_who_waits_for_the_disk_is_written_together() -> None:
    disk = Disk()
    found = run_together(disk, GroupCommit(disk.commit))
    assert sorted(disk.commits[1]) == list(range(MANY))
    expected = [PolicyError("odd").code if i % 2 else -i for i in range(MANY)]
    assert found == [-MANY, *expected]


def test_a_commit_that_fails_fails_for_all_and_for_none_after() -> None:
    disk = Disk()
    disk.full = True
    group = GroupCommit(disk.commit)
    assert run_together(disk, group) == ["disk-full"] * (MANY + 1)
    disk.full = False
    assert group.run(4) == -4


def append_many(log: AuditLog, count: int) -> None:
    entries = [
        LogEntry(kind="refusal", at_s=n, agreement=Digest.of(b"a"))
        for n in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        for appended in pool.map(log.append, entries):
            head = verify_head(appended.head)
            verify_entry(appended.entry, appended.inclusion, head)


def test_entries_written_together_are_proven_by_their_one_head(tmp_path: Path) -> None:
    log = AuditLog.create(tmp_path / "log", create_identity("ada"), lambda: 0.0)
    raws = [b"%d" % n for n in range(5)]
    written = log._append(raws[:2]) + log._append(raws[2:])
    log.close()
    for each in written:
        verify_entry(each.entry, each.inclusion, verify_head(each.head))
    assert [each.head.body.size for each in written] == [2, 2, 5, 5, 5]


def test_many_append_at_once(tmp_path: Path) -> None:
    log = AuditLog.create(tmp_path / "log", create_identity("ada"), lambda: 0.0)
    append_many(log, 24)
    log.close()
    assert verify_log(tmp_path / "log").size == 24


def test_a_write_that_fails_leaves_no_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog.create(tmp_path / "log", create_identity("ada"), lambda: 0.0)
    append_many(log, 3)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_store", refuse)
        with pytest.raises(UnavailableError):
            append_many(log, 1)
    append_many(log, 2)
    log.close()
    assert verify_log(tmp_path / "log").size == 5


def refuse(*args: object) -> None:
    raise UnavailableError("the disk is full", code="disk-full")


def test_uses_that_come_together_are_each_counted(tmp_path: Path) -> None:
    ada = create_identity("ada")
    vault = Vault.create(tmp_path / "vault", ada)

    def debit(_: int) -> int:
        try:
            return vault.ledger.debit("line", "rows", 10, ada.public_key)
        except PolicyError:
            return 0

    with ThreadPoolExecutor(16) as pool:
        found = sorted(pool.map(debit, range(16)))
    assert found == [0] * 6 + list(range(1, 11))
    assert vault.ledger.uses("line", "rows") == 10
    vault.close()
