"""A .npy file: one array for a schema of one field, or a structured array."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sealift.data.schema.rows import Array, Columns, bad_table
from sealift.data.schema.schema import Schema
from sealift.data.sources.arrays import (
    ArrayTable,
    Layout,
    block_lengths,
    check_layouts,
    chosen_layouts,
    demand_end,
    read_layout,
    read_rows,
    schema_from_layouts,
)
from sealift.data.sources.source import (
    Source,
    SourceOptions,
    refuse_image_options,
    unclear,
    with_suffix,
)


def _open(place: str, schema: Schema, options: SourceOptions) -> ArrayTable:
    refuse_image_options(options, "a .npy file")
    path = Path(place)
    with path.open("rb") as stream:
        dtype, shape = read_layout(stream, path.name)
    if dtype.names is None:
        layouts = {schema.fields[0].name: (dtype, shape)}
    else:
        layouts = chosen_layouts(_layouts(dtype, shape), options)
    rows = check_layouts(layouts, schema, path.name)

    def read(rows_per_block: int) -> Iterator[Columns]:
        with path.open("rb") as stream:
            if read_layout(stream, path.name) != (dtype, shape):
                raise bad_table(
                    f"{path.name} changed while it was read",
                    fix="Seal a copy that nothing writes to",
                )
            for count in block_lengths(rows, rows_per_block):
                block = read_rows(stream, dtype, shape, count, path.name)
                yield _named(block, schema, options)
            demand_end(stream, path.name)

    return ArrayTable(rows, read)


def _infer(place: str, options: SourceOptions) -> Schema:
    path = Path(place)
    with path.open("rb") as stream:
        dtype, shape = read_layout(stream, path.name)
    if dtype.names is not None:
        layouts = chosen_layouts(_layouts(dtype, shape), options)
    elif len(options.fields) == 1:
        layouts = {options.fields[0][0]: (dtype, shape)}
    else:
        raise unclear(
            f"{path.name} does not say what its array is called",
            fix="Name it with --fields NAME, or give --schema",
        )
    return schema_from_layouts(layouts, path.name)


def _layouts(dtype: np.dtype[Any], shape: tuple[int, ...]) -> dict[str, Layout]:
    names = dtype.names or ()
    inner = {name: dtype[name] for name in names}
    return {name: (each.base, shape + each.shape) for name, each in inner.items()}


def _named(block: Array, schema: Schema, options: SourceOptions) -> Columns:
    if block.dtype.names is None:
        return {schema.fields[0].name: block}
    return {field.name: block[options.column(field.name)] for field in schema.fields}


SOURCE = Source(".npy file", with_suffix(".npy"), _open, _infer)
