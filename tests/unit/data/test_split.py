"""Rows to measure on, chosen from an owner's table by a hash with its key."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from sealift.cli.meeting.guest import brought_by
from sealift.crypto.identity import Identity, create_identity
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import NO_OPTIONS
from sealift.data.sources.table import open_table
from sealift.errors import MalformedError, UsageError
from sealift.meet.table import BroughtTable

SCHEMA = Schema((Field("x", "int64"), Field("y", "int64")))


def sides(
    path: Path, identity: Identity, share: str = "20%"
) -> tuple[set[bytes], set[bytes], int]:
    """The different rows of both sides, and how many rows they have together."""
    args = argparse.Namespace(
        data=path, heldout=Path(share), table=None, fields=None, image_size=None,
        image_mode=None,
    )  # fmt: skip
    found, rows = [], 0
    for each in brought_by(args, identity):
        table = open_table(path, SCHEMA, each.options)
        content = b"".join(table.blocks(block_bytes=160))
        assert len(content) == table.total_bytes
        rows += table.rows
        found.append({content[at : at + 16] for at in range(0, len(content), 16)})
    return found[0], found[1], rows


def write(path: Path, values: np.ndarray) -> Path:
    np.savez(path, x=values, y=values * 2)
    return path


def test_a_row_stays_on_its_side_and_duplicates_fall_together(tmp_path: Path) -> None:
    identity = create_identity("north")
    values = np.arange(1000)
    train, held, rows = sides(write(tmp_path / "a.npz", values), identity)
    assert rows == 1000
    assert not train & held
    assert 130 < len(held) < 270
    # In another order, among other rows, twice.
    twice = np.concatenate([values[::-1], np.arange(5000, 5100), values])
    more_train, more_held, rows = sides(write(tmp_path / "b.npz", twice), identity)
    assert rows == len(twice)
    assert train < more_train
    assert held < more_held
    assert not more_train & more_held


def test_another_owner_holds_out_other_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", np.arange(1000))
    mine = sides(path, create_identity("north"))[1]
    theirs = sides(path, create_identity("north"))[1]
    assert len(mine & theirs) < len(mine) / 2


@pytest.mark.parametrize("share", ["0%", "100%", "250%"])
def test_a_share_of_no_rows_or_all_is_refused(tmp_path: Path, share: str) -> None:
    path = write(tmp_path / "a.npz", np.arange(10))
    with pytest.raises(UsageError, match="1% to 99%"):
        sides(path, create_identity("north"), share)


def test_too_few_rows_held_out_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", np.arange(40))
    args = argparse.Namespace(
        data=path, heldout=Path("20%"), table=None, fields=None, image_size=None,
        image_mode=None,
    )  # fmt: skip
    heldout = brought_by(args, create_identity("north"))[1]
    with pytest.raises(MalformedError, match=r"20 % held out.*at least 30") as caught:
        heldout.count_rows(SCHEMA, 30)
    assert caught.value.code == "too-few-rows"


def test_what_changed_between_counting_and_sealing_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")

    def put(values: np.ndarray) -> None:
        table = arrow.table({"x": values, "y": values * 2})
        parquet.write_table(table, folder / "0.parquet")

    put(np.arange(200))
    args = argparse.Namespace(
        data=folder, heldout=Path("50%"), table=None, fields=None, image_size=None,
        image_mode=None,
    )  # fmt: skip
    train = brought_by(args, create_identity("north"))[0]
    table, stamp = open_table(folder, SCHEMA, train.options), train.stamp
    (folder / "t.sealed").touch()  # as `data seal .` does
    list(table.blocks())
    put(np.arange(1000, 1200))
    assert train.stamp != stamp
    with pytest.raises(MalformedError, match="changed while it was read"):
        list(table.blocks())


def test_what_lies_beside_the_files_of_a_folder_is_no_change(tmp_path: Path) -> None:
    """Of `join INVITATION .` the vault and the logs lie there, too."""
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"x": [1.0]}), tmp_path / "0.parquet")
    table = BroughtTable("train", tmp_path, NO_OPTIONS)
    stamp = table.stamp
    (tmp_path / "vault.db").write_bytes(b"written")
    assert table.stamp == stamp
    parquet.write_table(arrow.table({"x": [1.0, 2.0]}), tmp_path / "1.parquet")
    assert table.stamp != stamp
