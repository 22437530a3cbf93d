"""CSV tables: a header row, then one row of text per row; read by pyarrow.

A field of shape ``()`` is one column, any other takes the columns ``name_0 .. name_N`` or
``name0 .. nameN``, its elements in row-major order. All of a file is looked at before any
of it is handed out, and all that is wrong with it is told at once. Memory does not grow
with the file.

Texts in a column of categories that the schema does not list, and in how many rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow.compute as pc
import pyarrow.csv as arrowcsv

from sealift.data.schema.owntable import AS_IT_LOOKS, FILE, IN_FILE, OwnTable
from sealift.data.schema.rows import Array, Columns, Locate, bad_table, misfits
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.arrow import reading
from sealift.data.sources.csvfiles.blocks import (
    IrregularError,
    in_order,
    parsed,
    row_blocks,
)
from sealift.data.sources.csvfiles.cells import (
    DecimalMarks,
    Mask,
    ReadCells,
    expected,
    read_cells,
)
from sealift.data.sources.csvfiles.cleaning import clean, is_number, units_in
from sealift.data.sources.csvfiles.likenumbers import look_like_numbers, shown
from sealift.data.sources.csvfiles.quick import QuickMarks, read_quickly
from sealift.data.sources.csvfiles.structure import Structure, changed, look_at
from sealift.data.sources.problems import SHOWN, Problems
from sealift.data.sources.source import SourceOptions, refuse_options
from sealift.errors import nearest, visible
from sealift.events import Sink, emit

_BLOCK_BYTES: Final = 8 << 20  # a row is shorter
_LONGEST_MARK: Final = 16
_FILL: Final = "Fill the cell, or give a value for empty cells in the schema"
_CORRECT: Final = "Correct the cell, or change the schema"
_DATE: Final = (
    f"Correct the cell, or write how your file writes dates under [dates] {IN_FILE}"
)
_CATEGORY: Final = (
    f"Correct the cell, or write which category it is under [synonyms] {IN_FILE}"
)

T = TypeVar("T")
Places = dict[str, tuple[int, ...]]  # per field, its columns' positions


def unlisted_texts(
    path: Path, schema: Schema, own: OwnTable = AS_IT_LOOKS
) -> dict[str, Counter[str]]:
    """By the field's name; of fields without categories, and of fitting ones, nothing.

    Raises:
        MalformedError: if it is no table of text.
    """
    structure = look_at(path, Problems(path.name), own)
    schema = own.schema_here(schema)
    places = _find_places(structure.header, schema, Problems(path.name), own)
    found: dict[str, Counter[str]] = {}
    for _first, batch in batches(structure):
        for spec in schema.fields:
            for place in places[spec.name] if spec.cells.categories else ():
                cells = read_cells(clean(batch.column(place), spec, own), spec)
                texts = cells.texts.filter(cells.wrong & ~cells.empty)
                counts = pc.value_counts(texts).to_pylist()
                of = found.setdefault(spec.name, Counter())
                of.update({each["values"]: each["counts"] for each in counts})
    return {name: counts for name, counts in found.items() if counts}


@dataclass
class CsvTable:
    """An opened CSV file; see ``TableReader``."""

    structure: Structure
    schema: Schema
    places: Places
    own: OwnTable
    problems: Problems

    @property
    def rows(self) -> int:
        """See ``TableReader.rows``."""
        return self.structure.rows

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``; every cell is looked at on the way.

        Raises:
            MalformedError: with all that is wrong with the table.
        """
        marks = None if self.own.states_marks else QuickMarks.of(self.structure)
        units = UnitsOfColumns()
        read = partial(_fields_of, table=self, marks=marks, units=units)
        with closing(each_batch(self.structure, read)) as found:
            for _, columns in found:
                if columns is None:
                    self.inspect()
                    raise changed(self.structure.path.name)
                rows = len(next(iter(columns.values())))
                for start in range(0, rows, rows_per_block):
                    end = start + rows_per_block
                    yield {name: each[start:end] for name, each in columns.items()}
        if (marks is not None and marks.matter) or units.mixed:
            self.inspect()

    def check(self, sink: Sink) -> None:
        """Look at every cell.

        Args:
            sink: Gets ``data.progress`` events.

        Raises:
            MalformedError: with all that is wrong with the table.
        """
        row_bytes, done = self.schema.row_bytes, 0
        for columns in self.columns(self.rows):
            done += len(next(iter(columns.values())))
            emit(
                sink,
                "data.progress",
                done_bytes=done * row_bytes,
                total_bytes=self.rows * row_bytes,
            )

    def inspect(self) -> None:
        """Say what is wrong with which cell, after what is wrong with rows and header.

        Raises:
            MalformedError: if anything is.
        """
        _Inspection(self).tell(self.problems)
        self.problems.demand_none()

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``."""
        header = self.structure.header

        def words(row: int, spec: Field, element: int) -> str:
            column = header[self.places[spec.name][element]]
            return f"row {first_row + row}, column {column}"

        return words


def open_csv(place: str, schema: Schema, options: SourceOptions) -> CsvTable:
    """Look at the rows and the header of a file; ``columns`` looks at its cells.

    Raises:
        MalformedError: with all that is wrong with it.
    """
    refuse_options(options, "a .csv file")
    path = Path(place)
    problems = Problems(path.name)
    structure = look_at(path, problems, options.own)
    schema = options.own.schema_here(schema)
    options.own.demand_left_out(structure.header)
    places = _find_places(structure.header, schema, problems, options.own)
    table = CsvTable(structure, schema, places, options.own, problems)
    if problems.total:
        table.inspect()
    return table


def read_rows(path: Path, schema: Schema, own: OwnTable) -> dict[str, Array]:
    """All rows of a file in memory, by field; columns that are in no field do not matter.

    Raises:
        MalformedError: with all that is wrong with the table.
    """
    own = own.of_fields([each.name for each in schema.fields])
    header = look_at(path, Problems(path.name), own).header
    here = own.schema_here(replace(schema, leave_out=()))
    used = {name for spec in here.fields for name in column_names(spec, header, own)}
    unused = tuple(each for each in dict.fromkeys(header) if each not in used)
    asked = replace(schema, leave_out=unused)
    table = open_csv(str(path), asked, SourceOptions(own=own))
    if not table.rows:
        raise bad_table(f"{path.name} has no rows")
    blocks = list(table.columns(table.rows))
    return {
        spec.name: np.concatenate([block[spec.name] for block in blocks])
        for spec in schema.fields
    }


def read_columns_of_text(
    structure: Structure, names: Sequence[str]
) -> dict[str, Array]:
    """Columns of a file as its cells say them, in memory, by the names in its header."""
    places = [structure.header.index(name) for name in names]
    found = [
        [batch.column(at).to_pylist() for at in places]
        for _first, batch in batches(structure)
    ]
    return {
        name: np.array([text for block in found for text in block[at]], str)
        for at, name in enumerate(names)
    }


def batches(structure: Structure) -> Iterator[tuple[int, Any]]:
    """Batches of rows as text, each with the number of its first row.

    Rows that do not have a cell for each column are left out; they still count.
    """
    return each_batch(structure, lambda batch: batch)


def each_batch(
    structure: Structure, work: Callable[[Any], T], chosen: Sequence[int] | None = None
) -> Generator[tuple[int, T]]:
    """``work`` of every batch of rows, in their order, and the number of its first row.

    Args:
        structure: Of the file.
        work: Called on several cores at once.
        chosen: Places of the columns that a batch has, named so; None for all.
    """
    if not structure.regular:
        for first, batch in _streamed(structure):
            part = batch if chosen is None else batch.select([str(at) for at in chosen])
            yield first, work(part)
        return

    def rows_of(block: bytes) -> tuple[int, T]:
        columns = len(structure.header)
        batch = parsed(block, structure.delimiter, columns, chosen)
        return len(batch), work(batch)

    first = 0
    try:
        blocks = _without_header(row_blocks(structure.path, structure.encoding))
        with closing(in_order(blocks, rows_of)) as found:
            for rows, result in found:
                yield first, result
                first += rows
    except (IrregularError, UnicodeDecodeError):
        raise changed(structure.path.name) from None


def _without_header(blocks: Generator[bytes]) -> Iterator[bytes]:
    """The same but for the first row that is not blank."""
    with closing(blocks):
        first = next(blocks, b"").lstrip(b"\r\n")
        end = first.find(b"\n") + 1
        while end and first.count(b'"', 0, end) % 2:
            end = first.find(b"\n", end) + 1
        yield first[end or len(first) :]
        yield from blocks


def _streamed(structure: Structure) -> Iterator[tuple[int, Any]]:
    names = [str(place) for place in range(len(structure.header))]
    encoding = structure.encoding.replace("utf-8-sig", "utf8")
    with reading(structure.path.name), structure.path.open("rb") as stream:
        table = arrowcsv.open_csv(
            stream,
            read_options=arrowcsv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=names,
                encoding=encoding,
            ),
            parse_options=arrowcsv.ParseOptions(
                delimiter=structure.delimiter,
                newlines_in_values=True,
                invalid_row_handler=lambda _: "skip",
            ),
            convert_options=arrowcsv.ConvertOptions(
                column_types=dict.fromkeys(names, "string")
            ),
        )
        first = -1  # the header
        with closing(table):
            for batch in table:
                skipped = batch.slice(1) if first < 0 else batch
                yield max(first, 0), skipped
                first += len(batch)


class UnitsOfColumns:
    """Which units were taken from the numbers of which columns; from any thread."""

    def __init__(self) -> None:
        self._found: dict[int, dict[str, int]] = {}
        self._lock = Lock()

    def look(self, units: Mapping[str, int], column: int, first_row: int) -> None:
        """Note the units of a block, with the first rows that have them."""
        with self._lock:
            known = self._found.setdefault(column, {})
            for unit, row in units.items():
                known[unit] = min(first_row + row, known.get(unit, first_row + row))

    @property
    def mixed(self) -> list[tuple[int, list[tuple[int, str]]]]:
        """Columns with several units, and the first row of each."""
        return [
            (column, sorted((row, unit) for unit, row in units.items()))
            for column, units in self._found.items()
            if len(units) > 1
        ]


def _fields_of(
    batch: Any, table: CsvTable, marks: QuickMarks | None, units: UnitsOfColumns
) -> Columns | None:
    """The fields of a batch; None if there is a cell that does not fit."""
    columns, empty = {}, {}
    schema = table.schema
    for spec in schema.fields:
        if at := table.places[spec.name]:
            cells = []
            for each in at:
                column = clean(batch.column(each), spec, table.own)
                units.look(units_in(batch.column(each), spec, table.own), each, 0)
                cells.append(_cells_of(column, spec, each, marks))
            if any(each.wrong.any() for each in cells):
                return None
            shape = (len(batch), *spec.shape)
            columns[spec.name] = np.stack([c.numbers for c in cells], 1).reshape(shape)
            empty[spec.name] = np.stack([c.empty for c in cells], 1).reshape(shape)
            if not all(fits.all() for fits, *_ in misfits(columns[spec.name], spec)):
                return None
    for spec in schema.fields:
        if spec.cells.missing:
            columns[spec.name] = empty[spec.cells.missing]
    return columns


def _cells_of(column: Any, spec: Field, at: int, marks: QuickMarks | None) -> ReadCells:
    cells = read_quickly(column, spec) or read_cells(column, spec)
    if marks is not None and is_number(spec):
        marks.look(cells.texts, at)
    return cells


@dataclass(frozen=True, slots=True, order=True)
class _Wrong:
    """A cell that does not fit its field."""

    row: int
    column: int
    what: str
    fix: str
    text: str = ""
    categories: tuple[str, ...] = ()


class _Inspection:
    """Looks at every cell; keeps each column's first wrong ones, and how many there are."""

    def __init__(self, table: CsvTable) -> None:
        self._structure, self._schema = table.structure, table.schema
        self._places, self._own = table.places, table.own
        self._marks = DecimalMarks()
        self._units = UnitsOfColumns()
        self._wrong: dict[int, list[_Wrong]] = {}
        self._totals: Counter[int] = Counter()

    def tell(self, problems: Problems) -> None:
        """Read all of it, then say what is wrong, and in which line."""
        for first_row, batch in batches(self._structure):
            for spec in self._schema.fields:
                for at in self._places[spec.name]:
                    self._keep(at, self._look(batch.column(at), spec, at, first_row))
        self._add_doubtful()
        self._add_mixed_units()
        wrong = self._chosen()
        rows = [self._structure.number(each.row) for each in wrong]
        for each, line in zip(wrong, self._structure.lines(rows), strict=True):
            column = self._structure.header[each.column]
            fix = nearest(each.text, each.categories) or each.fix
            problems.add(f"line {line}, column {column}: {each.what}", fix=fix)
        problems.count(self._totals.total() - len(wrong))

    def _keep(self, at: int, found: Iterable[_Wrong]) -> None:
        if more := [*found]:
            self._wrong[at] = sorted([*self._wrong.get(at, ()), *more])[:SHOWN]

    def _chosen(self) -> list[_Wrong]:
        """Those that are shown: all, or some of each column and how many more it has."""
        share = SHOWN // max(1, len(self._wrong)) or 1
        if self._totals.total() <= SHOWN:
            share = SHOWN
        chosen = []
        for at, wrong in self._wrong.items():
            first = wrong[:share]
            if more := self._totals[at] - len(first):
                cells = f"{more:,} more cell{'s' if more > 1 else ''} of the column"
                what = f"{first[-1].what} (and {cells})"
                first[-1] = replace(first[-1], what=what)
            chosen += first
        return sorted(chosen)[:SHOWN]

    def _look(
        self, column: Any, spec: Field, at: int, first_row: int
    ) -> Iterator[_Wrong]:
        cells = read_cells(clean(column, spec, self._own), spec)
        self._units.look(units_in(column, spec, self._own), at, first_row)
        numbers = is_number(spec) and not self._own.states_marks
        if numbers and self._structure.commas:
            self._marks.look(cells, at, first_row)
        elif numbers and self._structure.delimiter != ",":
            self._marks.look_at_points(cells, at, first_row)
        for wrong, lead, rule, fix in _offences(cells, spec):
            self._totals[at] += int(wrong.sum())
            for row in np.flatnonzero(wrong)[:SHOWN].tolist():
                text = column[row].as_py().strip()
                what, names = lead.format(shown(text)) + rule, spec.cells.categories
                like = look_like_numbers([text], self._own) if numbers else None
                more = f"If it is a number, {like.advice}" if like else fix
                if numbers and spec.cells.empty is not None and _is_mark(text):
                    mark = json.dumps(text, ensure_ascii=False)
                    more = f"{fix}; or write missing = [{visible(mark)}] {IN_FILE}, if it means that the value is missing"
                yield _Wrong(first_row + row, at, what, more, text, names)

    def _add_doubtful(self) -> None:
        """Numbers that may be others than they look."""
        for cells, (row, at, text) in self._marks.doubtful():
            mark = "," if "," in text else "."
            more = f"{cells - 1:,} more cell{'s' if cells > 2 else ''} of the column"
            others = f" (and {more})" if cells > 1 else ""
            decimal, thousands = f'`decimal = "{mark}"`', f'`thousands = "{mark}"`'
            either = f"{decimal} if it is a decimal mark, or {thousands} if it separates thousands"
            fix = f"Write the line {either}, in {self._own.source}"
            if self._own == AS_IT_LOOKS:
                fix = f"Make a file {FILE} beside {self._structure.path.name} with the line {either}, then type the command again"
            self._add(
                row,
                at,
                f"{text!r}{others} could have a decimal mark or a thousands separator, and no other cell decides it",
                fix,
            )

    def _add_mixed_units(self) -> None:
        """Columns whose numbers mean different things."""
        for at, units in self._units.mixed:
            first, second = units[0][1], units[1][1]
            self._add(
                units[1][0],
                at,
                f"the column has two units, {first} and {second}",
                f"Convert its numbers to one of them, {first} or {second}",
            )

    def _add(self, row: int, at: int, what: str, fix: str) -> None:
        self._totals[at] += 1
        self._keep(at, [_Wrong(row, at, what, fix)])


def _is_mark(text: str) -> bool:
    """Whether it may stand for nothing, among numbers."""
    return 0 < len(text) <= _LONGEST_MARK and not any(map(str.isdigit, text))


def _offences(cells: ReadCells, spec: Field) -> Iterator[tuple[Mask, str, str, str]]:
    """Which cells are wrong, how they are named, what they are not, and what to do."""
    yield cells.wrong & cells.empty, "", "the cell is empty", _FILL
    own = _CATEGORY if spec.cells.categories else _DATE if spec.cells.date else _CORRECT
    yield cells.wrong & ~cells.empty, "{!r} is not ", expected(spec), own
    told = cells.wrong
    for fits, rule, fix in misfits(cells.numbers, spec):
        yield ~fits & ~told, "{} is not ", rule, fix
        told = told | ~fits


def _find_places(
    header: tuple[str, ...],
    schema: Schema,
    problems: Problems,
    own: OwnTable = AS_IT_LOOKS,
) -> Places:
    """Which columns make each field; every column is used once, or left out by name."""
    position = {name: index for index, name in enumerate(header)}
    wanted = {each.name: column_names(each, header, own) for each in schema.fields}
    used = Counter(name for names in wanted.values() for name in names)
    known = {*used, *schema.leave_out}
    for name, count in Counter(header).items():
        if count > 1:
            _add(problems, f"two columns named {name[:80]!r}", "Rename one of them")
        if name not in known:
            fix = "Name it in leave_out, in table.toml or the schema, or add a field for it"
            what = f"the column {name[:80]!r} is not in the schema"
            _add(problems, what, nearest(name, known - set(header)) or fix)
    for name, count in used.items():
        if name not in position:
            fix = nearest(name, header) or "Add it to the header row"
            rename = f"write what your file calls it under [columns] {IN_FILE}"
            _add(
                problems,
                f"column {name!r} is missing",
                f"{fix} Or {rename}" if fix.endswith("?") else f"{fix}, or {rename}",
            )
        if count > 1 or name in schema.leave_out:
            what = f"two fields of the schema use the same column, {name!r}"
            _add(problems, what, "Rename one of the fields")
    return {
        field: tuple(position[name] for name in names if name in position)
        for field, names in wanted.items()
    }


def _add(problems: Problems, what: str, fix: str) -> None:
    problems.add(f"header: {what}", fix=fix, code="bad-table")


def column_names(
    spec: Field, header: Sequence[str], own: OwnTable = AS_IT_LOOKS
) -> list[str]:
    """Names of the columns that make a field, in the order of its elements."""
    if spec.cells.missing:
        return []
    if spec.cells.columns:
        return list(spec.cells.columns)
    stem = spec.cells.column or spec.name
    if not spec.shape:
        # Whoever wrote the schema may have had another file; table.toml is of this one.
        other = stem not in header and spec.name in header
        return [spec.name if other and spec.name not in own.columns else stem]
    joined = [f"{stem}_{index}" for index in range(spec.elements)]
    plain = [f"{stem}{index}" for index in range(spec.elements)]
    have = set(header)
    return plain if len(have & set(plain)) > len(have & set(joined)) else joined
