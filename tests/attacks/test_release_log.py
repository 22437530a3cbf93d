"""A broker that wants to forget: unlogged, rolled back, forked, damaged logs (rule H6)."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import sealift
from sealift.codec import decode, encode
from sealift.crypto.merkle import leaf_hash
from sealift.crypto.sign import PublicKey, sign_document
from sealift.errors import IntegrityError, PolicyError, UnavailableError
from sealift.ids import Digest
from sealift.release.broker.messages import BrokerAnswer, BrokerRequest
from sealift.release.client import collect_release
from sealift.release.database import copy_database
from sealift.release.grant import KeyRelease, ReleaseRequest, info_digest
from sealift.release.log import auditlog
from sealift.release.log.auditlog import APPLICATION_ID, AuditLog
from sealift.release.log.entries import (
    LogEntry,
    Logged,
    SignedTreeHead,
    verify_head,
)
from sealift.release.log.heads import HeadStore, read_entries, read_head, verify_log
from tests.sim.owners import (
    NOW_S,
    BrokerBox,
    ask,
    make_broker,
    session_pair,
    start_broker,
)
from tests.sim.paperwork import release_once
from tests.worlds.consortium import RUN, Consortium, make_consortium

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@pytest.fixture
def box(consortium: Consortium, tmp_path: Path) -> Iterator[BrokerBox]:
    box = make_broker(consortium, "ada", tmp_path)
    yield box
    box.close()


# the entry is on the disk before the key leaves


def die_while_answering(mode: str, folder: Path) -> None:
    source = str(Path(sealift.__file__).parent.parent)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.sim.killed_broker", mode, str(folder)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{source}:{ROOT}"},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (folder / "sent").exists()


def releases_in(log: Path) -> int:
    return sum(entry.kind == "release" for entry in read_entries(log))


@pytest.mark.distributed
def test_killed_while_the_key_leaves_has_logged_it(tmp_path: Path) -> None:
    die_while_answering("product", tmp_path)
    assert decode(BrokerAnswer, (tmp_path / "sent").read_bytes()).release is not None
    assert releases_in(tmp_path / "ada.log") == 1
    assert verify_log(tmp_path / "ada.log").releases == 1


@pytest.mark.distributed
def test_mutant_that_sends_first_has_not(tmp_path: Path) -> None:
    """Control: the same kill, and a key that no log knows of."""
    die_while_answering("sends-first", tmp_path)
    assert releases_in(tmp_path / "ada.log") == 0


@pytest.mark.usefixtures("commits_wait_for_the_disk")
def test_commits_reach_the_disk(box: BrokerBox) -> None:
    """FULL syncs the write-ahead log at every commit; NORMAL would not."""
    for connection in (box.log._connection, box.vault._file.connection):
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_no_key_leaves_when_the_log_cannot_be_written(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    pages = box.log._connection.execute("PRAGMA page_count").fetchone()[0]
    box.log._connection.execute(f"PRAGMA max_page_count = {pages}")
    session = session_pair(consortium, box.broker, "ada")
    refusals = []
    for count in range(40):  # until the last page is full
        request = ReleaseRequest("ada-train", "train", bytes([count]) * 32, RUN)
        answer = ask(box.broker, session.other, BrokerRequest(release=request))
        if answer.refusal is not None:
            assert answer.release is None
            refusals.append(answer.refusal.rule)
    assert set(refusals) == {"disk-full"}
    assert releases_in(tmp_path / "ada.log") == 40 - len(refusals)
    verify_log(tmp_path / "ada.log")


def append_many(box: BrokerBox, entry: LogEntry) -> None:
    for _ in range(100):
        box.log.append(entry)


def test_append_that_failed_left_the_log_whole(box: BrokerBox) -> None:
    pages = box.log._connection.execute("PRAGMA page_count").fetchone()[0]
    box.log._connection.execute(f"PRAGMA max_page_count = {pages}")
    entry = LogEntry(kind="refusal", at_s=0, agreement=box.broker._verified.digest)
    with pytest.raises(UnavailableError):
        append_many(box, entry)
    before = box.log.head()
    box.log._connection.execute("PRAGMA max_page_count = 1000000")
    after = box.log.append(entry)
    assert after.head.body.size == before.body.size + 1
    assert verify_log(box.log._path, before).size == after.head.body.size


def test_a_slow_reader_does_not_keep_the_broker_from_logging(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    """Somebody pages through the log; keys still go out, entries are still written."""
    box.log._connection.execute("PRAGMA busy_timeout = 0")
    reader = read_entries(tmp_path / "ada.log")
    assert next(reader).kind == "agreement"
    assert release_once(consortium, box, "ada").body.size == 2
    reader.close()


def test_killed_in_the_middle_of_a_write(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    """Half a transaction in the write-ahead log does not count, for readers either."""
    release_once(consortium, box, "ada")
    victim = tmp_path / "killed.log"
    connection = box.log._connection
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE entries SET entry = zeroblob(200000)")
    for end in ("", "-wal"):
        shutil.copy(tmp_path / f"ada.log{end}", tmp_path / f"killed.log{end}")
    connection.execute("ROLLBACK")
    assert (tmp_path / "killed.log-wal").stat().st_size > 200_000
    assert verify_log(victim).size == 2
    again = AuditLog.open(victim, consortium.identities["ada"], lambda: NOW_S)
    assert again.append(next(read_entries(victim))).head.body.size == 3
    again.close()
    assert verify_log(victim).size == 3


def test_refused_handshake_is_logged(box: BrokerBox, tmp_path: Path) -> None:
    error = PolicyError("development evidence refused", code="development-refused")
    box.broker.record_refused_handshake(error, role="accelerator", name="x")
    last = list(read_entries(tmp_path / "ada.log"))[-1]
    assert (last.kind, last.rule, last.peer) == ("refusal", "development-refused", "x")


# a log that is not what was seen before


def proofs_of(box: BrokerBox):  # type: ignore[no-untyped-def]
    def prove(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
        return box.log.consistency(first, second)

    return prove


def reopen(
    consortium: Consortium, log: Path, box: BrokerBox, *, serve: bool
) -> BrokerBox:
    """Another log file in the place of the broker's own."""
    identity = consortium.identities["ada"]
    opened = AuditLog.open(log, identity, lambda: NOW_S)
    if not serve:
        return BrokerBox(box.broker, box.vault, opened)
    broker = start_broker(consortium, "ada", box.vault, opened)
    return BrokerBox(broker, box.vault, opened)


@pytest.mark.parametrize("releases_since", [None, 0, 1, 3])
def test_rolled_back_log_is_refused_by_who_kept_a_head(
    consortium: Consortium, box: BrokerBox, tmp_path: Path, releases_since: int | None
) -> None:
    early = tmp_path / "early.log"
    copy_database(tmp_path / "ada.log", early, APPLICATION_ID)
    seen = release_once(consortium, box, "ada")
    store = HeadStore(tmp_path / "heads.json")
    store.admit(seen)
    rolled = reopen(consortium, early, box, serve=releases_since is not None)
    for _ in range(releases_since or 0):
        release_once(consortium, rolled, "ada")
    shown = rolled.log.head()
    with pytest.raises(IntegrityError) as caught:
        store.admit(shown, proofs_of(rolled))
    shorter = releases_since is None
    assert caught.value.code == ("log-rolled-back" if shorter else "log-forked")
    with pytest.raises(IntegrityError):
        verify_log(early, seen)
    # Control: who kept nothing sees a log that is consistent with itself.
    HeadStore(tmp_path / "nothing-kept.json").admit(shown, proofs_of(rolled))
    assert verify_log(early).continues is None
    assert "could have written another log" in verify_log(early).statement
    rolled.log.close()


def test_head_that_grew_needs_its_proof(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    store = HeadStore(tmp_path / "heads.json")
    store.admit(release_once(consortium, box, "ada"))
    grown = release_once(consortium, box, "ada")
    with pytest.raises(PolicyError) as caught:
        store.admit(grown)
    assert caught.value.code == "head-unproven"
    with pytest.raises(IntegrityError):
        store.admit(grown, lambda *args: (bytes(32),))
    store.admit(grown, proofs_of(box))
    assert HeadStore(tmp_path / "heads.json").last(grown.body.log) == grown


def test_an_older_head_of_the_same_log_is_fine(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    """The accelerator may show a head from before the last one that we saw."""
    store = HeadStore(tmp_path / "heads.json")
    older = release_once(consortium, box, "ada")
    store.admit(release_once(consortium, box, "ada"))
    store.admit(older, proofs_of(box))
    assert store.last(older.body.log) == box.log.head()


def test_head_by_another_key_is_refused(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    head = box.log.head()
    forged = sign_document(head.body, consortium.identities["bern"])
    with pytest.raises(IntegrityError) as caught:
        HeadStore(tmp_path / "heads.json").admit(forged)
    assert caught.value.code == "head-unsigned"


# a file that was edited


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


EDITS = {
    "entry changed": "UPDATE entries SET entry = (SELECT entry FROM entries "
    "WHERE position = 0) WHERE position = 1",
    "last entry gone": "DELETE FROM entries WHERE position = 1",
    "first entry gone": "DELETE FROM entries WHERE position = 0",
    "head gone": "DELETE FROM heads WHERE size = 2",
    "all heads gone": "DELETE FROM heads",
}


@pytest.mark.parametrize("statement", EDITS.values(), ids=EDITS.keys())
def test_edited_log_is_noticed(
    consortium: Consortium, box: BrokerBox, tmp_path: Path, statement: str
) -> None:
    release_once(consortium, box, "ada")
    box.close()
    verify_log(tmp_path / "ada.log")
    edit(tmp_path / "ada.log", statement)
    with pytest.raises(IntegrityError) as caught:
        verify_log(tmp_path / "ada.log")
    assert caught.value.code == "log-damaged"
    with pytest.raises(IntegrityError):
        AuditLog.open(tmp_path / "ada.log", consortium.identities["ada"], lambda: 0.0)


def test_another_owners_log_is_not_continued(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as caught:
        AuditLog.open(tmp_path / "ada.log", consortium.identities["bern"], lambda: 0.0)
    assert caught.value.code == "other-log"


def rewrite_log(path: Path) -> None:
    """Another past that fits its head, which nobody could sign: no release in it."""
    old = read_head(path)
    entry = encode(LogEntry(kind="agreement", at_s=0, agreement=old.body.root))
    head = replace(old.body, size=1, root=Digest(leaf_hash(entry)))
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM entries")
    connection.execute("DELETE FROM heads")
    connection.execute("INSERT INTO entries VALUES (0, ?)", (entry,))
    raw = encode(SignedTreeHead(head, old.signature))
    connection.execute("INSERT INTO heads VALUES (1, ?)", (raw,))
    connection.commit()
    connection.close()


def test_a_rewritten_log_is_not_signed_by_going_on_with_it(
    consortium: Consortium,
    box: BrokerBox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By whoever can write the disk and has no key."""
    release_once(consortium, box, "ada")
    box.close()
    path, identity = tmp_path / "ada.log", consortium.identities["ada"]
    rewrite_log(path)
    with pytest.raises(IntegrityError) as caught:
        AuditLog.open(path, identity, lambda: 0.0)
    assert caught.value.code == "head-unsigned"
    monkeypatch.setattr(auditlog, "verify_head", lambda signed: signed.body)
    mutant = AuditLog.open(path, identity, lambda: 0.0)  # control: signs it
    mutant.append(LogEntry(kind="refusal", at_s=0, agreement=mutant.head().body.root))
    verify_head(mutant.head())
    assert releases_in(path) == 0
    mutant.close()


# an answer that shows a log entry about something else


def show_other_entry(raw: bytes, box: BrokerBox) -> bytes:
    """The broker logs a refusal, and shows that as the entry of its release."""
    answer = decode(BrokerAnswer, raw)
    assert answer.release is not None
    logged = box.log.append(
        LogEntry(kind="refusal", at_s=0, agreement=answer.release.key.info.agreement)
    )
    release = replace(
        answer.release, entry=logged.entry, inclusion=logged.inclusion, head=logged.head
    )
    return encode(replace(answer, release=release))


def test_release_that_is_logged_as_something_else(
    consortium: Consortium, box: BrokerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect() -> Logged:
        session = session_pair(consortium, box.broker, "ada")
        session.tamper = lambda raw: show_other_entry(raw, box)  # type: ignore[method-assign]
        verified = consortium.verified()
        return collect_release(
            session, verified, "ada-train", clock=lambda: 0.0, run=RUN
        )[1]

    with pytest.raises(IntegrityError) as caught:
        collect()
    assert caught.value.code == "release-unlogged"

    def believe(release: KeyRelease, *_: object) -> SimpleNamespace:
        return SimpleNamespace(kind="release", info=info_digest(release.key.info))

    monkeypatch.setattr(KeyRelease, "verify", believe)
    assert collect().head == box.log.head()  # control: the mutant believes it
