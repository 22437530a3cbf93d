"""One table in every format, for the tests of this room."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sealift.data.schema.schema import Field, Schema

SCHEMA = Schema(
    (
        Field("pixels", "float32", (2, 3), minimum=0.0, maximum=16.0),
        Field("label", "int64", classes=10),
        Field("weight", "float64", finite=False),
        Field("kept", "bool"),
    )
)
SUFFIXES = (".csv", ".npy", ".npz", ".safetensors")

Arrays = dict[str, Any]


def make_arrays(rows: int = 100, *, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=rows)
    weight[::7] = np.nan
    return {
        "pixels": (generator.random((rows, 2, 3)) * 16).astype(np.float32),
        "label": generator.integers(0, 10, rows),
        "weight": weight,
        "kept": generator.random(rows) > 0.5,
    }


def write_table(path: Path, arrays: Arrays) -> Path:
    """Write ``arrays`` in the format of the suffix."""
    {
        ".csv": _write_csv,
        ".npy": _write_npy,
        ".npz": lambda path, arrays: np.savez(path, **arrays),
        ".safetensors": lambda path, arrays: save_file(arrays, path),
    }[path.suffix](path, arrays)
    return path


def _write_npy(path: Path, arrays: Arrays) -> None:
    kinds = [(name, a.dtype, a.shape[1:]) for name, a in arrays.items()]
    table = np.zeros(len(arrays["label"]), dtype=kinds)
    for name, array in arrays.items():
        table[name] = array
    np.save(path, table)


def _write_csv(path: Path, arrays: Arrays) -> None:
    names: list[str] = []
    columns = []
    for name, array in arrays.items():
        flat = array.reshape(len(array), math.prod(array.shape[1:]))
        single = array.ndim == 1
        names += [name] if single else [f"{name}_{i}" for i in range(flat.shape[1])]
        columns += list(flat.T)
    lines = [",".join(names)]
    lines += [
        ",".join(repr(cell.item()) for cell in row)
        for row in zip(*columns, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
