"""CSV tables: a header row, then one row of text per row.

A field of shape ``()`` is the column of its name; any other field takes the columns
``name_0 .. name_N`` or ``name0 .. nameN``, its elements in row-major order. UTF-8,
comma, the quoting of RFC 4180. Numbers are written as Python writes them; an empty
cell is an error, never a zero. Streams: memory does not grow with the file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from sealift.data.schema.rows import Array, Columns, Locate, bad_table, numpy_dtype
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import (
    Source,
    SourceOptions,
    demand_distinct,
    refuse_options,
    with_suffix,
)
from sealift.errors import MalformedError

_TRUTH = {"0": 0, "1": 1, "false": 0, "true": 1}
_WORDS = {"float": "a number", "int": "a whole number", "bool": "0, 1, true or false"}


def _truth(text: str) -> int:
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


_PARSE: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "bool": _truth}


@dataclass
class CsvTable:
    """An opened CSV file; see ``TableReader``."""

    path: Path
    schema: Schema
    header: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]  # per field, its columns' positions
    rows: int
    lines: list[int] = field(default_factory=list)  # of the rows of the last block

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        with _open(self.path) as stream:
            rows = _rows(stream, self.path.name)
            next(rows)
            while block := list(islice(rows, rows_per_block)):
                self.lines = [line for line, _ in block]
                cells = [self._whole(line, row) for line, row in block]
                yield {
                    spec.name: self._column(cells, spec, places)
                    for spec, places in zip(
                        self.schema.fields, self.places, strict=True
                    )
                }

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``."""
        places = {
            f.name: p for f, p in zip(self.schema.fields, self.places, strict=True)
        }

        def words(row: int, spec: Field, element: int) -> str:
            column = self.header[places[spec.name][element]]
            return f"line {self.lines[row]}, column {column}"

        return words

    def _whole(self, line: int, row: list[str]) -> list[str]:
        if len(row) != len(self.header):
            raise bad_table(
                f"{self.path.name}, line {line}: {len(row)} cells, "
                f"the header has {len(self.header)}",
                fix="Every row has one cell per column",
            )
        return row

    def _column(
        self, rows: list[list[str]], spec: Field, places: Sequence[int]
    ) -> Array:
        cells = [row[place] for row in rows for place in places]
        try:
            numbers = _parse_cells(cells, spec)
        except (ValueError, OverflowError):
            raise self._wrong_cell(cells, spec) from None
        return numbers.reshape(len(rows), *spec.shape)

    def _wrong_cell(self, cells: list[str], spec: Field) -> MalformedError:
        index = next(i for i, cell in enumerate(cells) if not _parses(cell, spec))
        row, element = divmod(index, spec.elements)
        place = self.locate(0)(row, spec, element)
        cell = cells[index]
        fix = "Correct the cell, or change the schema"
        if not cell.strip():
            fix = "Fill the cell or remove the row; a float field with finite = false"
            fix += " may say nan"
        return MalformedError(
            f"{self.path.name}, {place}: {cell[:40]!r} is not {_WORDS[spec.element.kind]}"
            f" that fits {spec.dtype}",
            fix=fix,
            code="bad-row",
        )


def _open_csv(place: str, schema: Schema, options: SourceOptions) -> CsvTable:
    """Read the header and count the rows."""
    refuse_options(options, "a .csv file")
    path = Path(place)
    with _open(path) as stream:
        rows = _rows(stream, path.name)
        _, names = next(rows, (0, []))
        header = tuple(name.strip() for name in names)
        places = _places(header, schema, path.name)
        count = sum(1 for _ in rows)
    return CsvTable(path, schema, header, places, count)


def _open(path: Path) -> IO[str]:
    return path.open(encoding="utf-8-sig", newline="")


def _rows(stream: IO[str], source: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    reader = csv.reader(stream, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise bad_table(f"{source} is not UTF-8", fix="Save it as UTF-8") from error
    except csv.Error as error:
        raise bad_table(
            f"{source}, line {reader.line_num}: not CSV",
            why=str(error),
            fix="Look for a quoted cell, here or above, that is not closed",
        ) from error


def _places(
    header: tuple[str, ...], schema: Schema, source: str
) -> tuple[tuple[int, ...], ...]:
    """Which columns make each field; every column is used exactly once."""
    demand_distinct(header, source)
    position = {name: index for index, name in enumerate(header)}
    wanted = [_column_names(spec, position) for spec in schema.fields]
    used = [name for names in wanted for name in names]
    for name in used:
        if name not in position:
            raise bad_table(
                f"{source} has no column {name!r}",
                fix="Add it to the header row, or change the schema",
            )
    extra = [name for name in header if name not in set(used)]
    if extra:
        raise bad_table(
            f"{source} has a column {extra[0][:80]!r} that is not in the schema",
            fix="Remove it, or add it to the schema",
        )
    if len(set(used)) != len(used):
        raise bad_table(
            f"{source}: two fields of the schema take the same column",
            fix="Rename one of the fields",
        )
    return tuple(tuple(position[name] for name in names) for names in wanted)


def _column_names(spec: Field, position: dict[str, int]) -> list[str]:
    if not spec.shape:
        return [spec.name]
    joint = "" if f"{spec.name}0" in position else "_"
    return [f"{spec.name}{joint}{index}" for index in range(spec.elements)]


def _parse_cells(cells: list[str], spec: Field) -> Array:
    """Parse all at once; ``ValueError`` or ``OverflowError`` if any cell is wrong."""
    text = "".join(cells)
    if "_" in text or not text.isascii():  # Python takes 1_000 and other digits
        raise ValueError
    numbers = list(map(_PARSE[spec.element.kind], cells))
    if spec.element.kind != "float":
        if not (spec.element.holds(min(numbers)) and spec.element.holds(max(numbers))):
            raise OverflowError
        return np.array(numbers, dtype=numpy_dtype(spec))
    exact = np.array(numbers, dtype=np.float64)
    with np.errstate(over="ignore"):
        stored = exact.astype(numpy_dtype(spec))
    # A cell like 1e400 or, for float32, 1e39 is not an infinity that someone wrote.
    for index in np.flatnonzero(np.isinf(stored)):
        if "inf" not in cells[index].lower():
            raise OverflowError
    return stored


def _parses(cell: str, spec: Field) -> bool:
    try:
        _parse_cells([cell], spec)
    except (ValueError, OverflowError):
        return False
    return True


SOURCE = Source(".csv file", with_suffix(".csv"), _open_csv)
