"""``table.toml``: what an owner says of its own text file, and nobody else hears.

Others have the same fields; what the columns of this file are called, how its dates and
numbers are written, in which encoding, and what its columns that nobody asks for are, is its
owner's alone. None of it is in an agreement or on any wire.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sealift.codec import parse_toml
from sealift.data.schema.cells import CellRules
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError, nearest
from sealift.release.files import read_whole

FILE: Final = "table.toml"
IN_FILE: Final = f"in {FILE}, a file that you make beside your table"
MAX_BYTES: Final = 1 << 20
DELIMITERS: Final = (",", ";", "\t", "|")
_KEYS: Final = (
    "encoding", "delimiter", "decimal", "thousands", "units", "missing", "leave_out", "columns",
    "dates", "synonyms",
)  # fmt: skip
_THOUSANDS: Final = (",", ".", " ", "'")


@dataclass(frozen=True, slots=True)
class OwnTable:
    """What is said of a file.

    Attributes:
        encoding: As Python calls it; "" to look for it.
        delimiter: Between cells; "" to look for it.
        decimal: ``"."`` or ``","``; "" to look for it.
        thousands: What parts thousands in numbers: a comma, a point, an apostrophe or a
            space of any kind; "" if nothing does.
        units: Texts before or behind numbers, such as ``%`` or ``EUR``. They are dropped,
            and 12 % is 12.
        missing: What this file writes where nothing is there, such as ``?``, in any column;
            beside empty cells, NA, N/A, null and a single point.
        leave_out: Columns that are in no field.
        columns: What this file calls the column of a field, or of each of its elements.
        dates: How this file writes the dates of a field (``datetime.strptime``).
        synonyms: By field: what this file writes for a category, and the category.
        source: The file's name, for errors.
    """

    encoding: str = ""
    delimiter: str = ""
    decimal: str = ""
    thousands: str = ""
    units: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    synonyms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    source: str = FILE

    @property
    def writes_numbers(self) -> bool:
        """Whether it says anything about how numbers are written."""
        return bool(self.decimal or self.thousands or self.units)

    @property
    def states_marks(self) -> bool:
        """Whether it says what points and commas in numbers are."""
        return bool(self.decimal or self.thousands)

    def schema_here(self, schema: Schema) -> Schema:
        """The same fields, by the names and dates of this file.

        Raises:
            MalformedError: code ``bad-table-file``: it speaks of a field that is not there, or
                says what a field cannot have.
        """
        names = [each.name for each in schema.fields]
        for key in ("columns", "dates", "synonyms"):
            for name in getattr(self, key):
                if name not in names:
                    fix = nearest(name, names) or f"The fields are {', '.join(names)}"
                    raise _bad(f"{key}.{name}", "the schema has no such field", fix)
        try:
            fields = tuple(map(self._field_here, schema.fields))
            used = {
                each
                for spec in fields
                for each in (*spec.cells.columns, spec.cells.column or spec.name)
            }
            for name in self.leave_out:
                if name in used:
                    raise _bad(
                        "leave_out",
                        f"a field uses the column {name[:80]!r}",
                        "Take it out of leave_out, or the field out of the schema",
                    )
            left_out = dict.fromkeys((*schema.leave_out, *self.leave_out))
            return Schema(
                fields,
                schema.description,
                tuple(each for each in left_out if each not in used),
            )
        except MalformedError as error:
            if error.code == "bad-table-file":
                raise
            raise _bad(str(error.field or ""), error.what, error.fix or "") from None

    def of_fields(self, names: Sequence[str]) -> OwnTable:
        """What it says of these fields and of the file, but for columns to leave out."""
        return replace(
            self,
            leave_out=(),
            columns={k: v for k, v in self.columns.items() if k in names},
            dates={k: v for k, v in self.dates.items() if k in names},
            synonyms={k: v for k, v in self.synonyms.items() if k in names},
        )

    def demand_left_out(self, header: Sequence[str]) -> None:
        """Demand that the columns to leave out are there.

        Raises:
            MalformedError: code ``bad-table-file``.
        """
        for name in self.leave_out:
            if name not in header:
                fix = nearest(name, header) or "Take it out of leave_out"
                raise _bad("leave_out", f"the file has no column {name[:80]!r}", fix)

    def _field_here(self, spec: Field) -> Field:
        rules = spec.cells
        if spec.name in self.columns:
            rules = replace(rules, columns_digest=rules.meaning)
            names = self.columns[spec.name]
            if len(names) == 1:
                rules = replace(rules, column=names[0], columns=())
            else:
                rules = replace(rules, column="", columns=names)
        if spec.name in self.dates:
            if not rules.date:
                raise _bad(
                    f"dates.{spec.name}", "the field has no dates", "Take it out"
                )
            rules = replace(rules, date=self.dates[spec.name])
        self._check_synonyms(spec.name, rules)
        try:
            return replace(spec, cells=rules)
        except MalformedError as error:
            key = "dates" if error.field == "date" else "columns"
            raise _bad(f"{key}.{spec.name}", error.what, error.fix or "") from None

    def _check_synonyms(self, name: str, rules: CellRules) -> None:
        for category in self.synonyms.get(name, {}).values():
            if category not in rules.categories:
                fix = nearest(category, rules.categories) or "Use one of its categories"
                path = f"synonyms.{name}"
                raise _bad(path, f"{category!r} is not one of its categories", fix)


AS_IT_LOOKS: Final = OwnTable()


def load_own_table(path: Path) -> OwnTable:
    """Read a table.toml.

    Raises:
        UnavailableError: if it cannot be read.
        MalformedError: code ``bad-table-file``; names the key.
    """
    raw = read_whole(path, MAX_BYTES).removeprefix(codecs.BOM_UTF8)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _bad("", f"line {line} is not UTF-8", "Save it as UTF-8") from None
    document = parse_toml(raw, source=path.name, code="bad-table-file")
    for key in document:
        if key not in _KEYS:
            fix = nearest(key, _KEYS) or f"Known keys: {', '.join(_KEYS)}"
            raise _bad(key, "unknown key", fix)
    return OwnTable(
        encoding=_encoding(document),
        delimiter=_one_of(document, "delimiter", DELIMITERS),
        decimal=_one_of(document, "decimal", (".", ",")),
        thousands=_thousands(document),
        units=_units(document),
        missing=_missing(document),
        leave_out=_texts(document.get("leave_out", []), "leave_out"),
        columns={
            name: _texts([each] if isinstance(each, str) else each, f"columns.{name}")
            for name, each in _table(document, "columns").items()
        },
        dates={
            name: _text(each, f"dates.{name}")
            for name, each in _table(document, "dates").items()
        },
        synonyms={
            name: {
                text: _text(category, f"synonyms.{name}")
                for text, category in _table(each, "", f"synonyms.{name}").items()
            }
            for name, each in _table(document, "synonyms").items()
        },
        source=path.name,
    )


def own_table_of(source: Path | str, stated: Path | None) -> OwnTable:
    """What is said of a file: in the one that was named, or in table.toml beside it.

    Raises:
        UnavailableError, MalformedError: as ``load_own_table``.
    """
    beside = Path(source).parent / FILE
    if stated is None and not beside.is_file():
        return AS_IT_LOOKS
    return load_own_table(stated or beside)


def own_keys_as_comments(
    *, encoding: str, delimiter: str, units: Sequence[str] = ()
) -> str:
    """The keys that are no tables, as comments, with examples; units of the file."""
    examples: dict[str, object] = {
        "encoding": encoding.removesuffix("-sig"),
        "delimiter": delimiter,
        "decimal": ",",
        "thousands": ".",
        "units": [*units] or ["%", "EUR"],
        "missing": ["?", "-999"],
    }
    lines = [
        f"# {key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in examples.items()
    ]
    tables = ['# [dates]\n# born = "%d.%m.%Y"', '# [synonyms.sex]\n# "male" = "m"']
    return "\n".join([*lines, "", *tables, ""])


def _encoding(document: Mapping[str, Any]) -> str:
    name = _text(document.get("encoding", ""), "encoding")
    if not name:
        return ""
    try:
        found = codecs.lookup(name)
        b"a,b\n".decode(name)
    except (LookupError, UnicodeDecodeError, ValueError):
        raise _bad(
            "encoding",
            f"{name[:40]!r} is not a text encoding",
            'Write "utf-8" or, for example, "cp1250"',
        ) from None
    return "utf-8-sig" if found.name in ("utf-8", "utf-8-sig") else found.name


def _units(document: Mapping[str, Any]) -> tuple[str, ...]:
    units = _texts(document.get("units", []), "units")
    for unit in units:
        of_a_number = any(each in "0123456789+-.,'" or each.isspace() for each in unit)
        if not unit or of_a_number or unit in ("e", "E"):
            raise _bad(
                "units",
                f"{unit[:40]!r} is not a unit",
                'Write units such as "EUR" or "%", without digits, signs, marks or spaces',
            )
    return units


def _missing(document: Mapping[str, Any]) -> tuple[str, ...]:
    marks = _texts(document.get("missing", []), "missing")
    if any(not each.strip() for each in marks):
        raise _bad("missing", "one entry is empty", "Empty cells need no entry")
    return tuple(each.strip() for each in marks)


def _thousands(document: Mapping[str, Any]) -> str:
    mark = _one_of(document, "thousands", _THOUSANDS)
    if mark and mark == document.get("decimal"):
        raise _bad(
            "thousands", "it is the decimal mark as well", "Take out one of the two"
        )
    return mark


def _one_of(document: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value = _text(document.get(key, ""), key)
    if value and value not in known:
        raise _bad(key, "unknown mark", f"Use one of {' '.join(map(repr, known))}")
    return value


def _table(document: Any, key: str, path: str = "") -> Mapping[str, Any]:
    found = document.get(key, {}) if key else document
    path = path or key
    if not isinstance(found, Mapping):
        fix = f"Write [{path}] on a line of its own, and what belongs to it below"
        raise _bad(path, "not a table", fix)
    return found


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _bad(path, "not a string", "Write it in quotation marks")
    return value


def _texts(value: object, path: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or (
        path.startswith("columns") and (not value or "" in value)
    ):
        raise _bad(
            path, "not a list of strings, none of them empty", 'Write ["A", "B"]'
        )
    return tuple(_text(each, path) for each in value)


def _bad(path: str, what: str, fix: str = "") -> MalformedError:
    what = f"{FILE}: {what}"
    return MalformedError(what, field=path, fix=fix, code="bad-table-file")
