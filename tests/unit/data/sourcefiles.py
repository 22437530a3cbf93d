"""One small table written as every kind of source that is a file or a folder."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sealift.data.schema.rows import Array, unpack
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import open_table

Arrays = dict[str, Array]
ROWS = 11


SCHEMA = Schema(
    (Field("x", "float32", (2, 3)), Field("label", "int64"), Field("kept", "bool"))
)


def make_arrays() -> Arrays:
    generator = np.random.default_rng(0)
    return {
        "x": generator.random((ROWS, 2, 3), dtype=np.float32),
        "label": np.arange(ROWS) % 3,
        "kept": generator.random(ROWS) > 0.5,
    }


def nested(array: Array) -> pa.Array:
    """Lists in lists, each of one length, as Arrow's type says."""
    values = pa.array(array.reshape(-1))
    for length in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    return values


def arrow_table(arrays: Arrays) -> pa.Table:
    return pa.table({name: nested(array) for name, array in arrays.items()})


def write_npy(folder: Path, arrays: Arrays) -> str:
    kinds = [(name, a.dtype, a.shape[1:]) for name, a in arrays.items()]
    table = np.zeros(ROWS, dtype=kinds)
    for name, array in arrays.items():
        table[name] = array
    np.save(folder / "t.npy", table)
    return str(folder / "t.npy")


def write_npz(folder: Path, arrays: Arrays) -> str:
    np.savez(folder / "t.npz", **arrays)
    return str(folder / "t.npz")


def write_safetensors(folder: Path, arrays: Arrays) -> str:
    save = importlib.import_module("safetensors.numpy").save_file
    save(arrays, folder / "t.safetensors")
    return str(folder / "t.safetensors")


def write_parquet(folder: Path, arrays: Arrays) -> str:
    pq.write_table(arrow_table(arrays), folder / "t.parquet", row_group_size=4)
    return str(folder / "t.parquet")


def write_parquet_folder(folder: Path, arrays: Arrays) -> str:
    table = arrow_table(arrays)
    (folder / "parts").mkdir()
    pq.write_table(table.slice(0, 4), folder / "parts" / "0.parquet")
    pq.write_table(table.slice(4), folder / "parts" / "1.parquet")
    return str(folder / "parts")


def write_huggingface(folder: Path, arrays: Arrays) -> str:
    """As ``datasets`` 5.2 writes it; a real one was compared when this was written."""
    features = {
        "x": {"shape": [2, 3], "dtype": "float32", "_type": "Array2D"},
        "label": {"dtype": "int64", "_type": "Value"},
        "kept": {"dtype": "bool", "_type": "Value"},
    }
    columns = {name: pa.array(array.tolist()) for name, array in arrays.items()}
    columns["x"] = columns["x"].cast(pa.list_(pa.list_(pa.float32())))
    return save_to_disk(folder / "saved", pa.table(columns), features)


def save_to_disk(place: Path, table: pa.Table, features: dict[str, Any]) -> str:
    told = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": told})
    place.mkdir()
    names = []
    for number, start in enumerate(range(0, len(table), 6)):
        names.append({"filename": f"data-{number:05}-of-00002.arrow"})
        with (
            pa.OSFile(str(place / names[-1]["filename"]), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table.slice(start, 6), max_chunksize=4)
    (place / "state.json").write_text(json.dumps({"_data_files": names}))
    (place / "dataset_info.json").write_text("{}")
    return str(place)


def pictures(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            pixels = generator.integers(0, 255, (4, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{number}.png")
    return folder / "pictures"


WRITERS = (
    write_npy, write_npz, write_safetensors, write_parquet, write_parquet_folder,
    write_huggingface,
)  # fmt: skip


def read(place: str, schema: Schema, options: SourceOptions = NO_OPTIONS) -> Arrays:
    blocks = open_table(place, schema, options).blocks(block_bytes=150)
    return unpack(b"".join(blocks), schema)


def same(found: Arrays, arrays: Arrays) -> None:
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
