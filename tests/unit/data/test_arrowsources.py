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

from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import infer_schema, open_table
from sealift.errors import MalformedError
from tests.unit.data.sourcefiles import (
    SCHEMA,
    Arrays,
    make_arrays,
    read,
    save_to_disk,
    write_huggingface,
    write_parquet,
)


@pytest.fixture
def arrays() -> Arrays:
    return make_arrays()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["a"] * 3), "c has the type string.*--fields"),
        (pa.array([[1], [2], [3, 4]]), "of unknown length"),
        (pa.array([1, 2, 3], pa.uint64()), "c has the type uint64"),
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
            "row 2, column c: it has 1 v",
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
            "c is float64, and the schema requires float32",
        ),
        (
            pa.array(["a"]),
            Field("c", "int64"),
            "c is string, and the schema requires int64",
        ),
        (pa.array([1]), Field("c", "int64", (2,)), "1 numbers per row"),
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
    with pytest.raises(MalformedError, match="outside its folder"):
        infer_schema(tmp_path)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["c", "c"])
    pq.write_table(table, tmp_path / "t.parquet")
    saved = save_to_disk(tmp_path / "saved", table, {})
    for place in (str(tmp_path / "t.parquet"), saved):
        for options in (NO_OPTIONS, SourceOptions((("c", "c"),))):
            with pytest.raises(MalformedError, match="has two columns 'c'"):
                infer_schema(place, options)
            with pytest.raises(MalformedError, match="has two columns 'c'"):
                read(place, Schema((Field("c", "int64"),)), options)


def test_list_views_are_refused(tmp_path: Path) -> None:
    """Their offsets do not say where a list ends: rows 1 | 3, 4, 5 would pass."""
    offsets, sizes = pa.array([0, 2], pa.int32()), pa.array([1, 3], pa.int32())
    values = pa.array([1, 2, 3, 4, 5])
    column = pa.ListViewArray.from_arrays(offsets, sizes, values)
    saved = save_to_disk(tmp_path / "saved", pa.table({"c": column}), {})
    with pytest.raises(MalformedError, match=r"c is list_view.*int64"):
        read(saved, Schema((Field("c", "int64", (2,)),)))


def test_tensors_of_fixed_shape(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), (2, 3))
    storage = pa.array([[*range(6)], [*range(6, 12)]], pa.list_(pa.int64(), 6))
    column = pa.ExtensionArray.from_storage(kind, storage)
    pq.write_table(pa.table({"c": column}), tmp_path / "t.parquet")
    schema = infer_schema(tmp_path / "t.parquet")
    assert schema.fields == (Field("c", "int64", (2, 3)),)
    found = read(str(tmp_path / "t.parquet"), schema)
    assert found["c"].tolist() == np.arange(12).reshape(2, 2, 3).tolist()


def test_a_saved_dataset_without_rows(tmp_path: Path) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    saved = Path(
        save_to_disk(
            tmp_path / "saved",
            pa.table({"c": pa.array([None], kind)}),
            {"c": {"_type": "Image"}},
        )
    )
    told = {
        "huggingface": json.dumps({"info": {"features": {"c": {"_type": "Image"}}}})
    }
    empty = pa.table({"c": pa.array([], kind)}).replace_schema_metadata(told)
    file = next(saved.glob("*.arrow"))
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, empty.schema):
        pass
    with pytest.raises(MalformedError, match="saved has no rows"):
        infer_schema(saved)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", "[" * 100_000),
        ("state.json", '{"_data_files": 5}'),
        ("dataset_dict.json", '{"splits": 5}'),
    ],
)
def test_a_folder_that_says_something_else(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(MalformedError):
        infer_schema(tmp_path)


def test_an_index_of_pandas_is_left_out_by_the_advice(tmp_path: Path) -> None:
    columns = {
        "Mean 0": pa.array([0.5, 1.5]),
        "label": pa.array([0, 1]),
        "__index_level_0__": pa.array([7, 8]),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(MalformedError) as caught:
        infer_schema(path)
    assert caught.value.code == "no-schema"
    assert "--fields 'mean_0=Mean 0,label'" in str(caught.value.fix)
    options = SourceOptions(fields=(("mean_0", "Mean 0"), ("label", "label")))
    schema = infer_schema(path, options)
    assert [each.name for each in schema.fields] == ["mean_0", "label"]
    assert open_table(path, schema, options).rows == 2
    alone = pa.table({key: columns[key] for key in ("label", "__index_level_0__")})
    pq.write_table(alone, path)
    with pytest.raises(MalformedError, match="index that pandas wrote") as caught:
        infer_schema(path)
    assert str(caught.value.fix).endswith("--fields label")
