from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.table import open_table
from sealift.errors import MalformedError, UnavailableError, UsageError
from tests.unit.data.tables import SCHEMA, SUFFIXES, make_arrays, write_table


def read(path: Path, schema: Schema = SCHEMA, *, block_bytes: int = 1000) -> bytes:
    return b"".join(open_table(path, schema).blocks(block_bytes=block_bytes))


def refused(path: Path, schema: Schema = SCHEMA) -> str:
    with pytest.raises(MalformedError) as caught:
        read(path, schema)
    line = str(caught.value)
    assert path.name in line
    assert "\n" not in line
    return line


@pytest.mark.long
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    arrays = make_arrays()
    path = write_table(tmp_path / f"t{suffix}", arrays)
    columns = unpack(read(path), SCHEMA)
    assert set(columns) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(columns[name], array)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("block_bytes", [1, 56, 57, 1 << 20])
def test_blocks_are_whole_rows_of_any_size(
    tmp_path: Path, suffix: str, block_bytes: int
) -> None:
    path = write_table(tmp_path / f"t{suffix}", make_arrays(11))
    table = open_table(path, SCHEMA)
    blocks = list(table.blocks(block_bytes=block_bytes))
    assert all(len(block) % SCHEMA.row_bytes == 0 for block in blocks)
    assert len(b"".join(blocks)) == table.total_bytes == 11 * SCHEMA.row_bytes
    assert b"".join(table.blocks()) == b"".join(blocks)  # it can be read again


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("pixels", np.nan, "nan is not finite"),
        ("pixels", np.inf, "inf is not finite"),
        ("pixels", 16.5, "16.5 is not at most 16.0"),
        ("pixels", -0.5, "-0.5 is not at least 0"),
        ("label", 10, "10 is not at most 9"),
        ("label", -1, "-1 is not at least 0"),
    ],
)
def test_a_value_that_does_not_fit_names_its_place(
    tmp_path: Path, suffix: str, name: str, value: float, rule: str
) -> None:
    arrays = make_arrays()
    arrays[name].reshape(100, -1)[77, -1] = value
    path = write_table(tmp_path / f"t{suffix}", arrays)
    line = refused(path)
    assert rule in line
    if suffix == ".csv":
        assert f"line 79, column {name}" in line  # the header is line 1
    else:
        assert f"{name}[77]" in line


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_wrong_columns_are_refused(tmp_path: Path, suffix: str) -> None:
    arrays = make_arrays(5)
    missing = {name: array for name, array in arrays.items() if name != "label"}
    if suffix != ".npy":
        path = write_table(tmp_path / f"missing{suffix}", missing)
        assert "'label'" in refused(path)
    path = write_table(tmp_path / f"extra{suffix}", {**arrays, "name": arrays["label"]})
    assert "'name'" in refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_table_without_rows_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path / f"t{suffix}", make_arrays(0))
    assert "no rows" in refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_truncation_is_refused(tmp_path: Path, suffix: str) -> None:
    raw = write_table(tmp_path / f"whole{suffix}", make_arrays(20)).read_bytes()
    path = tmp_path / f"cut{suffix}"
    # A CSV file cut at the end of a line, or of a digit, is a shorter CSV file.
    cuts = range(0, len(raw) - 1, 37) if suffix != ".csv" else [0, 3, len(raw) - 4]
    for cut in cuts:
        path.write_bytes(raw[:cut])
        refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_garbage_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    for garbage in (
        b"",
        b"\x00" * 500,
        b"\xff" * 500,
        b"hello\n1\n",
        b"PK\x03\x04" * 9,
    ):
        path.write_bytes(garbage)
        refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_table_that_changes_while_read_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path / f"t{suffix}", make_arrays(20))
    table = open_table(path, SCHEMA)
    write_table(path, make_arrays(19))
    with pytest.raises(MalformedError):
        list(table.blocks())


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
def test_memory_does_not_grow_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    schema = Schema((Field("x", "float32", (8,)),))
    for module in ("blocks", "reader", "structure"):  # so that a small table has many
        size = f"sealift.data.sources.csvfiles.{module}._BLOCK_BYTES"
        monkeypatch.setattr(size, 1 << 16)
    peaks = []
    for rows in (12_000, 36_000) if suffix == ".csv" else (500, 64_000):
        path = tmp_path / f"t{rows}{suffix}"
        array = np.ones((rows, 8), np.float32)
        if suffix == ".npy":
            np.save(path, array)
        else:
            write_table_of_ones(path, rows)
        tracemalloc.start()
        for _ in open_table(path, schema).blocks(block_bytes=1 << 14):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 100_000


def write_table_of_ones(path: Path, rows: int) -> None:
    header = ",".join(f"x{index}" for index in range(8))
    path.write_text(header + "\n" + (",".join(["1"] * 8) + "\n") * rows)


def test_unknown_suffix_and_missing_file(tmp_path: Path) -> None:
    (tmp_path / "t.pkl").write_bytes(b"x")
    with pytest.raises(UsageError) as caught:
        open_table(tmp_path / "t.pkl", SCHEMA)
    assert caught.value.code == "unknown-source"
    (tmp_path / "folder.csv").mkdir()
    for name, words in (("t.csv", "no such file"), ("folder.csv", "a directory")):
        with pytest.raises(UnavailableError, match=words):
            open_table(tmp_path / name, SCHEMA)
