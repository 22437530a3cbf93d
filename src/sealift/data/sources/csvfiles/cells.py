"""Cells of a text table to numbers, a column at a time (pyarrow).

What a cell may look like is stated here, not left to a parser: a number has digits and one
decimal point or comma, no thousands; ``1.0`` is an integer where the schema says so. Where
a mark could part thousands as well, the other cells of the file must tell
(``DecimalMarks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sealift.data.schema.rows import Array, numpy_dtype
from sealift.data.schema.schema import Field

NUMBER: Final = (
    r"^[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity|nan)$"
)
INTEGER: Final = r"^[+-]?\d+([.,]0{1,2})?$"
PERHAPS_THOUSANDS: Final = r"^[+-]?[1-9]\d{0,2}[.,]\d{3}$"
_HALF_A_SECOND: Final = 0.5 / 86400
# As programs write that there is no value: R, spreadsheets, databases; SAS and Stata.
NOTHING: Final = ("", "na", "n/a", "null", ".")
_TRUTH: Final = ("0", "false", "1", "true")
_WORDS: Final = {"float": "a number", "int": "a whole number"}

Mask = NDArray[np.bool_]
Numbers = tuple[Array, Mask]
"""Values, and which of the cells have one; the others are 0."""


@dataclass(frozen=True, slots=True)
class ReadCells:
    """One column of a block.

    Attributes:
        numbers: Of the field's dtype, shape ``(rows,)``; 0 where there is none.
        wrong: Which cells have none.
        empty: Which cells are empty.
        texts: The cells, without spaces at their ends.
    """

    numbers: Array
    wrong: Mask
    empty: Mask
    texts: Any


def read_cells(column: Any, field: Field) -> ReadCells:
    """Read a column of text (``pyarrow.Array``) as its field says."""
    rules = field.cells
    texts = pc.utf8_trim_whitespace(column)
    nothing = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(NOTHING))
    named = pc.is_in(texts, value_set=pa.array(rules.categories, pa.string()))
    empty = mask(pc.and_not(nothing, named))
    numbers, fits = _reader(field)(texts, field)
    if rules.empty is None:
        return ReadCells(numbers, ~fits | empty, empty, texts)
    stated = rules.empty
    if rules.categories:
        stated = rules.categories.index(str(stated))
    numbers = np.where(empty, np.asarray(stated, dtype=numbers.dtype), numbers)
    return ReadCells(numbers, ~fits & ~empty, empty, texts)


def expected(field: Field) -> str:
    """What a cell of a field is, in words."""
    if field.cells.categories:
        return "one of its categories"
    if field.cells.date:
        return f"a date like {field.cells.date} that fits {field.dtype}"
    if field.element.kind == "bool":
        return "0, 1, true or false"
    return f"{_WORDS[field.element.kind]} that fits {field.dtype}"


def mask(column: Any) -> Mask:
    """A column of truth values as an array of its own."""
    return np.array(column.to_numpy(zero_copy_only=False), dtype=bool)


def _reader(field: Field) -> Callable[[Any, Field], Numbers]:
    if field.cells.categories:
        return _places
    if field.cells.date:
        return _days
    return {"float": _floats, "int": _integers, "bool": _truths}[field.element.kind]


def _places(texts: Any, field: Field) -> Numbers:
    names = pa.array(field.cells.categories, pa.string())
    found = pc.fill_null(pc.index_in(texts, value_set=names), -1).to_numpy()
    fits = found >= 0
    return np.where(fits, found, 0).astype(numpy_dtype(field)), fits


def _truths(texts: Any, field: Field) -> Numbers:
    found = pc.index_in(pc.utf8_lower(texts), value_set=pa.array(_TRUTH))
    places = pc.fill_null(found, -1).to_numpy()
    return (places >= 2).astype(numpy_dtype(field)), places >= 0


def _matching(texts: Any, pattern: str) -> tuple[Any, Mask]:
    """Cells as computers write numbers, ``0`` where they do not match."""
    matches = pc.match_substring_regex(texts, pattern)
    plain = pc.utf8_ltrim(pc.replace_substring(texts, ",", "."), "+")
    return pc.if_else(matches, plain, "0"), mask(matches)


def _floats(texts: Any, field: Field) -> Numbers:
    plain, fits = _matching(texts, NUMBER)
    exact = pc.cast(plain, pa.float64()).to_numpy()
    with np.errstate(over="ignore"):
        stored = exact.astype(numpy_dtype(field))
    # A cell like 1e400 or, for float32, 1e39 is not an infinity that someone wrote.
    infinite = np.isinf(stored)
    if infinite.any():
        written = mask(pc.match_substring(texts, "inf", ignore_case=True))
        fits &= ~infinite | written
    return np.where(fits, stored, 0).astype(stored.dtype), fits


def _integers(texts: Any, field: Field) -> Numbers:
    plain, fits = _matching(texts, INTEGER)
    whole = pc.replace_substring_regex(plain, r"\..*$", "")
    whole = pc.replace_substring_regex(whole, r"^(-?)0+(\d)", r"\1\2")
    try:
        exact = pc.cast(whole, pa.int64()).to_numpy()
    except pa.ArrowInvalid:  # some are longer than any integer here
        long = [len(text.lstrip("-")) > 18 for text in whole.to_pylist()]
        held = [field.element.holds(int(text[:21])) for text in whole.to_pylist()]
        fits &= ~np.array(long) | np.array(held)
        exact = pc.cast(pc.if_else(pa.array(fits), whole, "0"), pa.int64()).to_numpy()
    fits &= (exact >= field.element.lowest) & (exact <= field.element.highest)
    return np.where(fits, exact, 0).astype(numpy_dtype(field)), fits


def _days(texts: Any, field: Field) -> Numbers:
    """Python's reader of dates: pyarrow's takes 31 February. Each date is read once."""
    found = pc.dictionary_encode(texts)
    days = [_day(text, field.cells.date) for text in found.dictionary.to_pylist()]
    known = np.array([day is not None for day in days], dtype=bool)
    values = np.array([day or 0 for day in days], dtype=np.float64)
    places = found.indices.to_numpy()
    fits = known[places] if len(known) else np.zeros(0, dtype=bool)
    with np.errstate(invalid="ignore", over="ignore"):
        stored = values.astype(numpy_dtype(field))
    held = np.abs(stored.astype(np.float64) - values) < _HALF_A_SECOND
    fits &= held[places]
    return np.where(fits, stored[places], 0).astype(stored.dtype), fits


def _day(text: str, form: str) -> float | None:
    try:
        moment = datetime.strptime(text, form)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() / 86400


PLAIN_THOUSANDS: Final = r"^[+-]?\d{4,}$"


@dataclass
class _Points:
    """How the numbers of a column are written.

    Attributes:
        pointed: With a point.
        thousands: Of these, those whose point may part thousands; the first of them.
        large: Plain ones from a thousand on.
    """

    pointed: int = 0
    thousands: int = 0
    first: tuple[int, int, str] | None = None
    large: int = 0

    def count_thousands(
        self, texts: Any, rows: NDArray[np.intp], column: int, first_row: int
    ) -> None:
        """Count the cells of a block in which a mark may part thousands."""
        self.thousands += len(rows)
        if self.first is None and len(rows):
            place = int(rows[0])
            self.first = first_row + place, column, texts[place].as_py()


def count(matches: Any) -> int:
    """How many of a column of truth values are true."""
    return pc.sum(matches).as_py() or 0


@dataclass
class DecimalMarks:
    """Whether the numbers of a file may be others than they look.

    ``1,234`` and ``1.234`` may each have decimals or thousands. Points are taken for
    decimal points, and commas for decimal commas where some comma cannot part thousands;
    in a file that has both, such cells tell nothing. Where there are no commas at all, a
    column tells by itself: one in which every point may part thousands may be written
    without decimals, unless it has a plain number from a thousand on.
    """

    _doubtful: dict[int, _Points] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _certain: bool = False  # a comma that parts no thousands
    _columns: dict[int, _Points] = field(default_factory=dict)

    def look(self, cells: ReadCells, column: int, first_row: int) -> None:
        """Note the marks in cells that read as numbers."""
        texts = cells.texts
        numbers = pc.match_substring_regex(texts, NUMBER)
        thousands = pc.match_substring_regex(texts, PERHAPS_THOUSANDS)
        for mark in (",", "."):
            marked = mask(pc.and_(numbers, pc.match_substring(texts, mark)))
            if marked.any():
                self._seen.add(mark)
                self._certain |= mark == "," and not mask(thousands)[marked].all()
        rows = np.flatnonzero(mask(thousands) & ~cells.wrong)  # those are told already
        points = self._doubtful.setdefault(column, _Points())
        points.count_thousands(texts, rows, column, first_row)

    def look_at_points(self, cells: ReadCells, column: int, first_row: int) -> None:
        """The same of a file without commas."""
        texts = cells.texts
        points = self._columns.setdefault(column, _Points())
        rows = np.flatnonzero(mask(pc.match_substring_regex(texts, PERHAPS_THOUSANDS)))
        points.count_thousands(texts, rows, column, first_row)
        points.pointed += count(pc.match_substring(texts, "."))
        points.large += count(pc.match_substring_regex(texts, PLAIN_THOUSANDS))

    def doubtful(self) -> Iterator[tuple[int, tuple[int, int, str]]]:
        """Of each column whose numbers may be others: how many, and the first."""
        undecided = "," in self._seen and ("." in self._seen or not self._certain)
        for points in self._doubtful.values() if undecided else ():
            if points.first:
                yield points.thousands, points.first
        for points in self._columns.values():
            alike = points.thousands == points.pointed and not points.large
            if alike and points.first:
                yield points.thousands, points.first
