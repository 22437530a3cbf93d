"""The folder that a sealing is made in: its own, and nobody else's files are touched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sealift.crypto.keys import SecretKey
from sealift.data import staging
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.document import schema_from_plain
from sealift.data.sealing import seal_table
from sealift.errors import MalformedError, SealiftError, UnavailableError


def never(card: ResourceCard) -> bool:
    return False


def settled(out: Path) -> None:
    """As the next sealing of ``n`` does at first, and `sealift data seal` before that."""
    staging.finish_interrupted(out, "n", never)
    with staging.staged(out, "n", never):
        pass


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    return folder


def test_a_planted_link_empties_no_other_folder(tmp_path: Path, mine: Path) -> None:
    (out := tmp_path / "out").mkdir()
    (out / ".n.sealing").symlink_to(mine)
    with pytest.raises(UnavailableError) as caught:
        settled(out)
    assert caught.value.code == "cannot-write"
    assert (mine / "thesis.tex").exists()


def test_through_a_link_it_would_be_emptied(
    tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: what is left in a real one is removed, and links were followed once."""
    (out := tmp_path / "out").mkdir()
    (out / ".n.sealing").symlink_to(mine)
    monkeypatch.setattr(staging, "_FOLDER", staging._FOLDER & ~os.O_NOFOLLOW)
    monkeypatch.setattr(staging.Staging, "_names", lambda me: os.listdir(me.descriptor))
    monkeypatch.setattr(os.path, "samestat", lambda *_: True)
    settled(out)
    assert not (mine / "thesis.tex").exists()


def test_what_no_sealing_made_is_not_removed(tmp_path: Path) -> None:
    """Whoever may write to OUT can give the owner's own folder that name."""
    folder = staging.staging_folder(tmp_path, "n")
    folder.mkdir(mode=0o700)
    (folder / "thesis.tex").touch()
    (folder / "n.sealed").touch()
    with pytest.raises(UnavailableError, match=r"thesis\.tex"):
        settled(tmp_path)
    assert sorted(os.listdir(folder)) == ["n.sealed", "thesis.tex"]
    (folder / "thesis.tex").unlink()  # control: the rest is
    settled(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, mode: int
) -> None:
    folder = staging.staging_folder(tmp_path, "n")
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UnavailableError, match="other users may write"):
        settled(tmp_path)
    folder.chmod(0o700)
    settled(tmp_path)


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnavailableError, match="another user"):
        settled(tmp_path)


def sealed_beside_an_attacker(out: Path, mine: Path, victim: str) -> None:
    """Whoever may write to OUT plants a link once the sealing has begun to write."""
    rows = out.parent / "t.npz"
    np.savez(rows, x=np.zeros((200, 8), np.float32))
    schema = schema_from_plain(
        {"fields": [{"name": "x", "dtype": "float32", "shape": [8]}]}
    )

    def plant(_: object) -> None:
        if victim == "folder":
            folder = staging.staging_folder(out, "n")
            folder.rename(out / "gone")
            folder.symlink_to(mine)
        else:
            out.rename(out.parent / "gone")
            out.symlink_to(mine)
        raise UnavailableError("the vault is not there")

    with pytest.raises(UnavailableError, match="the vault"):
        seal_table(
            rows, schema, name="n", part="train", owner="north",
            key=SecretKey.generate(), out_dir=out, keep=plant,
        )  # fmt: skip


@pytest.mark.parametrize("victim", ["folder", "out"])
def test_a_link_planted_after_the_lock_does_nothing(
    tmp_path: Path, mine: Path, victim: str
) -> None:
    (out := tmp_path / "out").mkdir()
    before = mine / "n.sealed"
    before.write_text("precious")
    sealed_beside_an_attacker(out, mine, victim)
    assert sorted(os.listdir(mine)) == ["n.sealed", "thesis.tex"]
    assert os.listdir(tmp_path / "gone" if victim == "out" else out / "gone") == []


def test_by_its_name_the_folder_is_another_by_then(
    tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a sealing that names its folder again removes what is in the other."""
    (out := tmp_path / "out").mkdir()
    (mine / "n.sealed").write_text("precious")

    def by_name(me: staging.Staging, kept: object) -> bool:
        folder = staging.staging_folder(me.out_dir, "n")
        for path in folder.iterdir():
            path.unlink()
        return False

    monkeypatch.setattr(staging.Staging, "settle", by_name)
    sealed_beside_an_attacker(out, mine, "folder")
    assert os.listdir(mine) == []


@pytest.mark.parametrize("name", ["./x", "/../mine", "a/b", "", "*"])
def test_what_is_no_name_has_no_folder(tmp_path: Path, mine: Path, name: str) -> None:
    (tmp_path / "x.sealing").mkdir()
    (tmp_path / "x.sealing" / "kept").touch()
    (out := tmp_path / "out").mkdir()
    with pytest.raises(MalformedError, match="not a valid name"):
        staging.finish_interrupted(out, name, never)
    with pytest.raises(MalformedError), staging.staged(out, name, never):
        pass
    assert (tmp_path / "x.sealing" / "kept").exists()


def test_a_sealing_that_ends_while_it_is_looked_at_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = staging.staging_folder(tmp_path, "n")
    folder.mkdir()
    (folder / staging.MARK).touch()
    (folder / "n.sealed").touch()
    place = str(tmp_path / "n.sealed")
    with pytest.raises(SealiftError, match="some files of n"):  # control
        staging.demand_all_placed(place)
    found = staging.glob.iglob

    def late(pattern: str) -> object:
        marks = list(found(pattern))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        return marks

    monkeypatch.setattr(staging.glob, "iglob", late)
    staging.demand_all_placed(place)
