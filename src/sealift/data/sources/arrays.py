"""Tables that are one array per field: what .npy, .npz and .safetensors share.

Arrays are in C order; the first axis is the row. Streams: only the block at hand is in
memory.

The .npy form of an array: one header, then its numbers. Used for .npy and .npz.

Nothing is unpickled: object arrays are refused by their header, before anything else
is read.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy_format

from sealift.data.schema.rows import (
    Array,
    Columns,
    Locate,
    bad_table,
    check_layout,
    check_lengths,
    check_names,
)
from sealift.data.schema.schema import DTYPES, Field, Schema
from sealift.data.sources.source import (
    SourceOptions,
    TableSource,
    made_field,
    refuse_image_options,
    unclear,
    with_suffix,
)

Layout = tuple[np.dtype[Any], tuple[int, ...]]
ReadBlocks = Callable[["ArrayTable", int], Iterator[Columns]]
Look = Callable[[Path, SourceOptions, str | None], dict[str, Layout]]
"""(file, options, name of an array that has none of its own) to layouts by field."""


@dataclass(frozen=True)
class ArrayTable:
    """An opened array file; see ``TableReader``."""

    path: Path
    schema: Schema
    options: SourceOptions
    layouts: Mapping[str, Layout]
    rows: int
    read: ReadBlocks

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        return self.read(self, rows_per_block)

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``; rows and elements count from 0."""

        def words(row: int, field: Field, element: int) -> str:
            index = np.unravel_index(element, field.shape) if field.shape else ()
            place = "".join(f"[{axis}]" for axis in (first_row + row, *index))
            return f"{field.name}{place}"

        return words

    def demand_same(self, layouts: Mapping[str, Layout]) -> None:
        """Demand what was there when it was opened.

        Raises:
            MalformedError: if the file has other arrays now.
        """
        if layouts != self.layouts:
            raise bad_table(
                f"{self.path.name} changed while it was read",
                fix="Seal a copy that no program writes to",
            )


def array_source(suffix: str, look: Look, read: ReadBlocks) -> TableSource:
    """A kind of array file.

    Args:
        suffix: How its names end.
        look: The layouts by field.
        read: The rows of one that was opened.
    """

    def open_table(place: str, schema: Schema, options: SourceOptions) -> ArrayTable:
        refuse_image_options(options, f"a {suffix} file")
        path = Path(place)
        layouts = look(path, options, schema.fields[0].name)
        rows = _check_layouts(layouts, schema, path.name)
        return ArrayTable(path, schema, options, layouts, rows, read)

    def infer(place: str, options: SourceOptions) -> Schema:
        only = options.fields[0][0] if len(options.fields) == 1 else None
        path = Path(place)
        return _schema_from_layouts(look(path, options, only), path.name)

    return TableSource(f"{suffix} file", with_suffix(suffix), open_table, infer)


def _check_layouts(layouts: Mapping[str, Layout], schema: Schema, source: str) -> int:
    """Demand the schema's arrays; the number of their rows.

    Raises:
        MalformedError: names the first that is missing, extra or another.
    """
    check_names(list(layouts), schema, source=source)
    for field in schema.fields:
        check_layout(*layouts[field.name], field, source=source)
    lengths = {field.name: layouts[field.name][1][0] for field in schema.fields}
    check_lengths(lengths, source=source)
    return lengths[schema.fields[0].name]


def block_lengths(rows: int, rows_per_block: int) -> Iterator[int]:
    """How many rows each block has."""
    for start in range(0, rows, rows_per_block):
        yield min(rows_per_block, rows - start)


def chosen_layouts(
    layouts: Mapping[str, Layout], options: SourceOptions
) -> dict[str, Layout]:
    """Layouts by field, of those columns that are read."""
    chosen = options.chosen(list(layouts))
    return {field: layouts[column] for field, column in chosen}


def _schema_from_layouts(layouts: Mapping[str, Layout], source: str) -> Schema:
    """The schema that array headers say: dtypes and shapes, no bounds.

    Raises:
        MalformedError: ``no-schema``, if an array is of no kind that a schema has.
    """
    if not layouts:
        raise bad_table(f"{source} holds no arrays")
    return Schema(tuple(field_of(name, *layouts[name], source) for name in layouts))


def field_of(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], source: str
) -> Field:
    """The field of one array; ``shape`` has the row axis.

    Raises:
        MalformedError: ``no-schema``.
    """
    if dtype.newbyteorder("<").name not in DTYPES or dtype.hasobject:
        raise unclear(
            f"{source}: {name[:80]} has the dtype {dtype}, which is not supported",
            fix=f"Convert it to one of {', '.join(DTYPES)}",
        )
    if not shape:
        raise unclear(f"{source}: {name[:80]} is a single number, not one per row")
    return made_field(name, dtype.newbyteorder("<").name, shape[1:], source)


MAX_NPY_HEADER_BYTES: Final = 10_000  # numpy's own limit

# What zipfile and numpy let through when their input is damaged; found by fuzzing.
ARCHIVE_ERRORS: Final = (
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


def read_layout(stream: IO[bytes], source: str) -> Layout:
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
    except ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error
    except _HEADER_ERRORS as error:
        raise bad_table(f"{source} is not a .npy array", why=str(error)) from error
    if dtype.hasobject:
        raise bad_table(
            f"{source} holds Python objects",
            fix="Save plain numbers; pickled objects are not supported",
        )
    if fortran and len(shape) > 1:
        raise bad_table(
            f"{source} is in Fortran order", fix="Save np.ascontiguousarray(array)"
        )
    return dtype, shape


def read_rows(
    stream: IO[bytes],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    count: int,
    source: str,
) -> Array:
    """Read the next ``count`` rows.

    Raises:
        MalformedError: if the stream ends before.
    """
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
    except ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error


def demand_end(stream: IO[bytes], source: str) -> None:
    """Refuse bytes after the last row; in an archive this also checks the sum."""
    if _read(stream, 1, source):
        raise bad_table(f"{source} has bytes after its last row", fix="Save it again")
