"""From values to canonical bytes.

There is one reference, ``rfc8785.dumps`` of plain values. What crosses a session is
nearly always ASCII text, bytes and whole numbers, for which the same bytes are joined
from text: a writer for each type, its fields sorted once. Whatever else turns up makes
the reference write the whole value. A property test compares the two.
"""

from __future__ import annotations

import binascii
import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from json.encoder import encode_basestring as _quote
from typing import Any, Final

import rfc8785

from sealift.errors import MalformedError

MAX_INTEGER: Final = (1 << 53) - 1
# Between these, and not whole, a float's repr is its canonical form: both are the
# shortest digits that read back as it, and neither has an exponent.
_PLAIN_FLOATS: Final = (1e-4, 1e15)
_JSON: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
_URL: Final = bytes.maketrans(b"+/", b"-_")
_Writer = Callable[[Any], str]


class _UnusualError(Exception):
    """Only the reference writes this value."""


def encode(value: object) -> bytes:
    """The canonical bytes of ``value``.

    Raises:
        MalformedError: if it holds something that has no canonical form.
    """
    try:
        return _write_ascii(value)
    except _UnusualError:
        pass
    try:
        return rfc8785.dumps(to_plain(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise MalformedError("the value has no canonical form", why=error) from None


def encode_named(name: str, message: object) -> bytes:
    """Canonical bytes of a message behind its name: the one envelope of messages."""
    return encode({"type": name, "body": message})


def to_plain(value: Any) -> Any:
    """Dataclasses, bytes and text scalars turned into plain JSON values.

    Raises:
        MalformedError: if there is no plain value for something in it.
    """
    kind: type = type(value)
    if hasattr(value, "to_fields"):
        return to_plain(value.to_fields())
    if (names := _field_names(kind)) is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, StrEnum):
        return value.value
    if hasattr(value, "to_text"):
        return value.to_text()
    if isinstance(value, bytes):
        return to_base64(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise MalformedError(f"{kind.__name__} has no canonical form")


def dump(plain: Any, *, common: bool) -> bytes:
    """The canonical form of plain values.

    Args:
        plain: What JSON's own reader made.
        common: No number among them is a fraction, or large. JSON's own writer gives
            the canonical form then, if all text is ASCII: sorting by code point is the
            order of UTF-16, and every escape is the same.
    """
    if common:
        text = _JSON.encode(plain)
        if text.isascii():
            return text.encode()
    else:
        try:
            return _write_ascii(plain)
        except _UnusualError:
            pass
    return rfc8785.dumps(plain)


def to_base64(raw: bytes) -> str:
    """base64url text without padding."""
    return binascii.b2a_base64(raw, newline=False).translate(_URL, b"=").decode()


def _write_ascii(value: object) -> bytes:
    text = _WRITERS[type(value)](value)
    if not text.isascii():  # another order of keys
        raise _UnusualError
    return text.encode()


class _Writers(dict[type, _Writer]):
    """How values of a type are written; found out once for each."""

    def __missing__(self, kind: type) -> _Writer:
        writer = self[kind] = _make_writer(kind)
        return writer


def _make_writer(kind: type) -> _Writer:
    if hasattr(kind, "to_fields"):
        return lambda value: _write_mapping(value.to_fields())
    if (names := _field_names(kind)) is not None:
        return _record_writer(names)
    if issubclass(kind, StrEnum):
        return lambda value: _quote(value.value)
    if hasattr(kind, "to_text"):
        return lambda value: _quote(value.to_text())
    if issubclass(kind, bytes):
        return _write_bytes
    if issubclass(kind, Mapping):
        return _write_mapping
    return _write_array if issubclass(kind, (tuple, list)) else _write_rarely


def _record_writer(names: tuple[str, ...]) -> _Writer:
    places = [(f"{_quote(name)}:", name) for name in sorted(names)]

    def write(value: Any) -> str:
        parts = []
        for key, name in places:
            item = getattr(value, name)
            parts.append(key + _WRITERS[type(item)](item))
        return "{" + ",".join(parts) + "}"

    return write


def _write_mapping(value: Mapping[Any, Any]) -> str:
    if any(type(key) is not str for key in value):
        raise _UnusualError
    parts = [
        f"{_quote(k)}:{_WRITERS[type(x)](x)}"
        for k, x in sorted(value.items(), key=_key)
    ]
    return "{" + ",".join(parts) + "}"


def _key(item: tuple[str, Any]) -> str:
    return item[0]


def _write_array(value: Any) -> str:
    return "[" + ",".join([_WRITERS[type(item)](item) for item in value]) + "]"


def _write_bytes(value: bytes) -> str:
    return f'"{to_base64(value)}"'


def _write_integer(value: int) -> str:
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise _UnusualError
    return str(value)


def _write_float(value: float) -> str:
    size = abs(value)
    if size <= _PLAIN_FLOATS[1] and value == (whole := int(value)):
        return str(whole)
    if _PLAIN_FLOATS[0] <= size <= _PLAIN_FLOATS[1]:
        return repr(value)
    try:
        return rfc8785.dumps(value).decode()  # this number alone: messages have few
    except rfc8785.CanonicalizationError:
        raise _UnusualError from None


def _write_rarely(value: object) -> str:
    raise _UnusualError


_WRITERS: Final = _Writers(
    {
        str: _quote,
        bool: lambda value: "true" if value else "false",
        type(None): lambda value: "null",
        int: _write_integer,
        float: _write_float,
        bytes: _write_bytes,
    }
)


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Fields of a dataclass that is no text; else None."""
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "to_text"):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))
