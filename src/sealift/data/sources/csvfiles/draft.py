"""A schema drafted from text tables, for their owner to look at and correct.

Every cell is read. A column is what nine of ten of its cells are; the rest is told as
problems. Text becomes categories only where few different texts are repeated: names,
identifiers and remarks are left out, since categories stand in the agreement for all to
read. No bounds are drafted: the least and the greatest value are somebody's.

Columns of numbers that become one field with several elements.

``x_0``, ``x_1``, ... may be elements of one thing, or just columns without better names, the
label among them. They are put together only where the owner asks, or where nothing
speaks against it; what was done is said.

A ``table.toml`` drafted from the file that it is about; nothing in it is in force.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from shlex import quote
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sealift.data.schema.cells import MAX_TEXT, NO_RULES, CellRules
from sealift.data.schema.owntable import OwnTable, own_keys_as_comments
from sealift.data.schema.schema import MAX_FIELDS, Field, Schema
from sealift.data.sources.csvfiles.cells import (
    INTEGER,
    NOTHING,
    NUMBER,
    Mask,
    count,
    mask,
    read_cells,
)
from sealift.data.sources.csvfiles.cleaning import clean, without_missing
from sealift.data.sources.csvfiles.doubts import Values, doubt_categories
from sealift.data.sources.csvfiles.likenumbers import LikeNumbers, look_like_numbers
from sealift.data.sources.csvfiles.quick import QuickMarks, numbers_of
from sealift.data.sources.csvfiles.reader import column_names, each_batch
from sealift.data.sources.csvfiles.structure import Structure
from sealift.data.sources.source import NO_OPTIONS, Draft, SourceOptions, field_name
from sealift.errors import MalformedError, UsageError, nearest, visible
from sealift.events import Sink, discard, emit

MOST_CATEGORIES: Final = 50
DATES: Final = (
    "%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d",
    "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M",
)  # fmt: skip
_TRUTHS: Final = ("true", "false")
_DATED = (
    r"^\d{1,4}[-./ ](\d{1,2}|[A-Za-z]{3,9})[-./ ]\d{1,4}([ T]\d{1,2}:\d\d.*)?$"
    r"|^(\d{1,2}[-./]\d{4}|\d{4}[-./]\d{1,2})$"
    r"|^\d{1,2}[-./ ]?[A-Za-z]{3,9}[-./ ]?\d{2,4}([ T:]\d{1,2}:\d\d.*)?$"
)
_CODE = r"^0\d+$"  # no number that somebody counts with is written so
_WORDS_OF_A_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[^\W\d_][^\W\d_A-Z]*")
_IDENTIFIERS: Final = frozenset({"id", "nr", "no", "unnamed"})
_WITHOUT_NAME: Final = re.compile(r"column \d+")  # as `structure` calls such a one
_NAMED: Final = 5
_FLOAT32_MOST: Final = 3.4e38
_FLOAT32_DIGITS: Final = 7
_FEW: Final = 1000
_SURELY_INT64: Final = 2.0**62
_A_NUMBER: Final = Field("x", "float64")


_NUMBERED: Final = re.compile(r"(.*?)(_?)(\d+)")  # a column: what, joint, which element


_SHOWN: int = 200


def draft_own_table(structure: Structure, schema: Schema | None) -> str:
    """The document; every key in it is a comment, until its owner takes the # away.

    Args:
        structure: Of the file.
        schema: What the host declares, where that is known.
    """
    lines = [
        "How this file is written. No other party sees this, and nothing of it is in an agreement.",
        "Remove the # of a line to use that line. This is how the file was read without them:",
        f"{structure.path.name}: {structure.words}, {structure.rows:,} rows",
        f"columns: {', '.join(structure.header[:_SHOWN])}",
    ]
    units: tuple[str, ...] = ()
    try:
        draft = draft_from_texts([structure])
        units = draft.units
        lines += draft.notes[1:]
    except MalformedError as error:
        lines += [*error.problems, str(error)]
    text = "".join(f"# {visible(line)}\n" for line in lines)
    settings = own_keys_as_comments(
        encoding=structure.encoding, delimiter=structure.delimiter, units=units
    )
    return "\n".join([text, settings, *_columns(structure, schema)])


def _columns(structure: Structure, schema: Schema | None) -> Iterator[str]:
    """What the host's columns may be called here, and which columns it has no field for."""
    if schema is None:
        yield '# [columns]  # names of the host\'s fields, and of your columns\n# age = "Alter"\n'
        return
    header = structure.header
    free, missing = set(header), []
    for spec in schema.fields:
        names = column_names(spec, header)
        free -= set(names)
        missing += [spec] if not set(names) <= set(header) and names else []
    by_name = {field_name(name, set()): name for name in header if name in free}
    yield "# [columns]  # names of the host's fields, and of your columns"
    for spec in missing:
        near = get_close_matches(spec.name, by_name, n=1)
        name = by_name.pop(near[0]) if near else "?"  # a column is of one field
        yield f"# {spec.name} = {_quoted(name)}"
        free.discard(name)
    unused = ", ".join(_quoted(name) for name in header if name in free)
    yield f"\n# Columns of yours for which the host has no field; this line belongs above [columns]:\n# leave_out = [{unused}]\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class Gathered:
    """The fields of a draft.

    Attributes:
        fields: In the order of their first columns.
        notes: Which columns became one field, or might, a line each.
    """

    fields: tuple[Field, ...]
    notes: tuple[str, ...]


def gather(
    fields: Sequence[Field], wide: set[str], vectors: Sequence[tuple[str, str]]
) -> Gathered:
    """Put columns together: those that are asked for, and those without doubt.

    Args:
        fields: One per column, and those that say where cells are empty.
        wide: Columns whose numbers need float64.
        vectors: See ``SourceOptions``.

    Raises:
        UsageError: a vector's columns are not there, or are no numbers.
    """
    asked = {}
    for name, pattern in vectors:
        columns = _matching(fields, pattern)
        field = _joined(columns, wide, name)
        named = CellRules(columns=tuple(map(_column, columns)))
        asked[columns[0].name] = (len(columns), replace(field, cells=named))
        first = fields.index(columns[0])
        if fields[first : first + len(columns)] != columns:
            raise UsageError(
                f"the columns of the vector {name} are not next to each other",
                fix="Give a vector for each part, or put the columns in order",
            )
    whole: list[Field] = []
    notes: list[str] = []
    waiting = list(fields)
    names = {each.name for each in fields}
    while waiting:
        if waiting[0].name in asked:
            count, field = asked[waiting[0].name]
            whole.append(field)
            notes.append(_said(field, waiting[:count]))
            del waiting[:count]
            continue
        run, stem = _run(waiting)
        name = field_name(stem, set())
        if len(run) < 2 or name in names:
            whole.append(waiting.pop(0))
            continue
        names.add(name)
        if doubt := _doubt(run, fields):
            whole += run
            notes.append(
                f"{_column(run[0])} to {_column(run[-1])} are {len(run):,} fields, because "
                f"{doubt}; to make one field of them, add --vector "
                + quote(f"{name}={_column(run[0])}..{_column(run[-1])}")
            )
        else:
            rules = CellRules(column="" if stem == name else stem)
            whole.append(replace(_joined(run, wide, name), cells=rules))
            notes.append(_said(whole[-1], run))
        del waiting[: len(run)]
    return Gathered(tuple(whole), tuple(notes))


def _doubt(run: Sequence[Field], fields: Sequence[Field]) -> str:
    """What speaks against one field, in words."""
    if len({each.dtype for each in run}) > 1:
        return "they have different types"
    if not any(each not in run and not each.cells.missing for each in fields):
        return "the table has no other column, and one of them may be the label"
    return ""


def _said(field: Field, run: Sequence[Field]) -> str:
    first, last = _column(run[0]), _column(run[-1])
    return f"{field.name}: one field of {len(run):,} elements, from {first} to {last}"


def _joined(run: Sequence[Field], wide: set[str], name: str) -> Field:
    dtype = max({each.dtype for each in run} - {"int64"}, default="int64")
    if dtype == "float32" and any(_column(each) in wide for each in run):
        dtype = "float64"
    return Field(name, dtype, (len(run),))


def _column(field: Field) -> str:
    return field.cells.column or field.name


def _is_plain(field: Field) -> bool:
    """Whether it is numbers in every cell."""
    return replace(field.cells, column="") == NO_RULES and field.dtype != "bool"


def _matching(fields: Sequence[Field], pattern: str) -> list[Field]:
    """Those whose columns a pattern names, in their order."""
    columns = [_column(each) for each in fields if not each.cells.missing]
    found = [name for name in columns if fnmatchcase(name, pattern)]
    first, span, last = pattern.partition("..")
    if span and first in columns and last in columns:
        found = columns[columns.index(first) : columns.index(last) + 1]
    if len(found) < 2:
        raise UsageError(
            f"--vector: no columns are called {pattern}",
            fix=nearest(first, columns)
            or "Write NAME=FIRST..LAST, or NAME=PATTERN with *",
        )
    chosen = [each for each in fields if _column(each) in found]
    for each in chosen:
        if not _is_plain(each):
            raise UsageError(
                f"--vector: the column {_column(each)} cannot be an element",
                why="not all its cells are numbers",
                fix="Correct its cells, or choose other columns",
            )
    return chosen


def _run(fields: Sequence[Field]) -> tuple[list[Field], str]:
    """Those at the beginning that are elements 0, 1, ... of one thing, and its name."""
    first = _NUMBERED.fullmatch(_column(fields[0]))
    stem, joint = first.groups()[:2] if first else ("", "")
    run: list[Field] = []
    for each in fields if stem and stem == stem.strip() else ():
        if not _is_plain(each) or _column(each) != f"{stem}{joint}{len(run)}":
            break
        run.append(each)
    return run, stem


def _suggest_vector(fields: Sequence[Field]) -> str:
    """How to put the longest run of alike columns into one field; "" if there is none."""
    kinds = groupby(fields, key=lambda each: (each.dtype, each.shape, _is_plain(each)))
    runs: Iterator[list[Field]] = (list(run) for kind, run in kinds if kind[2])
    longest = max(runs, key=len, default=[])
    if len(longest) < 2:
        return ""
    if len(longest) > 2 and longest[-1] is fields[-1]:
        longest.pop()  # the last column of a table often is its label
    pattern = quote(f"values={_column(longest[0])}..{_column(longest[-1])}")
    return (
        f"The {len(longest):,} columns from {_column(longest[0])} to {_column(longest[-1])} "
        f"are alike. To make one field of them, add --vector {pattern}; no label may be among them"
    )


@dataclass
class _Column:
    """What the cells of one column, or of a block of it, are.

    Where a block is all numbers, only what may matter is counted: ``integers`` is the most
    that there can be (``unsure``), and dates and texts are not looked for (``unread``).
    """

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
    few: tuple[str, ...] = ()  # of its first different texts
    unsure: bool = False
    unread: int = 0
    repeated: bool = False  # a value within a block; known of identifiers' names alone
    values: Values = field(default_factory=Values)

    @property
    def filled(self) -> int:
        """Cells with something in them."""
        return self.cells - self.empty

    def add(self, more: _Column) -> None:
        """Count what another block of the column has."""
        for each in ("cells", "empty", "integers", "numbers", "truths", "codes"):
            setattr(self, each, getattr(self, each) + getattr(more, each))
        self.dated += more.dated
        self.highest = max(self.highest, more.highest)
        self.digits = max(self.digits, more.digits)
        for form, dated in more.dates.items():
            self.dates[form] = self.dates.get(form, 0) + dated
        if self.texts is not None:
            self.texts = None if more.texts is None else self.texts | more.texts
            if self.texts is not None and len(self.texts) > MOST_CATEGORIES:
                self.texts = None
        self.few = self.few or more.few
        self.unsure |= more.unsure
        self.unread += more.unread
        self.repeated |= more.repeated
        self.values.add(more.values)

    @property
    def is_named_identifier(self) -> bool:
        """Whether a word of its name says that it counts things, as one without a name does."""
        if _WITHOUT_NAME.fullmatch(self.name):
            return True  # R and pandas number rows so
        words = {each.lower() for each in _WORDS_OF_A_NAME.findall(self.name)}
        return not words.isdisjoint(_IDENTIFIERS)

    @property
    def is_identifier(self) -> bool:
        """Whether its name says so, and no block has a value twice."""
        return self.is_named_identifier and self.filled > 1 and not self.repeated

    def look(self, column: Any) -> None:
        """Count what the cells of a block are; each different text is looked at once."""
        found = pc.value_counts(column)
        texts = pc.utf8_trim_whitespace(found.field("values"))
        times = found.field("counts").to_numpy()

        def counted(matches: Any) -> int:
            return int(times[mask(matches)].sum())

        self.few = tuple(texts.slice(0, MOST_CATEGORIES).to_pylist())
        self.repeated |= bool((times > 1).any())
        lower = pc.utf8_lower(texts)
        nothing = pc.is_in(lower, value_set=pa.array(NOTHING))
        self.cells += len(column)
        self.empty += counted(nothing)
        self.truths += counted(pc.is_in(lower, value_set=pa.array(_TRUTHS)))
        self.integers += counted(pc.match_substring_regex(texts, INTEGER))
        numbers = pc.match_substring_regex(texts, NUMBER)
        self.numbers += counted(numbers)
        if count(numbers):
            values = read_cells(texts, Field("x", "float64", finite=False)).numbers
            finite = np.isfinite(values) & mask(numbers)
            self.values.look(values[finite], times[finite])
            largest = np.abs(values[finite]).max(initial=0.0)
            self.highest = max(self.highest, float(largest))
            self.digits = max(self.digits, _most_digits(texts.filter(numbers)))
            self.codes += counted(pc.match_substring_regex(texts, _CODE))
        if dated := counted(pc.match_substring_regex(texts, _DATED)):
            self.dated += dated
            self._look_for_dates(texts, times)
        if self.texts is not None:
            kept = pc.unique(texts.filter(pc.invert(nothing)))
            self.texts |= set(kept.slice(0, MOST_CATEGORIES + 1).to_pylist())
            if len(self.texts) > MOST_CATEGORIES:
                self.texts = None

    def look_quickly(self, column: Any) -> bool:
        """Count them in a block that is all numbers; false if it is not."""
        read = numbers_of(column, "int", "float")
        if read is None or (read.empty is not None and read.empty.all()):
            return False
        texts, values = read.texts, read.values
        if read.empty is not None:
            texts, values = texts.filter(pa.array(~read.empty)), values[~read.empty]
        self.cells += len(column)
        self.empty += len(column) - len(texts)
        self.numbers += len(texts)
        self.highest = max(self.highest, float(np.abs(values.astype(float)).max()))
        self.values.look(values)
        self.unread += len(column)
        if self.is_named_identifier:
            self.repeated |= len(np.unique(values)) < len(values)
        whole = np.ones(len(values), dtype=bool)
        if values.dtype.kind == "f":
            whole = values == np.floor(values)
        lengths = pc.binary_length(texts).to_numpy()
        self._count_integers(texts, whole, exact=values.dtype.kind == "i")
        codes = texts.filter(pa.array(whole & (lengths > 1)))
        if pc.any(pc.starts_with(codes, "0")).as_py():
            self.codes += count(pc.match_substring_regex(codes, _CODE))
        # A number that is not whole has a mark, and one below 0 a sign, beside its digits.
        long = texts.filter(pa.array(lengths - (values < 0) - ~whole > _FLOAT32_DIGITS))
        for part in (long.slice(0, _FEW), long.slice(_FEW)):
            if len(part) and not self.wide:
                self.digits = max(self.digits, _most_digits(part))
        return True

    def _count_integers(self, texts: Any, whole: Mask, *, exact: bool) -> None:
        """All are, if they were read as integers; else perhaps those that are whole."""
        if exact:
            self.integers += len(texts)
        elif 2 * int(whole.sum()) >= len(texts):
            self.integers += count(pc.match_substring_regex(texts, INTEGER))
        else:
            self.integers += int(whole.sum())
            self.unsure = True

    def _look_for_dates(self, texts: Any, times: Any) -> None:
        for form in DATES:
            rules = CellRules(date=form)
            wrong = read_cells(texts, Field("x", "float64", cells=rules)).wrong
            self.dates[form] = self.dates.get(form, 0) + int(times[~wrong].sum())

    @property
    def undecided(self) -> bool:
        """Whether what was not counted matters."""
        most = 0.9 * self.filled
        if not self.filled or self.truths >= most:
            return False
        if self.unsure and self.integers >= most and not self.codes:
            return True
        return self.unread > 0 and (self.numbers < most or self.codes > 0)

    @property
    def _are_truths(self) -> bool:
        """Whether some programs wrote true and false, and others 1 and 0."""
        if not self.truths or self.unread or self.texts is None:
            return False
        return {*map(str.lower, self.texts)} <= {*_TRUTHS, "0", "1"}

    def fits(self, dtype: str, rules: CellRules) -> bool:
        """Whether every cell is surely what ``kind`` says."""
        if rules.categories:
            return True
        if rules.date:
            return self.dates[rules.date] == self.filled
        if dtype == "bool":
            return self.truths == self.filled
        if self.unread < self.cells:  # a block was not all numbers, or unusual ones
            return False
        whole = self.integers == self.filled and self.highest < _SURELY_INT64
        return dtype != "int64" or (whole and not self.unsure)

    def kind(self) -> tuple[str, CellRules]:
        """Its dtype and rules; ``""`` and a rule without meaning if it has none."""
        most = 0.9 * self.filled
        if (self.filled and self.truths >= most) or self._are_truths:
            return "bool", NO_RULES
        whole = self.integers >= most and self.integers == self.numbers
        if self.filled and whole and not self.codes:
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

    def like_numbers(self, own: OwnTable) -> LikeNumbers | None:
        """How its cells may be read as numbers, if they look so."""
        if not self.filled or self.codes or self._forms():
            return None
        return look_like_numbers(self.few, own)

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
        if self.repeated and self.texts is None:
            return (
                f"it has more than {MOST_CATEGORIES} different texts; to use it all the same, write a field "
                "with its categories"
            )
        odd = [each for each in self.texts or () if not each.isprintable()]
        if odd and 2 * len(self.texts or ()) <= self.filled:
            return f"{odd[0][:40]!r} has a character that cannot be seen; delete it"
        return "it has mostly different texts, or more than 50"

    def _forms(self) -> list[str]:
        most = max(self.dates.values(), default=0)
        if not self.filled or most < 0.9 * self.filled:
            return []
        return [form for form, count in self.dates.items() if count == most]


def draft_from_texts(
    structures: Sequence[Structure],
    options: SourceOptions = NO_OPTIONS,
    sink: Sink = discard,
) -> Draft:
    """A schema for tables of one owner that have the same columns.

    Args:
        structures: Of the files.
        options: Which columns become one field, and what the owner says of the files.
        sink: Gets ``data.progress`` events.

    Raises:
        MalformedError: code ``bad-schema``, if no column makes a field, or too many do.
        UsageError: a vector's columns are not there, or are no numbers.
    """
    own = options.own
    for each in structures:
        own.demand_left_out(each.header)
    columns, plain = _look_at_all(structures, own, sink)
    said = [f"{each.path.name}: {each.words}" for each in structures]
    said += filter(None, (_doubt_header(each) for each in structures))
    fields: list[Field] = []
    left_out, taken = [], set[str]()
    with_empty: list[str] = []
    units: dict[str, None] = {}
    for column in columns:
        dtype, rules = column.kind()
        if column.name in own.leave_out:
            left_out.append(column.name)
            continue
        like = None if dtype and not rules.of_text else column.like_numbers(own)
        units |= dict.fromkeys(like.own.units if like is not None else ())
        if not dtype or len(column.name) > MAX_TEXT:
            left_out.append(column.name)
            said.append(f"left out: {column.name}: {_why_not(column, like)}")
            continue
        if like is not None:
            said.append(f"{column.name}: categories, although {_why_not(column, like)}")
        doubts = _doubts(column, dtype, rules, taken)
        said += [f"{column.name}: {each}" for each in doubts]
        with_empty += [column.name] if column.empty and not rules.categories else []
        plain &= column.fits(dtype, rules)
        fields += _with_empty(column, dtype, rules, taken)
        taken.update(each.name for each in fields[-2:])
    said += _said_empty(with_empty)
    wide = {each.name for each in columns if each.wide}
    whole = gather(fields, wide, options.vectors)
    said += whole.notes
    notes = tuple(map(visible, said))
    if not 0 < len(whole.fields) <= MAX_FIELDS:
        raise MalformedError(
            f"{len(whole.fields):,} columns would become fields"
            if whole.fields
            else f"no column of {structures[0].path.name} can become a field",
            why=f"a schema may have 1 to {MAX_FIELDS}" if whole.fields else "",
            fix=_suggest_vector(whole.fields)
            or _one_column(structures)
            or "Write a schema with the columns that you need, and name the others in leave_out",
            code="bad-schema",
            problems=notes if not whole.fields else (),
        )
    schema = Schema(whole.fields, leave_out=tuple(left_out))
    return Draft(schema, notes, plain, tuple(units))


def _doubts(
    column: _Column, dtype: str, rules: CellRules, taken: set[str]
) -> Iterator[str]:
    """What may be meant by a column that becomes a field."""
    if rules.categories:
        yield from doubt_categories(rules.categories, field_name(column.name, taken))
        if len(rules.categories) == 1 and not column.empty:
            yield (
                "it has the same text in every row, so a model learns nothing from it; list the other categories if "
                "other owners have some, or leave it out"
            )
    elif dtype == "int64" and column.is_identifier:
        yield (
            "looks like an identifier, because its values are all different; if it is one, add it to "
            "leave_out"
        )
    elif not rules.date:
        yield from column.values.doubts(column.filled, gaps=column.empty > 0)


def _said_empty(names: Sequence[str]) -> Iterator[str]:
    """That empty cells of these columns become a number, if there are any."""
    if names:
        shown = ", ".join([*names[:_NAMED], *(["..."] if names[_NAMED:] else [])])
        yield (
            f"empty cells of {shown} become 0, and a field beside each says where; a row without its label "
            "does not belong in the table"
        )


def _one_column(structures: Sequence[Structure]) -> str:
    """What to do where a whole row seems to be one cell; "" where it does not."""
    if len(structures[0].header) > 1:
        return ""
    return (
        "If its rows have several cells, perhaps with spaces between them, write commas, semicolons, tabs or "
        "bars between them, and delete what stands above the columns' names"
    )


def _doubt_header(structure: Structure) -> str:
    """Whether the first line is a row, and no names; programs that number columns count up."""
    header = structure.header
    numbers = [each for each in header if re.fullmatch(NUMBER, each)]
    if not numbers or 2 * len(numbers) < len(header):
        return ""
    if all(map(str.isdecimal, numbers)):
        first = int(numbers[0])
        if [*map(int, numbers)] == [*range(first, first + len(numbers))]:
            return ""
    return (
        f"{structure.path.name}, line 1: {numbers[0]!r} is an unusual name of a column; if the line is a "
        "row, put a line with the columns' names above it"
    )


def _why_not(column: _Column, like: LikeNumbers | None) -> str:
    if like is None:
        return column.why_not()
    return f"its cells, such as {like.text!r}, look like numbers; to use them, {like.advice}"


def _look_at_all(
    structures: Sequence[Structure], own: OwnTable, sink: Sink
) -> tuple[list[_Column], bool]:
    """All columns, and whether rows and marks of numbers are beyond doubt."""
    names = list({name: None for each in structures for name in each.header})
    columns = {name: _Column(name) for name in names}
    cells = sum(each.rows * len(each.header) for each in structures)
    done, plain = 0, len(own.units) < 2  # else units may be mixed in a column
    for structure in structures:
        marks = None if own.states_marks else QuickMarks.of(structure)
        look = partial(_seen, structure, own, marks=marks, quickly=True)
        for _, found in each_batch(structure, look):
            for each in found:
                columns[each.name].add(each)
            done += sum(each.cells for each in found)
            emit(sink, "data.progress", done_bytes=done, total_bytes=cells)
        same = set(structure.header) == set(names) and len(structure.header) == len(
            names
        )
        plain &= structure.regular and same and not (marks and marks.matter)
    again = [name for name, each in columns.items() if each.undecided]
    columns |= {name: _Column(name) for name in again}
    for structure in structures if again else ():
        places = [at for at, name in enumerate(structure.header) if name in again]
        look = partial(_seen, structure, own, places=places)
        for _, found in each_batch(structure, look, chosen=places):
            for each in found:
                columns[each.name].add(each)
    return list(columns.values()), plain


def _seen(
    structure: Structure,
    own: OwnTable,
    batch: Any,
    *,
    places: Sequence[int] | None = None,
    marks: QuickMarks | None = None,
    quickly: bool = False,
) -> list[_Column]:
    """What the columns of a batch are."""
    at = range(len(structure.header)) if places is None else places
    seen = []
    for place, cells in zip(at, batch.columns, strict=True):
        column = _Column(structure.header[place])
        cells = without_missing(cells, own)
        plain = clean(cells, _A_NUMBER, own)
        if quickly and len(cells) and column.look_quickly(plain):
            if marks is not None:
                marks.look(plain, place)
        elif len(cells):
            column.look(plain if _are_numbers(plain) else cells)
        seen.append(column)
    return seen


def _are_numbers(cells: Any) -> bool:
    """Whether nine of ten are, once units and marks are gone."""
    numbers = pc.match_substring_regex(cells.slice(0, _FEW), NUMBER)
    return 10 * count(numbers) >= 9 * len(numbers)


def _with_empty(
    column: _Column, dtype: str, rules: CellRules, taken: set[str]
) -> Iterator[Field]:
    """The field of a column; where cells are empty, a second one that says which."""
    name = field_name(column.name, taken)
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
        flag = field_name(f"{name[:52]}_missing", {*taken, name})
        yield Field(flag, "bool", cells=CellRules(missing=name))


def _most_digits(numbers: Any) -> int:
    plain = pc.replace_substring_regex(numbers, r"[eE].*$|[^0-9]", "")
    return pc.max(pc.utf8_length(pc.utf8_trim(plain, "0"))).as_py() or 0
