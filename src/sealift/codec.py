"""The one strict, canonical encoding of everything that crosses a boundary.

Values are frozen dataclasses; bytes are JSON in the canonical form of RFC 8785 (JCS),
so one value has one encoding and a hash of it means something. Decoding refuses what
encoding would not have produced: other whitespace or key order, duplicate or unknown
or missing fields, wrong types, integers beyond 2^53 - 1, anything too large or deep.
``bytes`` are base64url text without padding; classes with ``to_text`` and
``from_text`` (digests, public keys) are text. Nothing here touches files or sockets.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
from typing import (
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import rfc8785

from sealift.errors import MalformedError, SealiftError

T = TypeVar("T")
MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 16
MAX_INTEGER: Final = (1 << 53) - 1
# Strings are matched whole, so that brackets inside them do not count. Possessive, and
# content with an unclosed string too: every byte is read once, whatever the input.
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_WRITER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
_URL: Final = bytes.maketrans(b"+/", b"-_")
_MAX_NAME: Final = 80  # characters of a field's name that an error quotes


def encode(value: object) -> bytes:
    """The canonical bytes of ``value``.

    Raises:
        MalformedError: if it holds something that has no canonical form.
    """
    unusual: list[object] = []
    plain = _to_plain(value, unusual)
    try:
        return _dump(plain, common=not unusual)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise MalformedError("value has no canonical form", why=str(error)) from None


def to_plain(value: object) -> Any:
    """Dataclasses, bytes and text scalars turned into plain JSON values."""
    return _to_plain(value, [])


def _to_plain(value: Any, unusual: list[object]) -> Any:
    """The same; what the plain writer of ``_dump`` may not write goes to ``unusual``."""
    kind: type = type(value)
    if (names := _field_names(kind)) is not None:
        return {name: _to_plain(getattr(value, name), unusual) for name in names}
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            unusual.append(value)
        return value
    if kind is bytes:
        return binascii.b2a_base64(value, newline=False).translate(_URL, b"=").decode()
    if kind is tuple or kind is list:
        return [_to_plain(item, unusual) for item in value]
    return _to_plain_rarely(value, unusual)


def _to_plain_rarely(value: Any, unusual: list[object]) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if hasattr(value, "to_text"):
        return value.to_text()
    if isinstance(value, Mapping):
        unusual.extend(key for key in value if type(key) is not str)
        return {key: _to_plain(item, unusual) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item, unusual) for item in value]
    if isinstance(value, bytes):
        return _to_plain(bytes(value), unusual)
    if isinstance(value, (str, int, float)):
        unusual.append(value)
        return value
    raise MalformedError(f"{type(value).__name__} has no canonical form")


def _dump(plain: Any, *, common: bool) -> bytes:
    """The canonical form of plain values.

    JSON's own writer gives it ten times faster, if all text is ASCII and no number is a
    fraction or large: sorting by code point is the order of UTF-16 then, and every
    escape is the same.
    """
    if common:
        text = _WRITER.encode(plain)
        if text.isascii():
            return text.encode()
    return rfc8785.dumps(plain)


def decode(
    cls: type[T], raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> T:
    """Parse canonical bytes into an instance of ``cls``.

    Raises:
        MalformedError: with the field's path, or the offset, of the first offence.
    """
    plain = parse(raw, max_bytes=max_bytes, max_depth=max_depth)
    value: T = from_plain(cls, plain)
    return value


def parse(raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Parse canonical bytes into plain JSON values.

    Raises:
        MalformedError: if they are too large, too deep, or not canonical JSON.
    """
    if len(raw) > max_bytes:
        raise MalformedError(f"message of {len(raw)} bytes", why=f"limit {max_bytes}")
    _check_depth(raw, max_depth)
    unusual: list[str] = []

    def number(digits: str) -> int | float:
        # JCS writes floats below 1e21 without a point: beyond 2^53 they are floats.
        value = float(digits)
        if abs(value) <= MAX_INTEGER and digits.lstrip("-").isdecimal():
            return int(digits)
        unusual.append(digits)
        return value

    try:
        text = bytes(raw).decode("utf-8")
        plain = json.loads(
            text, parse_int=number, parse_float=number, parse_constant=_refuse_constant
        )
        canonical = _dump(plain, common=not unusual)
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode())
        raise MalformedError("not JSON", why=error.msg, offset=offset) from None
    except UnicodeDecodeError as error:
        raise MalformedError("not UTF-8", offset=error.start) from None
    except (rfc8785.CanonicalizationError, ValueError, RecursionError):
        raise MalformedError("no canonical form") from None
    if canonical != raw:
        offset = _first_difference(canonical, bytes(raw))
        raise MalformedError("not in canonical form (RFC 8785)", offset=offset)
    return plain


def parse_foreign(raw: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> Any:
    """Parse JSON that others wrote, in any layout, into plain JSON values.

    Raises:
        MalformedError: if it is too large, too deep, no JSON, or names a field twice.
    """
    if len(raw) > max_bytes:
        raise MalformedError(f"message of {len(raw)} bytes", why=f"limit {max_bytes}")
    _check_depth(raw, max_depth)
    try:
        return json.loads(
            bytes(raw).decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_once_each,
        )
    except UnicodeDecodeError as error:
        raise MalformedError("not UTF-8", offset=error.start) from None
    except (ValueError, RecursionError):
        raise MalformedError("not JSON, or a field is there twice") from None


def from_plain(kind: Any, plain: Any, path: str = "") -> Any:
    """Build ``kind`` from plain JSON values, strictly.

    Raises:
        MalformedError: with the path of the first field that does not fit.
    """
    return _reader(kind)(plain, path)


@cache
def _reader(kind: Any) -> Callable[[Any, str], Any]:
    """How values of a type are read; found out once for each."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return partial(_from_optional, _reader(rest[0]))
        return partial(_from_union, arguments)
    if origin is tuple:
        return partial(_from_array, arguments)
    if origin is dict or origin is Mapping:
        return partial(_from_mapping, arguments[1])
    if origin is Literal:
        return partial(_from_literal, arguments)
    kind = getattr(kind, "__supertype__", kind)  # a NewType's own type
    if kind is Any or kind is object:
        return lambda plain, path: plain
    if isinstance(kind, type):
        return partial(_class_reader(kind), kind)
    raise TypeError(f"codec does not know {kind!r}")


def _class_reader(kind: type) -> Callable[[Any, Any, str], Any]:
    if issubclass(kind, StrEnum):
        return _from_enum
    if hasattr(kind, "from_text"):
        return _from_text
    if kind is bytes:
        return _from_base64
    return _from_object if dataclasses.is_dataclass(kind) else _from_scalar


def _from_literal(values: tuple[Any, ...], plain: Any, path: str) -> Any:
    # By type too: to Python, true is 1.
    fits = any(type(plain) is type(x) and plain == x for x in values)
    _require(fits, path, f"one of {values}", plain)
    return plain


def _from_enum(kind: Any, plain: Any, path: str) -> Any:
    values = [member.value for member in kind]
    _require(plain in values, path, f"one of {values}", plain)
    return kind(plain)


def _from_text(kind: Any, plain: Any, path: str) -> Any:
    _require(isinstance(plain, str), path, "text", plain)
    return _at(path, kind.from_text, plain)


def _from_scalar(kind: type, plain: Any, path: str) -> Any:
    if kind is float:
        # JCS writes 1.0 as 1, so an integer is a float's canonical form too.
        fits = isinstance(plain, (int, float)) and not isinstance(plain, bool)
        _require(fits, path, "a number", plain)
        return float(plain)
    if kind is int:
        fits = isinstance(plain, int) and not isinstance(plain, bool)
        _require(fits and abs(plain) <= MAX_INTEGER, path, "an integer", plain)
        return plain
    if kind in (str, bool, type(None)):
        _require(type(plain) is kind, path, kind.__name__, plain)
        return plain
    if kind is dict:
        _require(isinstance(plain, dict), path, "an object", plain)
        return plain
    raise TypeError(f"codec does not know {kind!r}")


def _from_object(kind: type, plain: Any, path: str) -> Any:
    _require(isinstance(plain, dict), path, "an object", plain)
    fields = _init_fields(kind)
    unknown = sorted(plain.keys() - fields.keys())
    if unknown:
        raise MalformedError("unknown field", field=_join(path, unknown[0]))
    values: dict[str, Any] = {}
    for name, read in fields.items():
        if name not in plain:
            raise MalformedError("missing field", field=_join(path, name))
        values[name] = read(plain[name], f"{path}.{name}" if path else name)
    return _at(path, lambda kwargs: kind(**kwargs), values)


def _from_array(arguments: tuple[Any, ...], plain: Any, path: str) -> Any:
    _require(isinstance(plain, list), path, "an array", plain)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        kinds = [arguments[0]] * len(plain)
    else:
        _require(len(plain) == len(arguments), path, f"{len(arguments)} items", plain)
        kinds = list(arguments)
    items = enumerate(zip(kinds, plain, strict=True))
    return tuple(from_plain(k, item, f"{path}[{i}]") for i, (k, item) in items)


def _from_mapping(kind: Any, plain: Any, path: str) -> dict[str, Any]:
    _require(isinstance(plain, dict), path, "an object", plain)
    return {
        key: from_plain(kind, item, _join(path, key)) for key, item in plain.items()
    }


def _from_optional(read: Callable[[Any, str], Any], plain: Any, path: str) -> Any:
    return None if plain is None else read(plain, path)


def _from_union(kinds: tuple[Any, ...], plain: Any, path: str) -> Any:
    if plain is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    for kind in rest:  # plain scalars only, so that no two alternatives both fit
        if kind in (bool, int, str) and type(plain) is kind:
            return from_plain(kind, plain, path)
    if float in rest and type(plain) in (int, float):
        return float(plain)
    raise _wrong(path, f"one of {rest}", plain)


def _from_base64(kind: type, text: Any, path: str) -> bytes:
    _require(isinstance(text, str), path, "base64url text", text)
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise _wrong(path, "base64url text", text) from None
    canonical = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    _require(canonical == text, path, "base64url text without padding", text)
    return raw


def _at(path: str, build: Any, argument: Any) -> Any:
    """Run a constructor; name the field in what it refuses."""
    try:
        return build(argument)
    except SealiftError as error:
        inner = getattr(error, "field", "")
        field = _join(path, inner) if inner else path
        raise MalformedError(
            error.what, field=field, why=error.why, fix=error.fix, code=error.code
        ) from None


@cache
def _init_fields(kind: type) -> dict[str, Callable[[Any, str], Any]]:
    """How every field that the constructor takes is read."""
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in dataclasses.fields(kind) if f.init}


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Fields of a dataclass that is no text; else None."""
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "to_text"):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def _check_depth(raw: bytes, max_depth: int) -> None:
    """Refuse deep nesting before the recursive parser sees it."""
    depth = 0
    for token in _BRACKETS.finditer(raw):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth > max_depth:
                offset = token.start()
                raise MalformedError(f"nested deeper than {max_depth}", offset=offset)
        elif token[0] in (b"]", b"}"):
            depth -= 1


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _first_difference(left: bytes, right: bytes) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def _join(path: str, name: str) -> str:
    name = name[:_MAX_NAME]
    return f"{path}.{name}" if path else name


def _require(fits: bool, path: str, expected: str, plain: Any) -> None:
    if not fits:
        raise _wrong(path, expected, plain)


def _wrong(path: str, expected: str, plain: Any) -> MalformedError:
    return MalformedError(
        f"expected {expected}, found {type(plain).__name__}", field=path or "(root)"
    )
