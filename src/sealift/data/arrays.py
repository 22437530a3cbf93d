"""Array files: .npy, .npz and .safetensors, one array per field of the schema.

A .npy file is one array for a schema of one field, or a structured array with the
schema's fields. Arrays are in C order; the first axis is the row. Streams: only the
block at hand is in memory. Nothing is unpickled: object arrays are refused by their
header, before anything else is read.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy_format
from safetensors import SafetensorError, safe_open

from sealift.data.rows import (
    Array,
    Columns,
    Locate,
    bad_table,
    check_layout,
    check_lengths,
    check_names,
)
from sealift.data.schema import Field, Schema

MAX_NPY_HEADER_BYTES: Final = 10_000  # numpy's own limit

_SAFETENSORS_DTYPES: Final = {
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

# What zipfile and numpy let through when their input is damaged; found by fuzzing.
_ARCHIVE_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)
_HEADER_ERRORS: Final = (
    ValueError,
    KeyError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
)

Layout = tuple[np.dtype[Any], tuple[int, ...]]
ReadBlocks = Callable[[int], Iterator[Columns]]


@dataclass(frozen=True)
class ArrayTable:
    """An opened array file; see ``table.TableReader``."""

    rows: int
    read: ReadBlocks

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        return self.read(rows_per_block)

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``; rows and elements count from 0."""

        def words(row: int, field: Field, element: int) -> str:
            index = np.unravel_index(element, field.shape) if field.shape else ()
            place = "".join(f"[{axis}]" for axis in (first_row + row, *index))
            return f"{field.name}{place}"

        return words


def open_npy(path: Path, schema: Schema) -> ArrayTable:
    """Open a .npy file.

    Raises:
        MalformedError: if it is not one, or its fields are not the schema's.
    """
    with path.open("rb") as stream:
        dtype, shape = _npy_layout(stream, path.name)
    layouts = _npy_fields(dtype, shape, schema)
    rows = _check_layouts(layouts, schema, path.name)

    def read(rows_per_block: int) -> Iterator[Columns]:
        with path.open("rb") as stream:
            if _npy_layout(stream, path.name) != (dtype, shape):
                raise bad_table(f"{path.name} changed while it was read")
            for count in _block_lengths(rows, rows_per_block):
                block = _read_rows(stream, dtype, shape, count, path.name)
                yield _named(block, schema)
            _demand_end(stream, path.name)

    return ArrayTable(rows, read)


def open_npz(path: Path, schema: Schema) -> ArrayTable:
    """Open a .npz file.

    Raises:
        MalformedError: if it is not one, or its arrays are not the schema's.
    """
    with _archive(path) as archive:
        layouts = {
            _array_name(member): _member_layout(archive, member, path.name)
            for member in archive.namelist()
        }
    rows = _check_layouts(layouts, schema, path.name)

    def read(rows_per_block: int) -> Iterator[Columns]:
        with ExitStack() as stack:
            archive = stack.enter_context(_archive(path))
            streams = {
                field.name: stack.enter_context(archive.open(f"{field.name}.npy"))
                for field in schema.fields
            }
            for name, stream in streams.items():
                if _npy_layout(stream, path.name) != layouts[name]:
                    raise bad_table(f"{path.name} changed while it was read")
            for count in _block_lengths(rows, rows_per_block):
                yield {
                    name: _read_rows(stream, *layouts[name], count, path.name)
                    for name, stream in streams.items()
                }
            for stream in streams.values():
                _demand_end(stream, path.name)

    return ArrayTable(rows, read)


def open_safetensors(path: Path, schema: Schema) -> ArrayTable:
    """Open a .safetensors file.

    Raises:
        MalformedError: if it is not one, or its tensors are not the schema's.
    """
    with _safetensors(path) as tensors:
        layouts = _safetensors_layouts(tensors, path.name)
    rows = _check_layouts(layouts, schema, path.name)

    def read(rows_per_block: int) -> Iterator[Columns]:
        with _safetensors(path) as tensors:
            if _safetensors_layouts(tensors, path.name) != layouts:
                raise bad_table(f"{path.name} changed while it was read")
            slices = {f.name: tensors.get_slice(f.name) for f in schema.fields}
            start = 0
            for count in _block_lengths(rows, rows_per_block):
                yield {
                    name: part[start : start + count] for name, part in slices.items()
                }
                start += count

    return ArrayTable(rows, read)


def _check_layouts(layouts: Mapping[str, Layout], schema: Schema, source: str) -> int:
    """Demand the schema's arrays; the number of their rows."""
    check_names(list(layouts), schema, source=source)
    for field in schema.fields:
        check_layout(*layouts[field.name], field, source=source)
    lengths = {field.name: layouts[field.name][1][0] for field in schema.fields}
    check_lengths(lengths, source=source)
    return lengths[schema.fields[0].name]


def _block_lengths(rows: int, rows_per_block: int) -> Iterator[int]:
    for start in range(0, rows, rows_per_block):
        yield min(rows_per_block, rows - start)


def _npy_layout(stream: IO[bytes], source: str) -> Layout:
    """Read the header of a .npy stream, up to the first byte of its content."""
    try:
        version = npy_format.read_magic(stream)
        read_header = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(
            stream, max_header_size=MAX_NPY_HEADER_BYTES
        )
    except _ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error
    except _HEADER_ERRORS as error:
        raise bad_table(f"{source} is not a .npy array", why=str(error)) from error
    if dtype.hasobject:
        raise bad_table(
            f"{source} holds Python objects", fix="Save plain numbers; no pickles here"
        )
    if fortran and len(shape) > 1:
        raise bad_table(
            f"{source} is in Fortran order", fix="Save np.ascontiguousarray(array)"
        )
    return dtype, shape


def _npy_fields(
    dtype: np.dtype[Any], shape: tuple[int, ...], schema: Schema
) -> dict[str, Layout]:
    if dtype.names is None:
        return {schema.fields[0].name: (dtype, shape)}
    layouts = {}
    for name in dtype.names:
        inner = dtype[name]
        layouts[name] = (inner.base, shape + inner.shape)
    return layouts


def _named(block: Array, schema: Schema) -> Columns:
    if block.dtype.names is None:
        return {schema.fields[0].name: block}
    return {field.name: block[field.name] for field in schema.fields}


def _read_rows(
    stream: IO[bytes],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    count: int,
    source: str,
) -> Array:
    wanted = count * math.prod(shape[1:]) * dtype.itemsize
    content = bytearray()
    while len(content) < wanted:
        part = _read(stream, wanted - len(content), source)
        if not part:
            raise bad_table(f"{source} ends before its last row", fix="Save it again")
        content += part
    return np.frombuffer(content, dtype=dtype).reshape(count, *shape[1:])


def _read(stream: IO[bytes], size_bytes: int, source: str) -> bytes:
    try:
        return stream.read(size_bytes)
    except _ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error


def _demand_end(stream: IO[bytes], source: str) -> None:
    """Refuse bytes after the last row; in an archive this also checks the sum."""
    if _read(stream, 1, source):
        raise bad_table(f"{source} has bytes after its last row", fix="Save it again")


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*_ARCHIVE_ERRORS, ValueError) as error:
        raise bad_table(f"{path.name} is not a .npz file", why=str(error)) from error


def _array_name(member: str) -> str:
    return member.removesuffix(".npy")


def _member_layout(archive: zipfile.ZipFile, member: str, source: str) -> Layout:
    try:
        with archive.open(member) as stream:
            return _npy_layout(stream, source)
    except _ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error


def _safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise bad_table(
            f"{path.name} is not a .safetensors file", why=str(error)
        ) from error


def _safetensors_layouts(tensors: Any, source: str) -> dict[str, Layout]:
    return {
        name: _slice_layout(tensors.get_slice(name), name, source)
        for name in tensors.keys()  # noqa: SIM118 - it is not a mapping
    }


def _slice_layout(part: Any, name: str, source: str) -> Layout:
    dtype = _SAFETENSORS_DTYPES.get(part.get_dtype())
    if dtype is None:
        raise bad_table(
            f"{source}: {name[:80]} is {part.get_dtype()}, which no schema has",
            fix=f"Convert it to one of {', '.join(_SAFETENSORS_DTYPES.values())}",
        )
    return np.dtype(dtype).newbyteorder("<"), tuple(part.get_shape())
