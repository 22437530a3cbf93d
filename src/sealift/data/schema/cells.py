"""How the cells of a text table become the numbers of a field.

What stands in a cell is the owner's own: text for a category, nothing at all, a date as it
is written there. What becomes of it is for all to know, since a model learns from the
numbers: categories in their order, and what an empty cell counts as, stand in the
agreement. What a column is called, and how dates are written, does not.
Standard library only. Source: spec/table.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from sealift.errors import MalformedError

MAX_CATEGORIES: Final = 4096
MAX_TEXT: Final = 200
Stated = float | str | bool | None

_KINDS: Final = {
    "float": "a number", "int": "a whole number", "bool": "true or false"
}  # fmt: skip
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TIME_OF_DAY = re.compile(r"%[HIMSfpXcs]")
_DATE: Final = datetime(2024, 12, 30, 13, 45, 56, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CellRules:
    """Of one field.

    Args:
        column: What the source calls it, if not by the field's name.
        columns: Of a field with several elements: what the source calls each of them, in
            their order, if not by ``column`` and a number.
        columns_digest: Of ``columns``, where they are not said: an element means the same
            in the tables of all owners only if it is the same.
        categories: A cell's text is one of these; its number is the place in the list.
        empty: What an empty cell counts as: a number, a truth value, one of the
            categories, or ``"nan"``. None: it is refused.
        missing: Of a bool field that has no column: true where the cell of the field of
            this name is empty.
        date: How dates are written there (``datetime.strptime``); the number is days
            since 1970-01-01, with a fraction where the time of day is written, too.
    """

    column: str = ""
    columns: tuple[str, ...] = ()
    columns_digest: str = ""
    categories: tuple[str, ...] = ()
    empty: Stated = None
    missing: str = ""
    date: str = ""

    @property
    def of_text(self) -> bool:
        """Whether cells are no numbers."""
        return bool(self.categories or self.date)

    @property
    def agreed(self) -> CellRules:
        """What others need to know of them: not how dates are written, but that they are."""
        return replace(
            self,
            column="",
            columns=(),
            columns_digest=self.meaning,
            date="%Y-%m-%d" if self.date else "",
        )

    @property
    def meaning(self) -> str:
        """The digest of the names of the elements, in their order; "" without names."""
        if self.columns_digest or not self.columns:
            return self.columns_digest
        names = json.dumps(self.columns, ensure_ascii=False, separators=(",", ":"))
        return sha256(names.encode()).hexdigest()


NO_RULES: Final = CellRules()


def check_cells(rules: CellRules, kind: str, classes: int | None) -> None:
    """Demand that rules fit a field of element ``kind`` (``DType.kind``).

    Raises:
        MalformedError: code ``bad-schema``; names the key.
    """
    _check_column(rules, kind)
    if rules.categories:
        _check_categories(rules, kind, classes)
    elif isinstance(rules.empty, str):
        if (rules.empty, kind) != ("nan", "float"):
            raise bad_schema("empty", "the text for empty cells must be a category")
    elif rules.empty is not None and not _is_of_kind(rules.empty, kind):
        raise bad_schema("empty", f"the value of an empty cell must be {_KINDS[kind]}")
    if rules.date:
        _check_date(rules, kind)


def _is_of_kind(stated: float | bool, kind: str) -> bool:
    if isinstance(stated, bool) or kind == "bool":
        return isinstance(stated, bool) and kind == "bool"
    return kind == "float" or isinstance(stated, int)


def _check_column(rules: CellRules, kind: str) -> None:
    if rules.column != rules.column.strip() or len(rules.column) > MAX_TEXT:
        raise bad_schema(
            "column", f"a column's name may have at most {MAX_TEXT} characters"
        )
    if rules.columns and rules.column:
        raise bad_schema("columns", "a field has either column or columns")
    if len(set(rules.columns)) != len(rules.columns) or any(
        not name or name != name.strip() or len(name) > MAX_TEXT
        for name in rules.columns
    ):
        raise bad_schema(
            "columns", "the names of columns must be different, and not empty"
        )
    if rules.columns_digest and not _DIGEST.fullmatch(rules.columns_digest):
        raise bad_schema("columns_digest", "it must be 64 digits 0-9 and a-f")
    alone = CellRules(missing=rules.missing)
    if rules.missing and (kind != "bool" or rules != alone):
        raise bad_schema("missing", "it must be a bool field without other rules")


def _check_categories(rules: CellRules, kind: str, classes: int | None) -> None:
    names = rules.categories
    if kind != "int":
        raise bad_schema("categories", "only an integer field can have categories")
    if not 1 <= len(names) <= MAX_CATEGORIES or len(set(names)) != len(names):
        raise bad_schema(
            "categories", f"there must be 1 to {MAX_CATEGORIES:,}, all different"
        )
    for name in names:
        fits = name and name == name.strip() and name.isprintable()
        if not fits or len(name) > MAX_TEXT:
            raise bad_schema(
                "categories", "a category must be text without outer spaces"
            )
    if classes != len(names):
        raise bad_schema(
            "classes", "the categories give the number", fix="Leave it out"
        )
    if rules.empty is not None and rules.empty not in names:
        raise bad_schema(
            "empty", "the value of an empty cell must be one of the categories"
        )


def _check_date(rules: CellRules, kind: str) -> None:
    if rules.categories or kind == "bool":
        raise bad_schema("date", "a date needs an integer field (a number of days)")
    if "%" not in rules.date or not rules.date.isprintable():
        raise bad_schema(
            "date", "not a date format", fix='Write "%Y-%m-%d" for 2024-12-31'
        )
    if not _is_form(rules.date):
        raise bad_schema(
            "date",
            "a date format must have a year, a month and a day, each once",
            fix='Write "%Y-%m-%d" for 2024-12-31',
        )
    if kind == "int" and _TIME_OF_DAY.search(rules.date):
        raise bad_schema("date", "a date with a time of day needs a float64 field")


def _is_form(form: str) -> bool:
    """Whether a date that is written so can be read again."""
    try:
        return datetime.strptime(_DATE.strftime(form), form).date() == _DATE.date()
    except (ValueError, re.error):
        return False


def bad_schema(path: str, what: str, *, fix: str = "") -> MalformedError:
    """The error of a schema, with the field that is meant."""
    return MalformedError(what, field=path, fix=fix, code="bad-schema")
