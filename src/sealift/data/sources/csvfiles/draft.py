"""A schema drafted from text tables, for their owner to look at and correct.

Every cell is read. A column is what nine of ten of its cells are; the rest is told as
problems. Text becomes categories only where few different texts are repeated: names,
identifiers and remarks are left out, since categories stand in the agreement for all to
read. No bounds are drafted: the least and the greatest value are somebody's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sealift.data.schema.cells import MAX_TEXT, NO_RULES, CellRules
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.csvfiles.cells import INTEGER, NOTHING, NUMBER, read_cells
from sealift.data.sources.csvfiles.reader import batches
from sealift.data.sources.csvfiles.structure import Structure
from sealift.data.sources.source import Draft
from sealift.errors import MalformedError, visible

MOST_CATEGORIES: Final = 50
DATES: Final = (
    "%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d",
    "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M",
)  # fmt: skip
_TRUTHS: Final = ("true", "false")
_DATED = (
    r"^\d{1,4}[-./ ]?(\d{1,2}|[A-Za-z]{3,9})[-./ ]\d{1,4}([ T]\d{1,2}:\d\d.*)?$"
    r"|^\d{1,2}[-./ ]?[A-Za-z]{3,9}[-./ ]?\d{2,4}([ T:]\d{1,2}:\d\d.*)?$"
)
_CODE = r"^0\d+$"  # no number that somebody counts with is written so
_NUMBERED = re.compile(r"(.*?)(_?)(\d+)")  # an element's column: what, joint, which
_FLOAT32_MOST: Final = 3.4e38
_FLOAT32_DIGITS: Final = 7
_MOST_FIELDS: Final = 256


@dataclass
class _Column:
    """What the cells of one column are."""

    name: str
    cells: int = 0
    empty: int = 0
    integers: int = 0
    numbers: int = 0
    truths: int = 0
    highest: float = 0.0
    digits: int = 0  # of the longest number, without zeros at its ends
    codes: int = 0
    dated: int = 0
    dates: dict[str, int] = field(default_factory=dict)
    texts: set[str] | None = field(default_factory=set)  # None: too many

    @property
    def filled(self) -> int:
        """Cells with something in them."""
        return self.cells - self.empty

    def look(self, column: Any) -> None:
        """Count what the cells of a block are."""
        texts = pc.utf8_trim_whitespace(column)
        lower = pc.utf8_lower(texts)
        nothing = pc.is_in(lower, value_set=pa.array(NOTHING))
        self.cells += len(texts)
        self.empty += _count(nothing)
        self.truths += _count(pc.is_in(lower, value_set=pa.array(_TRUTHS)))
        self.integers += _count(pc.match_substring_regex(texts, INTEGER))
        numbers = pc.match_substring_regex(texts, NUMBER)
        self.numbers += _count(numbers)
        if _count(numbers):
            values = read_cells(column, Field("x", "float64", finite=False)).numbers
            finite = np.abs(values[np.isfinite(values)])
            self.highest = max(self.highest, float(finite.max(initial=0.0)))
            self.digits = max(self.digits, _most_digits(texts.filter(numbers)))
            self.codes += _count(pc.match_substring_regex(texts, _CODE))
        if dated := _count(pc.match_substring_regex(texts, _DATED)):
            self.dated += dated
            self._look_for_dates(texts)
        if self.texts is not None:
            kept = pc.unique(texts.filter(pc.invert(nothing))).to_pylist()
            self.texts |= set(kept)
            if len(self.texts) > MOST_CATEGORIES:
                self.texts = None

    def _look_for_dates(self, texts: Any) -> None:
        for form in DATES:
            rules = CellRules(date=form)
            wrong = read_cells(texts, Field("x", "float64", cells=rules)).wrong
            self.dates[form] = self.dates.get(form, 0) + len(wrong) - int(wrong.sum())

    def kind(self) -> tuple[str, CellRules]:
        """Its dtype and rules; ``""`` and a rule without meaning if it has none."""
        most = 0.9 * self.filled
        if self.filled and self.truths >= most:
            return "bool", NO_RULES
        if self.filled and self.integers >= most and not self.codes:
            return "int64", NO_RULES
        if self.filled and self.numbers >= most and not self.codes:
            return "float64" if self.wide else "float32", NO_RULES
        forms = self._forms()
        if len(forms) == 1:
            dtype = "float64" if "%H" in forms[0] else "int32"
            return dtype, CellRules(date=forms[0])
        texts = self.texts or ()
        few = 0 < 2 * len(texts) <= self.filled and 2 * self.dated < self.filled
        plain = all(len(each) <= MAX_TEXT and each.isprintable() for each in texts)
        if not forms and few and plain:
            return "int64", CellRules(categories=tuple(sorted(texts)))
        return "", NO_RULES

    @property
    def wide(self) -> bool:
        """Whether float32 would make other numbers of its numbers."""
        return self.digits > _FLOAT32_DIGITS or self.highest > _FLOAT32_MOST

    def why_not(self) -> str:
        """Why it makes no field."""
        if not self.filled:
            return "all its cells are empty"
        if len(self.name) > MAX_TEXT:
            return f"its name has more than {MAX_TEXT} characters"
        if self.codes:
            return "its numbers begin with 0 and look like codes: write a field for it"
        if len(self._forms()) > 1:
            return "its dates have two possible formats: write a field with date = ..."
        if 2 * self.dated >= self.filled:
            return "its values look like dates: write a field with date = ..."
        return "it has mostly different texts, or more than 50"

    def _forms(self) -> list[str]:
        most = max(self.dates.values(), default=0)
        if not self.filled or most < 0.9 * self.filled:
            return []
        return [form for form, count in self.dates.items() if count == most]


def draft_from_texts(structures: Sequence[Structure]) -> Draft:
    """A schema for tables of one owner that have the same columns.

    Raises:
        MalformedError: code ``bad-schema``, if no column makes a field, or too many do.
    """
    columns = _look_at_all(structures)
    said = [f"{each.path.name}: {each.words}" for each in structures]
    fields: list[Field] = []
    left_out, taken = [], set[str]()
    for column in columns:
        dtype, rules = column.kind()
        if not dtype or len(column.name) > MAX_TEXT:
            left_out.append(column.name)
            said.append(f"left out: {column.name}: {column.why_not()}")
            continue
        fields += _with_empty(column, dtype, rules, taken)
        taken.update(each.name for each in fields[-2:])
    notes = tuple(map(visible, said))
    wide = {each.name for each in columns if each.wide}
    whole = tuple(_gathered(fields, wide))
    if not 0 < len(whole) <= _MOST_FIELDS:
        raise MalformedError(
            f"{len(whole):,} columns would become fields",
            why=f"a schema may have 1 to {_MOST_FIELDS}",
            fix="Write a schema with the columns that you need, and name the others in leave_out",
            code="bad-schema",
            problems=notes if not whole else (),
        )
    return Draft(Schema(whole, leave_out=tuple(left_out)), notes)


def _look_at_all(structures: Sequence[Structure]) -> list[_Column]:
    columns = {name: _Column(name) for each in structures for name in each.header}
    for structure in structures:
        for _, batch in batches(structure):
            for name, cells in zip(structure.header, batch.columns, strict=True):
                columns[name].look(cells)
    return list(columns.values())


def _with_empty(
    column: _Column, dtype: str, rules: CellRules, taken: set[str]
) -> Iterator[Field]:
    """The field of a column; where cells are empty, a second one that says which."""
    name = _field_name(column.name, taken)
    if name != column.name:
        rules = replace(rules, column=column.name)
    classes = len(rules.categories) or None
    if not column.empty:
        yield Field(name, dtype, classes=classes, cells=rules)
    elif rules.categories:
        own = "missing"
        while own in rules.categories:
            own += "_"
        rules = replace(rules, categories=(*rules.categories, own), empty=own)
        yield Field(name, dtype, classes=len(rules.categories), cells=rules)
    else:
        stated = False if dtype == "bool" else 0
        yield Field(name, dtype, cells=replace(rules, empty=stated))
        flag = _field_name(f"{name[:52]}_missing", {*taken, name})
        yield Field(flag, "bool", cells=CellRules(missing=name))


def _field_name(column: str, taken: set[str]) -> str:
    """A name that a field may have, as near to the column's as can be."""
    plain = unicodedata.normalize("NFKD", column.casefold())
    plain = plain.encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:58] or "column"
    name = name if name[0].isalpha() else f"c_{name}"
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _gathered(fields: Sequence[Field], wide: set[str]) -> Iterator[Field]:
    """``x_0``, ``x_1``, ... of numbers, one after another, become one field ``x``."""
    names = {each.name for each in fields}
    waiting = list(fields)
    while waiting:
        run, stem = _run(waiting)
        name = _field_name(stem, set())
        if len(run) < 2 or name in names:
            yield waiting.pop(0)
            continue
        names.add(name)
        dtype = max({each.dtype for each in run} - {"int64"}, default="int64")
        if dtype == "float32" and any((r.cells.column or r.name) in wide for r in run):
            dtype = "float64"
        rules = CellRules(column="" if stem == name else stem)
        yield Field(name, dtype, (len(run),), cells=rules)
        del waiting[: len(run)]


def _run(fields: Sequence[Field]) -> tuple[list[Field], str]:
    """Those at the beginning that are elements 0, 1, ... of one thing, and its name."""
    first = _NUMBERED.fullmatch(fields[0].cells.column or fields[0].name)
    stem, joint = first.groups()[:2] if first else ("", "")
    run: list[Field] = []
    for each in fields if stem and stem == stem.strip() else ():
        plain = replace(each.cells, column="") == NO_RULES and each.dtype != "bool"
        named = (each.cells.column or each.name) == f"{stem}{joint}{len(run)}"
        if not plain or not named:
            break
        run.append(each)
    return run, stem


def _most_digits(numbers: Any) -> int:
    plain = pc.replace_substring_regex(numbers, r"[eE].*$|[^0-9]", "")
    return pc.max(pc.utf8_length(pc.utf8_trim(plain, "0"))).as_py() or 0


def _count(matches: Any) -> int:
    return pc.sum(matches).as_py() or 0
