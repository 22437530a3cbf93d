"""Shards that cannot be read: the line names them, and the run goes on once they are back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from sealift.data import SealedDataLoader, SealedDataset
from sealift.data.urls import open_place
from sealift.errors import SealiftError, UnavailableError
from tests.sim.sealed_shards import Shards, seal_shards

ROWS = (40, 40, 40)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    for name in ("whole", "used", "others"):
        (tmp_path / name).mkdir()
    made = seal_shards(tmp_path / "used", ROWS)
    shutil.copytree(tmp_path / "used", tmp_path / "whole", dirs_exist_ok=True)
    seal_shards(tmp_path / "others", ROWS)
    return made


def drain(batches: Iterable[Any], seen: list[int]) -> None:
    for batch in batches:
        seen += batch["id"].tolist()


def rows_of(shards: Shards, **options: Any) -> list[int]:
    seen: list[int] = []
    with shards.open() as dataset, SealedDataLoader(dataset, 7, **options) as batches:
        drain(batches, seen)
    return seen


def put_back(path: Path) -> None:
    for suffix in (".sealed", ".resource.json"):
        file = path.with_suffix(suffix)
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)
        shutil.copy(path.parents[1] / "whole" / file.name, file)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def others(*suffixes: str) -> Callable[[Path], None]:
    """Those of another dataset, of the same name."""

    def replace(path: Path) -> None:
        for suffix in suffixes:
            file = path.with_suffix(suffix)
            shutil.copy(path.parents[1] / "others" / file.name, file)

    return replace


def sibling(path: Path) -> None:
    shutil.copy(path.with_name("part-0.sealed"), path)


OPENED: dict[str, tuple[Callable[[Path], object], str, int, str]] = {
    "gone": (Path.unlink, "shard-unreadable", 3, "part-1.sealed: No such file"),
    "a folder": (as_folder, "shard-unreadable", 3, "part-1.sealed: it is not a regular"),
    "a pipe": (as_pipe, "shard-unreadable", 3, "part-1.sealed: it is not a regular file"),
    "empty": (lambda p: os.truncate(p, 0), "bad-sealed-file", 6, "part-1.sealed is not"),
    "half": (half, "bad-sealed-file", 6, "part-1.sealed is not a complete sealed file"),
    "a flipped byte": (flip, "record-changed", 5, "of part-1.sealed was changed"),
    "another dataset's": (others(".sealed"), "wrong-data-key", 5, "part-1.sealed: the file"),
    "another dataset's, with its card": (
        others(".sealed", ".resource.json"), "wrong-data-key", 5, "open part-1.sealed",
    ),
    "another dataset's card": (
        others(".resource.json"), "content-mismatch", 5, "the card of part-1.sealed",
    ),
    "another shard": (sibling, "wrong-data-key", 5, "open part-1.sealed: the file was sealed with another"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("harm", "code", "exit_code", "said"), OPENED.values(), ids=OPENED
)
def test_when_it_is_opened(
    shards: Shards,
    harm: Callable[[Path], object],
    code: str,
    exit_code: int,
    said: str,
) -> None:
    harm(shards.places[1])
    with pytest.raises(SealiftError) as caught:
        rows_of(shards)
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
    assert caught.value.fix
    put_back(shards.places[1])
    assert len(rows_of(shards)) == sum(ROWS)


MEANWHILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (
        flip,
        "part-1.sealed was changed while it was in use: it was written to",
    ),
    "half": (half, "part-1.sealed was changed while it was in use: it is "),
    "empty": (lambda p: os.truncate(p, 0), "bytes shorter. Restore the file"),
}


@pytest.mark.parametrize(("harm", "said"), MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_while_the_loader_runs(
    shards: Shards, harm: Callable[[Path], object], said: str, num_workers: int
) -> None:
    options = {"shuffle": True, "window_bytes": 400, "num_workers": num_workers}
    whole = rows_of(shards, **options)
    dataset = shards.open()
    seen: list[int] = []
    with dataset, SealedDataLoader(dataset, 7, **options) as batches:
        running = iter(batches)
        drain([next(running)], seen)
        harm(shards.places[1])
        with pytest.raises(SealiftError, match=r"part-1\.sealed was changed") as caught:
            drain(running, seen)
        if not num_workers:  # a thread may open it before or after
            assert said in str(caught.value)
        assert caught.value.code in ("file-changed", "record-changed")
        assert seen == whole[: len(seen)]
        assert len(seen) < len(whole)
        put_back(shards.places[1])
        batches.load_state_dict(batches.state_dict())
        drain(batches, seen)
    assert seen == whole


def test_a_server_that_is_not_there_is_not_a_missing_card() -> None:
    with pytest.raises(
        UnavailableError, match=r"cannot read shard x\.sealed"
    ) as caught:
        SealedDataset("memory://nowhere/x.sealed", {})
    assert caught.value.code == "shard-unreadable"


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (None, "cannot read memory://x/y: there is no such file. Check"),
        (
            ConnectionError("refused by http://a:b@c/d?key=1"),
            "refused by http://c/d. Ch",
        ),
    ],
)
def test_why_a_url_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None, said: str
) -> None:
    """fsspec says "not found", and no more than the URL, also where nobody answers."""

    def fail(*words: object) -> None:
        raise FileNotFoundError("memory://x/y?key=1") from cause

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", fail)
    with pytest.raises(UnavailableError) as caught:
        open_place("memory://x/y").state()
    assert said in str(caught.value)
    assert "key=1" not in str(caught.value)
