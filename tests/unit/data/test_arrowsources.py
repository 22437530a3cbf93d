"""Parquet and saved Hugging Face datasets: columns that fit, and those that do not."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sealift.data.schema import Field, Schema
from sealift.data.table import infer_schema
from sealift.errors import MalformedError
from tests.unit.data.sourcefiles import (
    SCHEMA,
    Arrays,
    make_arrays,
    read,
    write_huggingface,
    write_parquet,
)


@pytest.fixture
def arrays() -> Arrays:
    return make_arrays()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["a"] * 3), "c is string.*--fields"),
        (pa.array([[1], [2], [3, 4]]), "whose length it does not say"),
        (pa.array([1, 2, 3], pa.uint64()), "c is uint64"),
        (pa.array([1, 2, 3], pa.timestamp("s")), "timestamp"),
    ],
)
def test_columns_that_say_no_schema(tmp_path: Path, column: Any, words: str) -> None:
    pq.write_table(pa.table({"c": column}), tmp_path / "t.parquet")
    with pytest.raises(MalformedError, match=words) as caught:
        infer_schema(tmp_path / "t.parquet")
    assert caught.value.code == "no-schema"


@pytest.mark.parametrize(
    ("column", "field", "words"),
    [
        (pa.array([1, 2, None]), Field("c", "int64"), "row 2, column c: there is no v"),
        (
            pa.array([[1, 2], [3, 4], [5]]),
            Field("c", "int64", (2,)),
            "row 2, column c: 1 v",
        ),
        (
            pa.array([[1, 2], [3, None]]),
            Field("c", "int64", (2,)),
            "row 1, column c: th",
        ),
        (
            pa.array([1, 2, 300]),
            Field("c", "uint8"),
            "row 2, column c: 300 does not fit",
        ),
        (
            pa.array([1.5]),
            Field("c", "float32"),
            "c is float64, the schema says float32",
        ),
        (pa.array(["a"]), Field("c", "int64"), "c is string, the schema says int64"),
        (pa.array([1]), Field("c", "int64", (2,)), "1 numbers in a row"),
    ],
)
def test_bad_columns_are_named(
    tmp_path: Path, column: Any, field: Field, words: str
) -> None:
    pq.write_table(pa.table({"c": column}), tmp_path / "t.parquet")
    with pytest.raises(MalformedError, match=words):
        read(str(tmp_path / "t.parquet"), Schema((field,)))


def test_lists_of_one_length_with_a_schema(tmp_path: Path) -> None:
    column = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    pq.write_table(pa.table({"c": column}), tmp_path / "t.parquet")
    schema = Schema((Field("c", "int16", (2, 2)),))
    found = read(str(tmp_path / "t.parquet"), schema)
    assert found["c"].reshape(-1).tolist() == list(range(1, 9))


def test_damaged_arrow_files(tmp_path: Path, arrays: Arrays) -> None:
    for write in (write_parquet, write_huggingface):
        place = Path(write(tmp_path, arrays))
        file = next(place.glob("*.arrow")) if place.is_dir() else place
        raw = file.read_bytes()
        for cut in range(0, len(raw), max(1, len(raw) // 9)):
            file.write_bytes(raw[:cut])
            with pytest.raises(MalformedError):
                read(str(place), SCHEMA)
        generator = np.random.default_rng(1)
        for _ in range(60):  # a flip may be another value, never a crash
            spoilt = bytearray(raw)
            spoilt[generator.integers(len(raw))] ^= 1 << int(generator.integers(8))
            file.write_bytes(spoilt)
            with contextlib.suppress(MalformedError):
                read(str(place), SCHEMA)


def test_a_saved_dataset_of_several_splits(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(MalformedError, match=r"several splits.*train, .*test"):
        infer_schema(tmp_path)
    (tmp_path / "dataset_dict.json").unlink()
    state = {"_data_files": [{"filename": "../elsewhere.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(MalformedError, match="not in its folder"):
        infer_schema(tmp_path)
