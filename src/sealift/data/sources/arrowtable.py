"""Tables that Arrow reads in batches: what Parquet and Arrow files share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sealift.data.schema.rows import Array, Columns, Locate, bad_table, check_names
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.arrowcolumns import field_of_type, to_array
from sealift.data.sources.extras import require
from sealift.data.sources.source import SourceOptions
from sealift.errors import MalformedError

Batches = Callable[[int, list[str]], Iterator[Any]]
"""(rows per batch, columns) to ``pyarrow.RecordBatch``es of at most as many rows."""
Convert = Callable[[Any, Field, int], Array]
"""(column, field, number of its first row) to an array."""


@dataclass
class ArrowTable:
    """An opened table; see ``TableReader``.

    Attributes:
        name: The file's name, for errors.
        schema: What rows are to be.
        rows: How many.
        batches: Reads it from the start.
        options: Which column each field is in.
        convert: For columns that are no numbers, by field.
    """

    name: str
    schema: Schema
    rows: int
    batches: Batches
    options: SourceOptions
    convert: dict[str, Convert] = field(default_factory=dict)

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        wanted = [self.options.column(each.name) for each in self.schema.fields]
        done = 0
        for batch in self.batches(rows_per_block, wanted):
            with reading(self.name):
                batch.validate(full=True)  # offsets that lead elsewhere, above all
            for start in range(0, len(batch), rows_per_block):
                part = batch.slice(start, rows_per_block)
                yield {
                    each.name: self._array(part, each, done)
                    for each in self.schema.fields
                }
                done += len(part)

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``; rows count from 0."""

        def words(row: int, spec: Field, element: int) -> str:
            column = self.options.column(spec.name)
            return f"row {first_row + row}, column {column}"

        return words

    def _array(self, batch: Any, spec: Field, first_row: int) -> Array:
        column = batch.column(self.options.column(spec.name))
        if spec.name in self.convert:
            return self.convert[spec.name](column, spec, first_row)
        return to_array(column, spec, source=self.name, first_row=first_row)


class reading:  # noqa: N801 - used as a context manager, like contextlib's
    """Turn what pyarrow raises about a file's content into ``MalformedError``."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Translate; an ``OSError`` with a number is the disk's, and stays."""
        lib = require("pyarrow", extra="tables", what="Arrow")
        damaged = isinstance(error, lib.ArrowException) or (
            isinstance(error, OSError) and error.errno is None
        )
        if damaged and not isinstance(error, MalformedError):
            why = str(error).rstrip(".")
            raise bad_table(f"{self._source} is damaged", why=why) from error


def check_columns(
    columns: list[str], schema: Schema, options: SourceOptions, source: str
) -> None:
    """Demand that there is a column for every field, and no other that was not left out.

    Raises:
        MalformedError: names the first that is missing or extra.
    """
    chosen = [name for name, _ in options.chosen(columns)]
    check_names(chosen, schema, source=source)


def demand_distinct(names: list[str], source: str) -> None:
    """Refuse a table in which a name does not say which column it is.

    Raises:
        MalformedError: names the column.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            raise bad_table(
                f"{source} has two columns {name[:80]!r}", fix="Rename one of them"
            )


def schema_of_arrow(kinds: Any, options: SourceOptions, source: str) -> Schema:
    """The schema that an Arrow schema says.

    Raises:
        MalformedError: ``no-schema``.
    """
    chosen = options.chosen(list(kinds.names))
    if not chosen:
        raise bad_table(f"{source} has no columns")
    return Schema(
        tuple(
            field_of_type(name, column, kinds.field(column).type, source)
            for name, column in chosen
        )
    )
