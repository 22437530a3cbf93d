"""A .safetensors file: one tensor per field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from sealift.data.schema.rows import Columns, bad_table
from sealift.data.schema.schema import Schema
from sealift.data.sources.arrays import (
    ArrayTable,
    Layout,
    block_lengths,
    check_layouts,
    chosen_layouts,
    schema_from_layouts,
)
from sealift.data.sources.source import (
    Source,
    SourceOptions,
    refuse_image_options,
    with_suffix,
)

_DTYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def _open(place: str, schema: Schema, options: SourceOptions) -> ArrayTable:
    refuse_image_options(options, "a .safetensors file")
    path = Path(place)
    with _tensors(path) as tensors:
        layouts = chosen_layouts(_layouts(tensors, path.name), options)
    rows = check_layouts(layouts, schema, path.name)

    def read(rows_per_block: int) -> Iterator[Columns]:
        with _tensors(path) as tensors:
            now = chosen_layouts(_layouts(tensors, path.name), options)
            if now != layouts:
                raise bad_table(f"{path.name} changed while it was read")
            parts = {
                field.name: tensors.get_slice(options.column(field.name))
                for field in schema.fields
            }
            start = 0
            for count in block_lengths(rows, rows_per_block):
                yield {
                    name: part[start : start + count] for name, part in parts.items()
                }
                start += count

    return ArrayTable(rows, read)


def _infer(place: str, options: SourceOptions) -> Schema:
    path = Path(place)
    with _tensors(path) as tensors:
        layouts = chosen_layouts(_layouts(tensors, path.name), options)
    return schema_from_layouts(layouts, path.name)


def _tensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise bad_table(
            f"{path.name} is not a .safetensors file", why=str(error)
        ) from error


def _layouts(tensors: Any, source: str) -> dict[str, Layout]:
    return {
        name: _slice_layout(tensors.get_slice(name), name, source)
        for name in tensors.keys()  # noqa: SIM118 - it is not a mapping
    }


def _slice_layout(part: Any, name: str, source: str) -> Layout:
    dtype = _DTYPES.get(part.get_dtype())
    if dtype is None:
        raise bad_table(
            f"{source}: {name[:80]} is {part.get_dtype()}, which no schema has",
            fix=f"Convert it to one of {', '.join(_DTYPES.values())}",
        )
    return np.dtype(dtype).newbyteorder("<"), tuple(part.get_shape())


SOURCE = Source(".safetensors file", with_suffix(".safetensors"), _open, _infer)
