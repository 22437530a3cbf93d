"""One source sealed as several shards."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealift.channel.record import outputfile
from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataset
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.rows import Array
from sealift.data.sealing import seal_shards, shard_names
from sealift.errors import MalformedError, UnavailableError, UsageError
from tests.sim.sealed_shards import ID_SCHEMA, arrays_of

ROWS = 100


@pytest.fixture
def arrays() -> dict[str, Array]:
    return arrays_of(ROWS)


def seal(
    folder: Path, arrays: dict[str, Array], count: int, **changes: Any
) -> dict[str, SecretKey]:
    np.savez(folder / "t.npz", **arrays)
    keys = {name: SecretKey.generate() for name in shard_names("part", count)}
    words = {
        "name": "part",
        "part": "train",
        "owner": "north",
        "out_dir": folder,
        "record_bytes": 200,
    }
    seal_shards(folder / "t.npz", ID_SCHEMA, keys=keys, **{**words, **changes})
    return keys


@pytest.mark.parametrize("count", [1, 3, 11, ROWS])
def test_all_rows_in_their_order(
    tmp_path: Path, arrays: dict[str, Array], count: int
) -> None:
    keys = seal(tmp_path, arrays, count)
    with SealedDataset(tmp_path / "part-*.sealed", keys) as dataset:
        assert dataset.rows(range(ROWS))["id"].tolist() == list(range(ROWS))
        rows = [shard.rows for shard in dataset.shards.layout.shards]
    assert len(rows) == count
    assert max(rows) - min(rows) <= 1


def test_rows_that_come_in_several_blocks(
    tmp_path: Path, arrays: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sealift.data.sources.table.Table.blocks.__kwdefaults__", {"block_bytes": 100}
    )
    keys = seal(tmp_path, arrays, 7)
    with SealedDataset(tmp_path / "part-*.sealed", keys) as dataset:
        assert dataset.rows(range(ROWS))["id"].tolist() == list(range(ROWS))


def test_names_sort_as_they_are_numbered() -> None:
    assert shard_names("t", 2) == ["t-0", "t-1"]
    names = shard_names("t", 11)
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("t-00", "t-10")
    for count in (0, -1, 257):
        with pytest.raises(UsageError, match="1 to 256 shards"):
            shard_names("t", count)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"t.npz"}


def test_a_bad_row_in_the_last_shard_leaves_none(
    tmp_path: Path, arrays: dict[str, Array]
) -> None:
    arrays["x"][-1] = np.nan
    with pytest.raises(MalformedError, match="not finite"):
        seal(tmp_path, arrays, 4)
    assert not left(tmp_path)
    with pytest.raises(UsageError, match="100 rows are too few for 101 shards"):
        seal(tmp_path, arrays, 101)
    assert not left(tmp_path)


@pytest.mark.parametrize("strikes", range(9))
def test_a_disk_that_fails_wherever_leaves_none(
    tmp_path: Path,
    arrays: dict[str, Array],
    monkeypatch: pytest.MonkeyPatch,
    strikes: int,
) -> None:
    """At each of the nine files: schema, four shards, four cards."""
    renamed: list[Path] = []
    rename = outputfile._rename

    def fail(partial: str, folder: int, path: Path) -> None:
        if len(renamed) == strikes:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise outputfile.write_failed(path, full)
        renamed.append(path)
        rename(partial, folder, path)

    monkeypatch.setattr(outputfile, "_rename", fail)
    with pytest.raises(UnavailableError, match="disk is full"):
        seal(tmp_path, arrays, 4, schema_file=True)
    assert not left(tmp_path)


def test_keys_are_kept_when_all_is_sealed(
    tmp_path: Path, arrays: dict[str, Array]
) -> None:
    kept: list[str] = []

    def keep(cards: tuple[ResourceCard, ...]) -> None:
        kept.extend(card.name for card in cards)
        assert len(list(tmp_path.glob(".part.sealing/*.sealed"))) == 3
        assert left(tmp_path) == {".part.sealing"}

    seal(tmp_path, arrays, 3, keep=keep)
    assert kept == ["part-0", "part-1", "part-2"]


def test_what_stands_there_is_not_touched(
    tmp_path: Path, arrays: dict[str, Array]
) -> None:
    (tmp_path / "part-2.sealed").write_text("mine")
    with pytest.raises(UsageError, match=r"part-2.sealed already exists"):
        seal(tmp_path, arrays, 4)
    assert left(tmp_path) == {"part-2.sealed"}
