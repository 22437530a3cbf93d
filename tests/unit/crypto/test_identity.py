"""Identity files: who opens them, who may read them, and how writing can fail."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealift.codec import encode
from sealift.crypto import identity as identities
from sealift.crypto.identity import (
    Identity,
    backup_identity,
    create_identity,
    draw_passphrase,
    format_recovery_code,
    load_card,
    load_identity,
    restore_identity,
    save_identity,
)
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.errors import (
    MalformedError,
    RefusedError,
    SealiftError,
    UnavailableError,
    UsageError,
)

PASSPHRASE = "correct horse"
CLINIC = Identity("clinic", SecretKey(bytes(range(128))))
OTHER = Identity("other", SecretKey(bytes(range(128, 256))))


def named(change: dict[str, Any]) -> str:
    """A short name of a test for what it changes."""
    return str(change)[:40]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.identity"
    save_identity(CLINIC, path, PASSPHRASE)
    return path


def test_file_round_trip_at_the_real_cost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real_passphrase_cost: int
) -> None:
    monkeypatch.setattr(identities, "SCRYPT_LOG2_N", real_passphrase_cost)
    save_identity(CLINIC, tmp_path / "key", PASSPHRASE)
    assert json.loads((tmp_path / "key").read_bytes())["scrypt_log2_n"] >= 16
    loaded = load_identity(tmp_path / "key", PASSPHRASE)
    assert loaded.card == CLINIC.card
    assert loaded.seed.reveal(TOKEN) == CLINIC.seed.reveal(TOKEN)


def test_what_is_drawn_at_random_is_not_stretched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real_passphrase_cost: int
) -> None:
    monkeypatch.setattr(identities, "SCRYPT_LOG2_N", real_passphrase_cost)
    drawn = draw_passphrase()
    assert len(base64.urlsafe_b64decode(drawn)) == 18
    costs = []
    for name, passphrase in (("drawn", drawn), ("typed", str(drawn))):
        save_identity(CLINIC, tmp_path / name, passphrase)
        costs.append(json.loads((tmp_path / name).read_bytes())["scrypt_log2_n"])
        assert load_identity(tmp_path / name, str(drawn)).card == CLINIC.card
    assert costs == [10, real_passphrase_cost]


def test_a_loaded_identity_signs_opens_and_derives_as_before(path: Path) -> None:
    loaded = load_identity(path, PASSPHRASE)
    CLINIC.public_key.verify(Label.RECEIPT, b"m", loaded.sign(Label.RECEIPT, b"m"))
    assert loaded.hpke.open(b"", CLINIC.card.hpke.seal(b"", b"k")).reveal(TOKEN) == b"k"
    keys = [who.derive(Label.VAULT, b"c").reveal(TOKEN) for who in (loaded, CLINIC)]
    assert keys[0] == keys[1] != OTHER.derive(Label.VAULT, b"c").reveal(TOKEN)


@pytest.mark.parametrize("passphrase", ["", "correct hors", PASSPHRASE + " ", "\udcff"])
def test_wrong_passphrase(path: Path, passphrase: str) -> None:
    with pytest.raises(RefusedError) as caught:
        load_identity(path, passphrase)
    assert caught.value.code == "wrong-passphrase"
    assert PASSPHRASE not in str(caught.value)


def test_one_passphrase_in_two_normal_forms(tmp_path: Path) -> None:
    save_identity(CLINIC, tmp_path / "key", "schl\u00fcssel")
    assert load_identity(tmp_path / "key", "schlu\u0308ssel").card == CLINIC.card


def test_short_passphrase(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        save_identity(CLINIC, tmp_path / "key", "seven77")
    assert caught.value.code == "weak-passphrase"
    assert not list(tmp_path.iterdir())


def test_no_secret_in_the_clear(path: Path) -> None:
    raw, seed = path.read_bytes(), CLINIC.seed.reveal(TOKEN)
    for secret in (seed[:32], seed[32:]):
        assert encode(secret).strip(b'"')[:40] not in raw
        assert secret.hex().encode() not in raw


def rewrite(path: Path, change: dict[str, Any]) -> None:
    stored = json.loads(path.read_bytes())
    stored["card"] |= change.pop("card", {})
    path.write_bytes(encode(stored | change))


@pytest.mark.parametrize(
    "change",
    [
        {"card": {"name": "other"}},
        {"card": {"sign": OTHER.card.sign.to_text()}},
        {"card": {"hpke": OTHER.card.hpke.to_text()}},
        {"salt": "A" * 22},
        {"nonce": "A" * 16},
        {"sealed": ""},
        {"sealed": "A" * 40},
        {"scrypt_log2_n": 11},
    ],
    ids=named,
)
def test_altered_file_is_refused(path: Path, change: dict[str, Any]) -> None:
    rewrite(path, change)
    with pytest.raises(RefusedError):
        load_identity(path, PASSPHRASE)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scrypt_log2_n": 9}, "scrypt_log2_n"),
        ({"scrypt_log2_n": 21}, "scrypt_log2_n"),
        ({"scrypt_log2_n": -1}, "scrypt_log2_n"),
        ({"scrypt_log2_n": True}, "scrypt_log2_n"),
        ({"nonce": ""}, "nonce"),
        ({"nonce": "A" * 200}, "nonce"),
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"format": "sealift-agreement"}, "format"),
        ({"comment": "hello"}, "comment"),
        ({"card": {"name": "../clinic"}}, "card"),
        ({"card": {"sign": "ed25519:AA"}}, "card.sign"),
    ],
    ids=named,
)
def test_malformed_file_is_refused_before_any_work(
    path: Path, change: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "stretch", None)  # calling it is a TypeError
    rewrite(path, change)
    with pytest.raises(MalformedError) as caught:
        load_identity(path, PASSPHRASE)
    assert caught.value.field == field


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xff" * 99, b"[" * 9999, b"1" * 70000])
def test_other_files_are_malformed(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "key").write_bytes(raw)
    for read in (lambda p: load_identity(p, PASSPHRASE), load_card):
        with pytest.raises(MalformedError):
            read(tmp_path / "key")


def test_backup_round_trip(tmp_path: Path) -> None:
    code = backup_identity(CLINIC, tmp_path / "backup")
    assert len(code.replace("-", "")) == 32
    for spelled in (code, code.lower(), code.replace("-", " "), f" {code}\n"):
        restored = restore_identity(tmp_path / "backup", spelled)
        assert restored.seed.reveal(TOKEN) == CLINIC.seed.reveal(TOKEN)
    with pytest.raises(RefusedError) as caught:
        restore_identity(tmp_path / "backup", format_recovery_code(bytes(20)))
    assert caught.value.code == "wrong-recovery-code"


def test_backup_and_identity_are_told_apart(path: Path, tmp_path: Path) -> None:
    code = backup_identity(CLINIC, tmp_path / "backup")
    with pytest.raises(MalformedError, match="backup file"):
        load_identity(tmp_path / "backup", code.replace("-", ""))
    with pytest.raises(MalformedError, match="identity file"):
        restore_identity(path, PASSPHRASE)
    rewrite(tmp_path / "backup", {"purpose": "identity"})
    with pytest.raises(RefusedError):
        load_identity(tmp_path / "backup", code.replace("-", ""))


def test_card_file(tmp_path: Path) -> None:
    (tmp_path / "card").write_bytes(encode(CLINIC.card))
    assert load_card(tmp_path / "card") == CLINIC.card


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_readable_by_its_owner_only(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        save_identity(CLINIC, tmp_path / "key", PASSPHRASE)
        backup_identity(CLINIC, tmp_path / "backup")
    finally:
        os.umask(before)
    for name in ("key", "backup"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_never_overwrites(path: Path) -> None:
    before = path.read_bytes()
    for write in (
        lambda: save_identity(OTHER, path, PASSPHRASE),
        lambda: backup_identity(OTHER, path),
    ):
        with pytest.raises(UsageError, match="exists"):
            write()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_does_not_follow_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists"):
        save_identity(CLINIC, tmp_path / "link", PASSPHRASE)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["no/such/folder", "file/key", "k" * 250, "", "."])
def test_paths_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((UnavailableError, UsageError)) as caught:
        save_identity(CLINIC, tmp_path / name, PASSPHRASE)
    assert isinstance(caught.value, SealiftError)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "none", tmp_path / ("k" * 300)):
        with pytest.raises(UnavailableError, match="cannot read"):
            load_identity(missing, PASSPHRASE)


def test_failed_rename_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UnavailableError, match="Input/output error"):
        save_identity(CLINIC, tmp_path / "key", PASSPHRASE)
    assert not list(tmp_path.iterdir())


ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from sealift.crypto import identity
from sealift.errors import UnavailableError
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
identity.SCRYPT_LOG2_N = 10
try:
    identity.save_identity(identity.create_identity("a"), Path(sys.argv[1]), "12345678")
except UnavailableError as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(("limit", "exit_code"), [(0, 3), (1000, 3), (1 << 20, 0)])
def test_full_disk_leaves_nothing(tmp_path: Path, limit: int, exit_code: int) -> None:
    command = [sys.executable, "-c", ON_A_FULL_DISK, tmp_path / "key", str(limit)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == exit_code, ran.stderr
    left = [entry.name for entry in tmp_path.iterdir()]
    assert left == ([] if exit_code else ["key"])


def test_identity_needs_its_whole_seed() -> None:
    with pytest.raises(MalformedError):
        Identity("clinic", SecretKey.generate(32))


@pytest.mark.parametrize("name", ["", "A", "../a", "a b"])
def test_party_name(name: str) -> None:
    with pytest.raises(MalformedError, match="party name"):
        create_identity(name)
    with pytest.raises(MalformedError, match="party name"):
        dataclasses.replace(CLINIC.card, name=name)
