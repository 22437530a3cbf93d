"""Schemas as documents: TOML that an owner writes, and the plain form of agreements.

Both have the same keys. Strict: an unknown key, a wrong type or a missing key is an
error that names its path. Guarantee: ``schema_from_plain(schema_to_plain(s)) == s``,
also after the plain form went through canonical JSON (where ``1.0`` is ``1``).
Source: spec/table.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sealift.codec import parse_toml
from sealift.data.schema.cells import CellRules, Stated
from sealift.data.schema.schema import DTYPES, Field, Schema
from sealift.errors import MalformedError, nearest
from sealift.release.files import read_whole

MAX_SCHEMA_BYTES: Final = 1 << 20

T = TypeVar("T")

_FIELD_KEYS: Final = (
    "name",
    "dtype",
    "shape",
    "finite",
    "min",
    "max",
    "classes",
    "description",
    "column",
    "columns",
    "columns_digest",
    "categories",
    "empty",
    "missing",
    "date",
)


def load_schema(path: Path) -> Schema:
    """Read a schema file.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not TOML, or not a schema; names the path inside.
    """
    return parse_schema(read_whole(path, MAX_SCHEMA_BYTES), source=str(path))


def parse_schema(raw: bytes, *, source: str = "schema") -> Schema:
    """Parse the TOML of a schema; ``source`` names it in errors.

    Raises:
        MalformedError: see ``load_schema``.
    """
    document = parse_toml(raw, source=source, code="bad-schema")
    return schema_from_plain(document, source=source)


def schema_from_plain(document: Mapping[str, Any], *, source: str = "schema") -> Schema:
    """Parse the plain form: ``{"fields": [{"name": ..., ...}, ...]}``.

    Raises:
        MalformedError: names the path of the first offence.
    """
    _refuse_unknown(document, ("fields", "description", "leave_out"), source, "")
    rows = document.get("fields")
    if not isinstance(rows, (list, tuple)) or not rows:
        raise _bad(f"{source} lists no fields", "fields")
    fields = tuple(
        _parse_field(row, source=source, path=f"fields[{index}]")
        for index, row in enumerate(rows)
    )
    description = _text(document.get("description", ""), source, "description")
    left_out = _texts(document.get("leave_out", ()), source, "leave_out")
    return _at(source, "", lambda: Schema(fields, description, left_out))


def schema_to_plain(schema: Schema) -> dict[str, Any]:
    """The plain form: strings, numbers, booleans, lists and dicts; no defaults."""
    plain: dict[str, Any] = {"fields": [field_to_plain(f) for f in schema.fields]}
    if schema.description:
        plain["description"] = schema.description
    if schema.leave_out:
        plain["leave_out"] = list(schema.leave_out)
    return plain


def schema_to_toml(schema: Schema) -> str:
    """The document that ``parse_schema`` reads as the same schema."""
    plain = schema_to_plain(schema)
    fields = plain.pop("fields")
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    lines += [""] if lines else []
    for field in fields:
        lines += ["[[fields]]", *(f"{k} = {_toml(v)}" for k, v in field.items()), ""]
    return "\n".join(lines)


def _toml(value: object) -> str:
    """Text, numbers, truth values and lists of them: TOML writes them as JSON does."""
    text = json.dumps(value, ensure_ascii=False)
    shown = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return "".join(shown)  # nothing hides a name from who reads the file


def field_to_plain(field: Field) -> dict[str, Any]:
    """One entry of ``fields``; no defaults."""
    optional = {
        "shape": list(field.shape) or None,
        "finite": None if field.finite else False,
        "min": field.minimum,
        "max": field.maximum,
        "classes": None if field.cells.categories else field.classes,
        "description": field.description or None,
        "column": field.cells.column or None,
        "columns": list(field.cells.columns) or None,
        "columns_digest": field.cells.columns_digest or None,
        "categories": list(field.cells.categories) or None,
        "empty": field.cells.empty,
        "missing": field.cells.missing or None,
        "date": field.cells.date or None,
    }
    present = {key: value for key, value in optional.items() if value is not None}
    return {"name": field.name, "dtype": field.dtype, **present}


def _parse_field(row: object, *, source: str, path: str) -> Field:
    if not isinstance(row, Mapping):
        raise _bad(f"{source}: each field must be a table", path)
    _refuse_unknown(row, _FIELD_KEYS, source, path)
    name = _text(row.get("name"), source, f"{path}.name")
    dtype = _text(row.get("dtype"), source, f"{path}.dtype")
    if "finite" in row and (dtype in DTYPES and DTYPES[dtype].kind != "float"):
        raise _bad(f"{source}: only a float field can have 'finite'", f"{path}.finite")
    cells = _parse_cells(row, source, path)
    classes = _count(row.get("classes"), source, f"{path}.classes")
    if cells.categories and classes is None:
        classes = len(cells.categories)
    return _at(
        source,
        path,
        lambda: Field(
            name=name,
            dtype=dtype,
            shape=_shape(row.get("shape", ()), source, f"{path}.shape"),
            finite=_flag(row.get("finite", True), source, f"{path}.finite"),
            minimum=_bound(row.get("min"), dtype, source, f"{path}.min"),
            maximum=_bound(row.get("max"), dtype, source, f"{path}.max"),
            classes=classes,
            cells=cells,
            description=_text(
                row.get("description", ""), source, f"{path}.description"
            ),
        ),
    )


def _parse_cells(row: Mapping[str, Any], source: str, path: str) -> CellRules:
    def text(key: str) -> str:
        return _text(row.get(key, ""), source, f"{path}.{key}")

    return CellRules(
        column=text("column"),
        columns=_texts(row.get("columns", ()), source, f"{path}.columns"),
        columns_digest=text("columns_digest"),
        categories=_texts(row.get("categories", ()), source, f"{path}.categories"),
        empty=_stated(row.get("empty"), source, f"{path}.empty"),
        missing=text("missing"),
        date=text("date"),
    )


def _at(source: str, path: str, make: Callable[[], T]) -> T:
    """Run ``make``; put file and path in front of what it complains about."""
    try:
        return make()
    except MalformedError as error:
        if error.what.startswith(source):
            raise
        place = ".".join(part for part in (path, error.field) if part)
        what = f"{source}: {error.what}"
        raise MalformedError(
            what, field=place, fix=error.fix, code=error.code
        ) from None


def _refuse_unknown(
    document: Mapping[str, Any], known: Sequence[str], source: str, path: str
) -> None:
    for key in document:
        if key not in known:
            place = f"{path}.{key}" if path else str(key)
            fix = nearest(str(key), known) or f"Known keys: {', '.join(known)}"
            raise _bad(
                f"{source} has the unknown key {str(key)[:40]!r}", place, fix=fix
            )


def _bad(what: str, path: str, *, fix: str = "") -> MalformedError:
    return MalformedError(what, field=path, fix=fix, code="bad-schema")


def _text(value: object, source: str, path: str) -> str:
    if not isinstance(value, str):
        what = "a key is missing" if value is None else "not a string"
        raise _bad(f"{source}: {what}", path)
    return value


def _texts(value: object, source: str, path: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise _bad(f"{source}: not a list", path)
    return tuple(_text(each, source, path) for each in value)


def _stated(value: object, source: str, path: str) -> Stated:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise _bad(f"{source}: not a number, a truth value or text", path)


def _flag(value: object, source: str, path: str) -> bool:
    if not isinstance(value, bool):
        raise _bad(f"{source}: not true or false", path)
    return value


def _count(value: object, source: str, path: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _bad(f"{source}: not an integer", path)


def _shape(value: object, source: str, path: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise _bad(f"{source}: not a list", path, fix="Write [64] for 64")
    if any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        raise _bad(f"{source}: not a list of integers", path)
    return tuple(value)


def _bound(value: object, dtype: str, source: str, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad(f"{source}: not a number", path)
    if dtype not in DTYPES or DTYPES[dtype].kind != "float":
        return value
    try:
        return float(value)
    except OverflowError:
        raise _bad(f"{source}: the bound does not fit {dtype}", path) from None
