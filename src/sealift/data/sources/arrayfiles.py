"""Files of arrays: .npy, .npz and .safetensors; what they share is ``arrays``.

A .npy file is one array for a schema of one field, or a structured array; the others have
one array per field.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from sealift.data.schema.rows import Columns, bad_table
from sealift.data.sources.arrays import (
    ARCHIVE_ERRORS,
    ArrayTable,
    Layout,
    array_source,
    block_lengths,
    chosen_layouts,
    demand_end,
    read_layout,
    read_rows,
)
from sealift.data.sources.source import SourceOptions, unclear


def _look_npy(
    path: Path, options: SourceOptions, only: str | None
) -> dict[str, Layout]:
    with path.open("rb") as stream:
        return _fields_of(read_layout(stream, path.name), options, only, path.name)


def _fields_of(
    layout: Layout, options: SourceOptions, only: str | None, source: str
) -> dict[str, Layout]:
    dtype, shape = layout
    if dtype.names is not None:
        inner = {name: dtype[name] for name in dtype.names}
        found = {name: (each.base, shape + each.shape) for name, each in inner.items()}
        return chosen_layouts(found, options)
    if only is None:
        raise unclear(
            f"{source} has no name for its array",
            fix="Name it with --fields NAME, or give --schema",
        )
    return {only: layout}


def _read_npy(table: ArrayTable, rows_per_block: int) -> Iterator[Columns]:
    source, only = table.path.name, table.schema.fields[0].name
    with table.path.open("rb") as stream:
        layout = read_layout(stream, source)
        table.demand_same(_fields_of(layout, table.options, only, source))
        for count in block_lengths(table.rows, rows_per_block):
            block = read_rows(stream, *layout, count, source)
            if block.dtype.names is None:
                yield {only: block}
            else:
                column = table.options.column
                yield {each: block[column(each)] for each in table.layouts}
        demand_end(stream, source)


def _look_npz(path: Path, options: SourceOptions, _: str | None) -> dict[str, Layout]:
    with _archive(path) as archive:
        found = {
            _array_name(entry, path.name): _member_layout(
                archive, entry.filename, path.name
            )
            for entry in archive.infolist()
        }
    return chosen_layouts(found, options)


def _read_npz(table: ArrayTable, rows_per_block: int) -> Iterator[Columns]:
    source = table.path.name
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(table.path))
        streams = {
            name: stack.enter_context(archive.open(f"{table.options.column(name)}.npy"))
            for name in table.layouts
        }
        table.demand_same(
            {name: read_layout(stream, source) for name, stream in streams.items()}
        )
        for count in block_lengths(table.rows, rows_per_block):
            yield {
                name: read_rows(stream, *table.layouts[name], count, source)
                for name, stream in streams.items()
            }
        for stream in streams.values():
            demand_end(stream, source)


def _array_name(entry: zipfile.ZipInfo, source: str) -> str:
    """The array's name; demands what numpy writes.

    Other ways to compress expand some thousand bytes to any size in one step.
    """
    if not entry.filename.endswith(".npy"):
        raise bad_table(f"{source}: {entry.filename[:80]} is not a .npy array")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise bad_table(
            f"{source}: {entry.filename[:80]} has a compression that is not supported",
            fix="Save it with numpy.savez or savez_compressed",
        )
    return entry.filename.removesuffix(".npy")


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*ARCHIVE_ERRORS, ValueError) as error:
        raise bad_table(f"{path.name} is not a .npz file", why=str(error)) from error


def _member_layout(archive: zipfile.ZipFile, member: str, source: str) -> Layout:
    try:
        with archive.open(member) as stream:
            return read_layout(stream, source)
    except ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error


_SAFETENSORS: Final = {
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


def _look_safetensors(
    path: Path, options: SourceOptions, _: str | None
) -> dict[str, Layout]:
    with _tensors(path) as tensors:
        return _layouts(tensors, options, path.name)


def _read_safetensors(table: ArrayTable, rows_per_block: int) -> Iterator[Columns]:
    with _tensors(table.path) as tensors:
        table.demand_same(_layouts(tensors, table.options, table.path.name))
        column = table.options.column
        parts = {name: tensors.get_slice(column(name)) for name in table.layouts}
        start = 0
        for count in block_lengths(table.rows, rows_per_block):
            yield {name: part[start : start + count] for name, part in parts.items()}
            start += count


def _tensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise bad_table(
            f"{path.name} is not a .safetensors file", why=str(error)
        ) from error


def _layouts(tensors: Any, options: SourceOptions, source: str) -> dict[str, Layout]:
    found = {
        name: _slice_layout(tensors.get_slice(name), name, source)
        for name in tensors.keys()  # noqa: SIM118 - it is not a mapping
    }
    return chosen_layouts(found, options)


def _slice_layout(part: Any, name: str, source: str) -> Layout:
    dtype = _SAFETENSORS.get(part.get_dtype())
    if dtype is None:
        raise bad_table(
            f"{source}: {name[:80]} has the dtype {part.get_dtype()}, which is not supported",
            fix=f"Convert it to one of {', '.join(_SAFETENSORS.values())}",
        )
    return np.dtype(dtype).newbyteorder("<"), tuple(part.get_shape())


NPY: Final = array_source(".npy", _look_npy, _read_npy)
NPZ: Final = array_source(".npz", _look_npz, _read_npz)
SAFETENSORS: Final = array_source(".safetensors", _look_safetensors, _read_safetensors)
