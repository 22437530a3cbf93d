"""`sealift data seal` was stopped, and what is there then is not what is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sealift.cli import data
from sealift.cli.main import main
from sealift.crypto.identity import create_identity
from sealift.data import staging

IDENTITY = create_identity("north")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(data, "unlock", lambda *words: IDENTITY)
    monkeypatch.chdir(tmp_path)
    Path("passphrase").write_text("not asked\n")
    Path("s.toml").write_text('[[fields]]\nname = "n"\ndtype = "int64"\n')
    np.savez("t.npz", n=np.arange(24))
    return tmp_path


def seal(*words: str) -> int:
    return main(
        ["data", "seal", "t.npz", "--schema", "s.toml", "--name", "n", "--part", "train",
         "--vault", "v.db", "--key", "north.key", "--passphrase-file", "passphrase",
         "-o", "out", "--json", *words]
    )  # fmt: skip


class KilledError(BaseException):
    """In the place of a SIGKILL: nothing may run after it."""


def kill_once_kept(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    def strike(*_: object) -> None:
        raise KilledError

    settle, calls = staging.Staging.settle, [0]

    def settled_once(*words: object) -> bool:
        calls[0] += 1
        return settle(*words) if calls[0] == 1 else False  # type: ignore[arg-type]

    with monkeypatch.context() as context:
        context.setattr(staging.Staging, "place", strike)
        context.setattr(staging.Staging, "settle", settled_once)
        with pytest.raises(KilledError):
            seal("--shards", str(shards))


@pytest.mark.parametrize(("first", "then"), [(4, 2), (11, 10), (12, 11)])
def test_fewer_shards_are_not_half_of_the_rows(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: int,
    then: int,
) -> None:
    kill_once_kept(monkeypatch, first)
    code = seal("--shards", str(then))
    said = capsys.readouterr()
    if code == 0:  # under names of their own: all rows were sealed anew
        rows = [each["rows"] for each in json.loads(said.out)["shards"]]
        assert (len(rows), sum(rows)) == (then, 24)
    else:
        assert said.out == ""
        assert "sealed already, in out" in said.err


def test_as_many_shards_go_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control."""
    kill_once_kept(monkeypatch, 4)
    assert seal("--shards", "4") == 0
    said = capsys.readouterr()
    assert "t.npz was not read again" in said.err
    assert sum(each["rows"] for each in json.loads(said.out)["shards"]) == 24


def test_what_somebody_else_put_there_is_not_ours(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of another key, with the mark that says that their key is kept."""
    kill_once_kept(monkeypatch, 1)
    Path("out/.n.sealing/placing").touch()
    Path("v.db").unlink()
    assert seal("--shards", "1") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "[output-exists]" in said.err
    assert "was not read again" not in said.err


@pytest.mark.parametrize("standing", ["n.sealed", "n.resource.json"])
def test_what_stands_in_the_way_is_said_before_the_table_is_read(
    home: Path, capsys: pytest.CaptureFixture[str], standing: str
) -> None:
    """To read a million images takes minutes."""
    Path("out").mkdir()
    Path("out", standing).touch()
    Path("t.npz").unlink()
    assert seal() == 2
    assert f"out/{standing} already exists" in capsys.readouterr().err
