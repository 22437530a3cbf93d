"""The vault keeps keys wrapped, never replaces one, and opens for its owner only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sealift.channel.record.commitment import key_commitment
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from sealift.ids import Digest
from sealift.release import database
from sealift.release.checkpoint import CheckpointMark, CheckpointStatus
from sealift.release.log.auditlog import AuditLog
from sealift.release.vault.checkpoints import JobKey
from sealift.release.vault.file import APPLICATION_ID
from sealift.release.vault.vault import FORM, Vault


@pytest.fixture
def identity() -> Identity:
    return create_identity("ada")


@pytest.fixture
def vault(identity: Identity, tmp_path: Path) -> Iterator[Vault]:
    vault = Vault.create(tmp_path / "vault", identity)
    yield vault
    vault.close()


def test_keeps_a_key(vault: Vault, identity: Identity, tmp_path: Path) -> None:
    key = SecretKey.generate()
    commitment = vault.store("rows", key)
    assert commitment == key_commitment(key, "rows")
    assert vault.resources() == {"rows": commitment}
    vault.close()
    again = Vault.open(tmp_path / "vault", identity)
    assert again.fetch("rows").reveal(TOKEN) == key.reveal(TOKEN)
    again.close()


def test_the_file_holds_no_plain_key(vault: Vault, tmp_path: Path) -> None:
    key = SecretKey.generate()
    vault.store("rows", key)
    raw = b"".join(path.read_bytes() for path in tmp_path.glob("vault*"))
    assert key.reveal(TOKEN) not in raw
    assert key.reveal(TOKEN)[:8] not in raw
    assert key_commitment(key, "rows").to_text().encode() in raw  # the search works
    for path in tmp_path.glob("vault*"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_keys_are_never_replaced(vault: Vault) -> None:
    key = SecretKey.generate()
    vault.store("rows", key)
    with pytest.raises(UsageError) as caught:
        vault.store("rows", SecretKey.generate())
    assert caught.value.code == "key-exists"
    assert vault.fetch("rows").reveal(TOKEN) == key.reveal(TOKEN)


def test_several_keys_are_kept_together_or_not_at_all(vault: Vault) -> None:
    keys = {name: SecretKey.generate() for name in ("a", "b", "c")}
    assert list(vault.store_all(keys)) == ["a", "b", "c"]
    assert vault.fetch("c").reveal(TOKEN) == keys["c"].reveal(TOKEN)
    with pytest.raises(UsageError, match="key for b") as caught:
        vault.store_all({"d": keys["a"], "b": keys["b"]})
    assert caught.value.code == "key-exists"
    assert list(vault.resources()) == ["a", "b", "c"]


def test_missing_key(vault: Vault) -> None:
    with pytest.raises(UnavailableError) as caught:
        vault.fetch("rows")
    assert caught.value.code == "no-key"


def test_a_destroyed_key_is_gone(vault: Vault, tmp_path: Path) -> None:
    """From the file and from the log beside it; others stay."""
    keys = {name: SecretKey.generate() for name in ("ada-train", "ada-heldout")}
    for name, data_key in keys.items():
        vault.store(name, data_key)
    wrapped = stored(vault, "ada-train")
    assert wrapped in everything(tmp_path)  # control
    vault.destroy("ada-train")
    assert wrapped not in everything(tmp_path)
    assert set(vault.resources()) == {"ada-heldout"}
    for gone in (vault.fetch, vault.destroy):
        with pytest.raises(UnavailableError) as caught:
            gone("ada-train")
        assert caught.value.code == "no-key"
    assert stored(vault, "ada-heldout") in everything(tmp_path)


def stored(vault: Vault, name: str) -> bytes:
    query = "SELECT wrapped FROM keys WHERE resource = ?"
    row: tuple[bytes] = vault._file.connection.execute(query, (name,)).fetchone()
    return row[0]


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.mark.parametrize("name", ["ada", "bern"])
def test_another_identity_opens_nothing(
    vault: Vault, tmp_path: Path, name: str
) -> None:
    vault.store("rows", SecretKey.generate())
    other = Vault.open(tmp_path / "vault", create_identity(name))
    with pytest.raises(RefusedError) as caught:
        other.fetch("rows")
    assert caught.value.code == "vault-locked"
    other.close()


SWAPS = {
    "keys swapped": "UPDATE keys SET wrapped = (SELECT wrapped FROM keys WHERE "
    "resource = 'other'), salt = (SELECT salt FROM keys WHERE resource = 'other') "
    "WHERE resource = 'rows'",
    "commitment swapped": "UPDATE keys SET commitment = (SELECT commitment FROM keys "
    "WHERE resource = 'other') WHERE resource = 'rows'",
    "salt changed": "UPDATE keys SET salt = zeroblob(32)",
    "key changed": "UPDATE keys SET wrapped = zeroblob(48)",
}


@pytest.mark.parametrize("statement", SWAPS.values(), ids=SWAPS.keys())
def test_edited_rows_do_not_open(vault: Vault, tmp_path: Path, statement: str) -> None:
    vault.store("rows", SecretKey.generate())
    vault.store("other", SecretKey.generate())
    connection = sqlite3.connect(tmp_path / "vault")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises((RefusedError, IntegrityError)):
        vault.fetch("rows")


def test_full_disk_leaves_the_vault_as_it_was(vault: Vault) -> None:
    vault.store("first", SecretKey.generate())
    pages = vault._file.connection.execute("PRAGMA page_count").fetchone()[0]
    vault._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError) as caught:
        store_many(vault)
    assert caught.value.code == "disk-full"
    kept = vault.resources()
    assert "first" in kept
    for name in kept:
        vault.fetch(name)


def store_many(vault: Vault) -> None:
    for index in range(100):
        vault.store(f"r{index}", SecretKey.generate())


def test_a_vault_is_not_a_log(vault: Vault, identity: Identity, tmp_path: Path) -> None:
    with pytest.raises(MalformedError):
        AuditLog.open(tmp_path / "vault", identity, lambda: 0.0)
    with pytest.raises(UsageError):
        Vault.create(tmp_path / "vault", identity)
    with pytest.raises(UnavailableError):
        Vault.open(tmp_path / "nowhere", identity)


def test_a_vault_of_an_earlier_form_is_brought_up(
    vault: Vault, identity: Identity, tmp_path: Path
) -> None:
    key = SecretKey.generate()
    vault.store("rows", key)
    with sqlite3.connect(tmp_path / "vault") as connection:
        for table in ("jobs", "superseded", "shares"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    for _ in range(2):
        again = Vault.open(tmp_path / "vault", identity)
        assert again.fetch("rows").reveal(TOKEN) == key.reveal(TOKEN)
        status = again.checkpoints.status(JobKey(Digest.of(b"agreement"), "digits"))
        assert status == CheckpointStatus()
        again.close()


def test_a_vault_of_a_later_form_is_left_alone(
    vault: Vault, identity: Identity, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "vault") as connection:
        connection.execute(f"PRAGMA user_version = {FORM + 1}")
    connection.close()
    with pytest.raises(MalformedError) as caught:
        Vault.open(tmp_path / "vault", identity)
    assert caught.value.code == "vault-version"


def test_nothing_half_made_is_left(identity: Identity, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        Vault.create(tmp_path / "nofolder" / "vault", identity)
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(UsageError):
        Vault.create(tmp_path / "taken", identity)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken").read_text() == "precious"


def test_a_key_that_somebody_still_reads_is_not_called_destroyed(
    vault: Vault,
    identity: Identity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backup under way keeps the log, with the wrapped key in it."""
    for module in ("database", "vault.file"):
        monkeypatch.setattr(f"sealift.release.{module}.BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "vault"
    ours = Vault.open(path, identity)
    ours.store("ada-train", SecretKey.generate())
    wrapped = stored(ours, "ada-train")
    reader = database.open_database(path, APPLICATION_ID)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM keys").fetchone()
    with pytest.raises(UnavailableError) as caught:
        ours.destroy("ada-train")
    assert caught.value.code == "key-lingers"
    assert wrapped in everything(tmp_path)  # which is why
    for each in (reader, ours, vault):
        each.close()
    assert wrapped not in everything(tmp_path)


@pytest.mark.parametrize("end", ["commit", "finish"])
def test_a_share_that_somebody_still_reads_is_not_called_deleted(
    identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    for module in ("database", "vault.file"):
        monkeypatch.setattr(f"sealift.release.{module}.BUSY_TIMEOUT_S", 0.05)
    ours = Vault.create(tmp_path / "vault", identity)
    shares, job = ours.checkpoints, JobKey(Digest.of(b"agreement"), "heart-1")

    def deposit(number: int) -> None:
        mark = CheckpointMark(number, Digest.of(bytes([number])), ("ada",))
        shares.deposit(job, mark, SecretKey.generate())

    deposit(1)
    shares.commit(job)
    query = "SELECT wrapped FROM shares WHERE state = 'committed'"
    wrapped: bytes = ours._file.connection.execute(query).fetchone()[0]
    deposit(2)
    reader = database.open_database(tmp_path / "vault", APPLICATION_ID)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM shares").fetchone()
    with pytest.raises(UnavailableError) as caught:
        getattr(shares, end)(job)
    assert caught.value.code == "key-lingers"
    assert wrapped in everything(tmp_path)  # which is why
    reader.close()
    shares.overwrite()
    assert wrapped not in everything(tmp_path)
    ours.close()


def test_nobody_writes_between_deleting_a_key_and_overwriting_it(vault: Vault) -> None:
    """Else the log beside the file would be kept by what came between."""
    vault.store("rows", SecretKey.generate())
    file, taken = vault._file, []
    lock = file.lock

    class Noted:
        def __enter__(self) -> None:
            taken.append("lock")
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()

    file.lock = Noted()  # type: ignore[assignment]
    file.connection.set_trace_callback(taken.append)
    vault.destroy("rows")
    file.connection.set_trace_callback(None)
    assert taken.count("lock") == 1
    assert taken[0] == "lock"
    assert [each for each in taken if "DELETE" in each or "checkpoint" in each] == [
        "DELETE FROM keys WHERE resource = 'rows'",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ]


def test_a_full_disk_is_called_that(
    tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says "disk I/O error" where its index finds no room, and leaves files."""

    def fail(partial: Path, path: Path, *_: object) -> None:
        for suffix in ("-wal", "-shm"):
            partial.with_name(partial.name + suffix).touch()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
        with database.database_errors(path):
            raise error

    monkeypatch.setattr(database, "_fill_database", fail)
    for free, code in ((0, "disk-full"), (1 << 30, "database-unusable")):
        room = SimpleNamespace(f_bavail=free, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _, room=room: room)
        with pytest.raises(UnavailableError) as caught:
            Vault.create(tmp_path / "vault", identity)
        assert caught.value.code == code
        assert not list(tmp_path.iterdir())
