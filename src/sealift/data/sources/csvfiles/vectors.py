"""Columns of numbers that become one field with several elements.

``x_0``, ``x_1``, ... may be elements of one thing, or just columns without better names, the
label among them. They are put together only where the owner asks, or where nothing
speaks against it; what was done is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from shlex import quote
from typing import Final

from sealift.data.schema.cells import NO_RULES, CellRules
from sealift.data.schema.schema import Field
from sealift.data.sources.source import field_name
from sealift.errors import UsageError, nearest

_NUMBERED: Final = re.compile(r"(.*?)(_?)(\d+)")  # a column: what, joint, which element


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
                f"the columns of the vector {name} do not stand beside each other",
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


def suggest_vector(fields: Sequence[Field]) -> str:
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
