"""Cells of a column that is as its field says, without looking at each for itself.

pyarrow's own parsers read a whole column. Where all of it fits, they give what ``cells``
gives; a column in which anything is unlike the rest is left to ``cells``.
``tests/property/test_quick_tables.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sealift.data.schema.rows import Array, numpy_dtype
from sealift.data.schema.schema import Field
from sealift.data.sources.csvfiles.cells import (
    NOTHING,
    PERHAPS_THOUSANDS,
    PLAIN_THOUSANDS,
    Mask,
    ReadCells,
    count,
    mask,
    read_cells,
)
from sealift.data.sources.csvfiles.structure import Structure

_TYPES: Final = {"int": pa.int64(), "float": pa.float64()}
_NOTHING: Final = pa.array(NOTHING)
_TRIED: Final = 32


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers.

    Attributes:
        values: int64 or float64, all finite; 0 where a cell is empty.
        empty: Which cells are empty; None if none is.
        texts: The cells, without spaces at their ends; some number where one is empty.
    """

    values: Array
    empty: Mask | None
    texts: Any


def read_quickly(column: Any, field: Field) -> ReadCells | None:
    """What ``read_cells`` gives, if every cell fits its field; else, or in doubt, None."""
    if field.cells.of_text or field.element.kind == "bool":
        return _by_different_cells(column, field)
    numbers = numbers_of(column, field.element.kind)
    if numbers is None or (numbers.empty is not None and field.cells.empty is None):
        return None
    with np.errstate(over="ignore"):
        stored = numbers.values.astype(numpy_dtype(field))
    if field.element.kind == "int":
        fits = (stored == numbers.values).all()
    else:
        fits = np.isfinite(stored).all()
    if not fits:
        return None
    if numbers.empty is None:
        return ReadCells(stored, _none(column), _none(column), column)
    stated = np.asarray(field.cells.empty, dtype=stored.dtype)
    filled = np.where(numbers.empty, stated, stored)
    return ReadCells(filled, _none(column), numbers.empty, column)


def _none(column: Any) -> Mask:
    return np.zeros(len(column), dtype=bool)


def _by_different_cells(column: Any, field: Field) -> ReadCells | None:
    """Each different text is read once; None where most are different."""
    found = pc.dictionary_encode(column)
    if 2 * len(found.dictionary) > len(column):
        return None
    cells = read_cells(found.dictionary, field)
    if cells.wrong.any():
        return None
    places = found.indices.to_numpy()
    return ReadCells(cells.numbers[places], _none(column), cells.empty[places], column)


def numbers_of(column: Any, *kinds: str) -> Numbers | None:
    """A column as numbers of the first of these kinds (``DType.kind``) that all of it is.

    None if a cell is neither such a number nor empty.
    """
    if has(column, b"x") or has(column, b"X"):
        return None  # pyarrow reads 0x1F as an integer
    if (values := _cast(column, kinds)) is not None:
        return Numbers(values, None, column)
    texts = pc.utf8_trim_whitespace(column)
    nothing = pc.is_in(pc.utf8_lower(texts), value_set=_NOTHING)
    texts = pc.if_else(nothing, "0", texts)
    values = _cast(texts, kinds)
    if values is None and "float" in kinds and has(column, b","):
        values = _cast(pc.replace_substring(texts, ",", "."), ("float",))
    return None if values is None else Numbers(values, mask(nothing), texts)


def _cast(texts: Any, kinds: Sequence[str]) -> Array | None:
    """A cell that is no number is slow to fail, so a few are tried first."""
    few = texts.take(pa.array(range(0, len(texts), len(texts) // _TRIED + 1)))
    for kind in kinds:
        try:
            pc.cast(few, _TYPES[kind])
            values: Array = pc.cast(texts, _TYPES[kind]).to_numpy()
        except pa.ArrowInvalid:
            continue
        return values if kind == "int" or np.isfinite(values).all() else None
    return None


def has(column: Any, character: bytes) -> bool:
    """Whether any cell of a block's column has it."""
    _, offsets, content = column.buffers()
    if content is None:
        return False
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    return character in bytes(memoryview(content)[ends[0] : ends[-1]])


@dataclass
class QuickMarks:
    """Whether ``cells.DecimalMarks`` would find anything in columns that are all numbers.

    Args:
        commas: Whether cells of the file may have one.
    """

    commas: bool
    _seen: set[bytes] = field(default_factory=set)
    _certain: bool = False
    _columns: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def look(self, texts: Any, column: int) -> None:
        """Note the marks in cells that are all numbers; from any thread."""
        if self.commas:
            self._look_at_commas(texts)
        elif not self._decimal(column):
            found = _points(pc.utf8_trim_whitespace(texts))
            with self._lock:
                known = self._columns.get(column, (0, 0, 0))
                more = (one + other for one, other in zip(known, found, strict=True))
                self._columns[column] = tuple(more)  # type: ignore[assignment]

    def _look_at_commas(self, texts: Any) -> None:
        if has(texts, b"."):
            self._seen.add(b".")
        if not self._certain and has(texts, b","):
            texts = pc.utf8_trim_whitespace(texts)
            self._seen.add(b",")
            marked = pc.match_substring(texts, ",")
            thousands = pc.match_substring_regex(texts, PERHAPS_THOUSANDS)
            self._certain |= count(pc.and_not(marked, thousands)) > 0

    @classmethod
    def of(cls, structure: Structure) -> QuickMarks | None:
        """For a file; None where no number can have a comma, so that points are decimal."""
        matter = structure.commas or structure.delimiter != ","
        return cls(structure.commas) if matter else None

    def _decimal(self, column: int) -> bool:
        pointed, thousands, large = self._columns.get(column, (0, 0, 0))
        return pointed > thousands or large > 0

    @property
    def matter(self) -> bool:
        """Whether ``DecimalMarks`` must look at all of it."""
        if self.commas:
            return b"," in self._seen and (b"." in self._seen or not self._certain)
        return any(
            thousands and not self._decimal(column)
            for column, (_, thousands, _) in self._columns.items()
        )


def _points(texts: Any) -> tuple[int, int, int]:
    """Cells with a point; where it may part thousands; large ones without."""
    large = count(pc.match_substring_regex(texts, PLAIN_THOUSANDS))
    if not has(texts, b"."):
        return 0, 0, large
    pointed = count(pc.match_substring(texts, "."))
    return pointed, count(pc.match_substring_regex(texts, PERHAPS_THOUSANDS)), large
