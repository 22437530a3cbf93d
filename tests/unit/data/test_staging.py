"""The folder that a sealing is made in: its own, and nobody else's files are touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sealift.data import staging
from sealift.data.card import ResourceCard
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
    monkeypatch.setattr(Path, "lstat", Path.stat)
    settled(out)
    assert not (mine / "thesis.tex").exists()


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
    with pytest.raises(SealiftError, match="not all files of n"):  # control
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
