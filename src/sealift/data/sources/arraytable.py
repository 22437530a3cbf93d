"""Tables that are one array per field: what .npy, .npz and .safetensors share.

Arrays are in C order; the first axis is the row. Streams: only the block at hand is in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np

from sealift.data.schema.rows import (
    Columns,
    Locate,
    bad_table,
    check_layout,
    check_lengths,
    check_names,
)
from sealift.data.schema.schema import DTYPES, Field, Schema
from sealift.data.sources.source import SourceOptions, unclear
from sealift.errors import MalformedError

Layout = tuple[np.dtype[Any], tuple[int, ...]]
ReadBlocks = Callable[[int], Iterator[Columns]]


@dataclass(frozen=True)
class ArrayTable:
    """An opened array file; see ``TableReader``."""

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


def check_layouts(layouts: Mapping[str, Layout], schema: Schema, source: str) -> int:
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


def schema_from_layouts(layouts: Mapping[str, Layout], source: str) -> Schema:
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
            f"{source}: {name[:80]} is {dtype}, which no schema has",
            fix=f"Convert it to one of {', '.join(DTYPES)}",
        )
    if not shape:
        raise unclear(f"{source}: {name[:80]} is a single number, not one per row")
    try:
        return Field(name, dtype.newbyteorder("<").name, shape[1:])
    except MalformedError as error:
        raise unclear(
            f"{source}: {name[:80]!r} makes no field",
            why=error.what,
            fix=f"Give it a name with --fields {quote('NAME=' + name[:80])}",
        ) from None
