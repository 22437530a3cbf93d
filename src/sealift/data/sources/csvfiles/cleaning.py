"""Cells as an owner's ``table.toml`` says that they are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from unicodedata import normalize

import pyarrow as pa
import pyarrow.compute as pc

from sealift.data.schema.owntable import OwnTable
from sealift.data.schema.schema import Field

_MARKS: Final = {
    ".": r"\.", ",": ",", " ": "[ \u00a0\u2009\u202f]", "'": "['\u2019]"
}  # fmt: skip
_OTHER: Final = {".": ",", ",": "."}
_NO_NUMBER: Final = "not a number"


def clean(column: Any, spec: Field, own: OwnTable) -> Any:
    """A column of text, as ``cells`` reads it."""
    column = without_missing(column, own)
    if spec.cells.categories:
        return _with_categories(column, own.synonyms.get(spec.name, {}))
    cleans = own.writes_numbers and is_number(spec)
    return _plain_numbers(column, own) if cleans else column


def without_missing(column: Any, own: OwnTable) -> Any:
    """Empty cells where the file writes what its owner says that it writes instead."""
    if not own.missing:
        return column
    marks = pa.array(own.missing, pa.string())
    gone = pc.is_in(pc.utf8_trim_whitespace(column), value_set=marks)
    return pc.if_else(gone, "", column)


def is_number(spec: Field) -> bool:
    """Whether the cells of a field are written as numbers."""
    return spec.element.kind != "bool" and not spec.cells.of_text


def _with_categories(column: Any, synonyms: Any) -> Any:
    if not synonyms:
        return column
    names = pa.array([*synonyms], pa.string())
    categories = pa.array([*synonyms.values()], pa.string())
    places = pc.index_in(pc.utf8_trim_whitespace(column), value_set=names)
    return pc.coalesce(categories.take(places), column)


def _plain_numbers(column: Any, own: OwnTable) -> Any:
    texts = pc.utf8_trim_whitespace(column)
    for unit in _longest_first(own.units):
        texts = pc.utf8_trim_whitespace(_without(texts, re.escape(unit)))
    decimal = own.decimal or ("," if own.thousands == "." else ".")
    if own.thousands:
        mark = _MARKS[own.thousands]
        grouped = (
            rf"^[+-]?[1-9]\d{{0,2}}(?:{mark}\d{{3}})+(?:{re.escape(decimal)}\d*)?$"
        )
        whole = pc.match_substring_regex(texts, grouped)
        texts = pc.if_else(whole, pc.replace_substring_regex(texts, mark, ""), texts)
    # With a stated mark the other one is none, and never silently taken for it.
    other = pc.match_substring(texts, _OTHER[decimal]) if own.states_marks else None
    return texts if other is None else pc.if_else(other, _NO_NUMBER, texts)


def units_in(column: Any, spec: Field, own: OwnTable) -> dict[str, int]:
    """The units that ``clean`` takes from a column, and the first row that has each."""
    if len(own.units) < 2 or not is_number(spec):
        return {}
    texts = pc.utf8_trim_whitespace(column)
    found: dict[str, int] = {}
    for unit in _longest_first(own.units):
        rest = pc.utf8_trim_whitespace(_without(texts, re.escape(unit)))
        row = pc.index(pc.not_equal(texts, rest), True).as_py()
        if row >= 0:  # the micro sign and the Greek letter are one unit
            name = normalize("NFKC", unit)
            found[name] = min(row, found.get(name, row))
        texts = rest
    return found


def _longest_first(units: Sequence[str]) -> list[str]:
    """So that mg is not taken for m and g."""
    return sorted(units, key=len, reverse=True)


def _without(texts: Any, unit: str) -> Any:
    before = pc.replace_substring_regex(texts, rf"^([+-]?){unit}\s*([+-]?)", r"\1\2")
    return pc.replace_substring_regex(before, rf"{unit}$", "")
