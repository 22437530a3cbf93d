"""Copies of a broker's memory: whole, of one time, and never behind what others saw."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.codec import encode
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.keys import TOKEN
from sealift.errors import SealiftError
from sealift.release.broker import stores as backup
from sealift.release.broker.messages import BrokerRequest
from sealift.release.broker.stores import back_up, check_copy, restore, upgrade
from sealift.release.grant import ReleaseRequest
from sealift.release.vault.vault import FORM, Vault
from tests.sim.mutants import without
from tests.sim.owners import BrokerBox, BrokerSide, accelerator_peer, ask, make_broker
from tests.worlds.consortium import RUN, Consortium, make_consortium


@dataclass
class Home:
    """Ada's broker, its files, and a place for copies."""

    folder: Path
    consortium: Consortium
    box: BrokerBox
    released: int = 0

    @property
    def vault(self) -> Path:
        return self.folder / "ada.vault"

    @property
    def log(self) -> Path:
        return self.folder / "ada.log"

    def release(self) -> None:
        """One use, one entry."""
        self.released += 1
        peer = accelerator_peer(self.consortium, HpkePrivateKey.generate().public)
        side = BrokerSide(peer, bytes(32))
        challenge = self.released.to_bytes(32)
        request = ReleaseRequest("ada-train", "train", challenge, RUN)
        assert ask(self.box.broker, side, BrokerRequest(release=request)).release

    def copy(self, name: str) -> Path:
        back_up(self.vault, self.log, self.folder / name)
        return self.folder / name


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    consortium = make_consortium()
    box = make_broker(consortium, "ada", tmp_path)
    yield Home(tmp_path, consortium, box)
    box.close()


def rule(run: object) -> str:
    with pytest.raises(SealiftError) as caught:
        run()  # type: ignore[operator]
    return caught.value.code


def test_there_and_back(home: Home) -> None:
    """Made while the broker has both files open."""
    home.release()
    found = check_copy(home.copy("copy"))
    assert (found.form, found.log.releases) == (FORM, 1)
    restore(home.folder / "copy", home.folder / "v", home.folder / "l")
    identity = home.consortium.identities["ada"]
    vault = Vault.open(home.folder / "v", identity)
    expected = home.consortium.keys["ada-train"].reveal(TOKEN)
    assert vault.fetch("ada-train").reveal(TOKEN) == expected
    assert vault.ledger.uses("joint-digits", "ada-train") == 1
    vault.close()
    assert (home.folder / "v").stat().st_mode & 0o777 == 0o600
    assert (home.folder / "copy").stat().st_mode & 0o777 == 0o700


def test_copy_while_it_releases(home: Home) -> None:
    """Whatever happens in between, vault and log are of one time."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            home.release()

    worker = threading.Thread(target=go_on)
    worker.start()
    try:
        for number in range(5):
            home.copy(f"copy-{number}")
    finally:
        stop.set()
        worker.join()


def test_vault_first_would_forget_uses(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order: the log speaks of uses that the vault's copy does not know."""
    early, late = home.copy("early"), None
    home.release()
    late = home.copy("late")
    (early / "log").unlink()
    (late / "log").rename(early / "log")
    assert rule(lambda: check_copy(early)) == "copies-differ"
    without(backup, "_require_one_time")(monkeypatch)
    check_copy(early)


def test_behind_what_others_saw(home: Home) -> None:
    early = home.copy("early")
    home.release()
    seen = home.box.log.head()
    targets = (home.folder / "v", home.folder / "l")
    assert rule(lambda: restore(early, *targets, seen)) == "log-rolled-back"
    assert not any(target.exists() for target in targets)
    late = home.copy("late")
    assert restore(late, *targets, seen).log.continues == seen.body.size


def test_another_past(home: Home, tmp_path: Path) -> None:
    """A head of the same owner over other entries."""
    other = tmp_path / "other"
    other.mkdir()
    twin = make_broker(home.consortium, "ada", other)
    elsewhere = Home(other, home.consortium, twin)
    elsewhere.release()
    elsewhere.release()
    home.release()
    home.release()
    copy = home.copy("copy")
    head = twin.log.head()
    twin.close()
    assert rule(lambda: check_copy(copy, head)) == "log-forked"


def test_nothing_is_overwritten(home: Home) -> None:
    copy = home.copy("copy")
    assert rule(lambda: home.copy("copy")) == "output-exists"
    fresh = home.folder / "fresh"
    assert rule(lambda: restore(copy, home.vault, fresh)) == "output-exists"
    assert rule(lambda: restore(copy, fresh, home.log)) == "output-exists"
    assert not fresh.exists()


@pytest.mark.parametrize("name", ["vault", "log"])
def test_damage_is_found(home: Home, name: str) -> None:
    for _ in range(3):
        home.release()
    copy = home.copy("copy")
    raw = bytearray((copy / name).read_bytes())
    raw[: len(raw) // 2] = bytes(len(raw) // 2)
    (copy / name).write_bytes(raw)
    assert rule(lambda: check_copy(copy)) == "bad-database"
    (copy / name).unlink()
    assert rule(lambda: check_copy(copy))


def test_log_with_an_entry_taken_away(home: Home) -> None:
    home.release()
    copy = home.copy("copy")
    connection = sqlite3.connect(copy / "log")
    connection.execute("DELETE FROM entries WHERE position = 1")
    connection.commit()
    connection.close()
    assert rule(lambda: check_copy(copy)) == "log-damaged"


def make_form(path: Path, form: int) -> None:
    connection = sqlite3.connect(path)
    if form < FORM:
        for table in ("uses", "revocations", "seen"):
            connection.execute(f"DROP TABLE {table}")
    connection.execute(f"PRAGMA user_version = {form}")
    connection.commit()
    connection.close()


def test_upgrade_keeps_a_copy(home: Home) -> None:
    home.box.close()
    make_form(home.vault, 2)
    kept = home.folder / "kept"
    assert upgrade(home.vault, kept) == (2, FORM)
    assert rule(lambda: upgrade(home.vault, kept)) == "output-exists"
    for path, form in ((home.vault, FORM), (kept, 2)):
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA user_version").fetchone()[0] == form
        connection.close()
    Vault.open(home.vault, home.consortium.identities["ada"]).close()


def test_later_form_is_left_alone(home: Home) -> None:
    copy = home.copy("copy")
    make_form(copy / "vault", FORM + 1)
    assert rule(lambda: check_copy(copy)) == "vault-version"
    assert rule(lambda: upgrade(copy / "vault", home.folder / "k")) == "vault-version"


def test_commands(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.release()
    folder = home.folder
    stores = ["--vault", str(home.vault), "--log", str(home.log)]
    assert main(["broker", "backup", *stores, "-o", str(folder / "copy")]) == 0
    assert "releases     1" in capsys.readouterr().out
    home.release()
    (folder / "head.json").write_bytes(encode(home.box.log.head()))
    there = ["--vault", str(folder / "v"), "--log", str(folder / "l")]
    restoring = ["broker", "restore", str(folder / "copy"), *there]
    assert main([*restoring, "--head", str(folder / "head.json")]) == 5
    assert "log-rolled-back" in capsys.readouterr().err
    assert main(restoring) == 0
    said = capsys.readouterr()
    assert "none was compared with a head" in said.out
    assert "--head" in said.err
    upgrading = ["broker", "upgrade", "--vault", str(folder / "v")]
    assert main([*upgrading, "-o", str(folder / "before")]) == 0
    assert f"{FORM} -> {FORM}" in capsys.readouterr().out
    assert main(["broker", "backup", *stores, "-o", str(folder / "copy")]) == 2
