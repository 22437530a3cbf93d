"""From plain JSON values to typed ones, strictly; an error names the field's path.

A path is made of text only when something does not fit: on the way down it is a chain
of what was entered.
"""

from __future__ import annotations

import binascii
import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
from typing import (
    Any,
    Final,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from sealift.codec.parsing import MAX_BYTES, MAX_DEPTH, parse
from sealift.codec.writing import MAX_INTEGER, to_base64
from sealift.errors import MalformedError, SealiftError, nearest

T = TypeVar("T")
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_MAX_NAME: Final = 80  # characters of a field's name that an error quotes
# What was entered before, and then: a field's name, or the number of an item.
_Path = str | tuple[Any, str | int]
_Reader = Callable[[Any, _Path], Any]


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


def parse_named(
    raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> tuple[str, Any]:
    """Name and plain body of a message that ``encode_named`` made.

    Raises:
        MalformedError: ``bad-message``, if it is not in such an envelope.
    """
    plain = parse(raw, max_bytes=max_bytes, max_depth=max_depth)
    if not isinstance(plain, dict) or set(plain) != {"type", "body"}:
        raise MalformedError("the bytes are not a message", code="bad-message")
    return str(plain["type"]), plain["body"]


def from_plain(kind: Any, plain: Any, path: str = "") -> Any:
    """Build ``kind`` from plain JSON values, strictly.

    Raises:
        MalformedError: with the path of the first field that does not fit.
    """
    return _reader(kind)(plain, path)


@cache
def _reader(kind: Any) -> _Reader:
    """How values of a type are read; found out once for each."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return partial(_from_optional, _reader(rest[0]))
        return partial(_from_union, arguments)
    if origin is tuple:
        return _array_reader(arguments)
    if origin is dict or origin is Mapping:
        return partial(_from_mapping, _reader(arguments[1]))
    if origin is Literal:
        return partial(_from_literal, arguments)
    if hasattr(origin, "fields_for"):  # its fields' names are its argument's to say
        fields = {n: _reader(t) for n, t in origin.fields_for(*arguments).items()}
        return partial(_from_fields, lambda **values: origin(*values.values()), fields)
    kind = getattr(kind, "__supertype__", kind)  # a NewType's own type
    if kind is Any or kind is object:
        return lambda plain, path: plain
    if isinstance(kind, type):
        return _class_reader(kind)
    raise TypeError(f"the codec does not support {kind!r}")


def _array_reader(arguments: tuple[Any, ...]) -> _Reader:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return partial(_from_list, _reader(arguments[0]))
    return partial(_from_tuple, tuple(map(_reader, arguments)))


def _class_reader(kind: type) -> _Reader:
    if issubclass(kind, StrEnum):
        return partial(_from_enum, {member.value: member for member in kind})
    if hasattr(kind, "from_text"):
        return partial(_from_text, kind.from_text)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if dataclasses.is_dataclass(kind):
        return partial(_from_object, kind)
    raise TypeError(f"the codec does not support {kind!r}")


def _from_literal(values: tuple[Any, ...], plain: Any, path: _Path) -> Any:
    # By type too: to Python, true is 1.
    if not any(type(plain) is type(x) and plain == x for x in values):
        _refuse(path, f"one of {', '.join(map(repr, values))}", plain)
    return plain


def _from_enum(members: dict[str, Any], plain: Any, path: _Path) -> Any:
    if type(plain) is not str or plain not in members:
        _refuse(path, f"one of {', '.join(members)}", plain)
    return members[plain]


def _from_text(build: Callable[[str], Any], plain: Any, path: _Path) -> Any:
    if type(plain) is not str:
        _refuse(path, "text", plain)
    try:
        return build(plain)
    except SealiftError as error:
        _refuse_as_it_says(path, error)


def _from_float(plain: Any, path: _Path) -> float:
    # JCS writes 1.0 as 1, so an integer is a float's canonical form too.
    if type(plain) is not int and type(plain) is not float:
        _refuse(path, "a number", plain)
    return float(plain)


def _from_integer(plain: Any, path: _Path) -> int:
    if type(plain) is not int or abs(plain) > MAX_INTEGER:
        _refuse(path, "an integer", plain)
    return int(plain)


def _from_itself(kind: type, expected: str, plain: Any, path: _Path) -> Any:
    if type(plain) is not kind:
        _refuse(path, expected, plain)
    return plain


def _from_base64(plain: Any, path: _Path) -> bytes:
    if type(plain) is not str:
        _refuse(path, "base64url text", plain)
    try:
        padded = plain.encode("ascii").translate(_STANDARD) + b"=" * (-len(plain) % 4)
        raw = binascii.a2b_base64(padded)
    except ValueError:
        _refuse(path, "base64url text", plain)
    if to_base64(raw) != plain:
        _refuse(path, "base64url text without padding", plain)
    return raw


# As people call them, who write JSON or TOML and perhaps no Python.
_WORDS: Final[Mapping[type, str]] = {
    str: "text", bool: "true or false", type(None): "nothing", dict: "an object",
    int: "an integer", float: "a number", list: "an array",
}  # fmt: skip
_SCALARS: Final[dict[type, _Reader]] = {
    kind: partial(_from_itself, kind, _WORDS[kind])
    for kind in (str, bool, type(None), dict)
} | {
    int: _from_integer,
    float: _from_float,
    bytes: _from_base64,
}


def _from_object(kind: type, plain: Any, path: _Path) -> Any:
    return _from_fields(kind, _init_fields(kind), plain, path)


def _from_fields(
    build: Callable[..., Any], fields: Mapping[str, _Reader], plain: Any, path: _Path
) -> Any:
    if type(plain) is not dict:
        _refuse(path, "an object", plain)
    if plain.keys() != fields.keys():
        if "version" in plain.keys() & fields.keys():  # another one has other fields
            fields["version"](plain["version"], (path, "version"))
        _refuse_fields(path, plain, fields)
    values = {name: read(plain[name], (path, name)) for name, read in fields.items()}
    try:
        return build(**values)
    except SealiftError as error:
        _refuse_as_it_says(path, error)


def _from_list(read: _Reader, plain: Any, path: _Path) -> Any:
    if type(plain) is not list:
        _refuse(path, "an array", plain)
    return tuple([read(item, (path, i)) for i, item in enumerate(plain)])


def _from_tuple(readers: tuple[_Reader, ...], plain: Any, path: _Path) -> Any:
    if type(plain) is not list:
        _refuse(path, "an array", plain)
    if len(plain) != len(readers):
        _refuse(path, f"{len(readers)} items", plain)
    items = enumerate(zip(readers, plain, strict=True))
    return tuple([read(item, (path, i)) for i, (read, item) in items])


def _from_mapping(read: _Reader, plain: Any, path: _Path) -> dict[str, Any]:
    if type(plain) is not dict:
        _refuse(path, "an object", plain)
    return {key: read(item, (path, key)) for key, item in plain.items()}


def _from_optional(read: _Reader, plain: Any, path: _Path) -> Any:
    return None if plain is None else read(plain, path)


def _from_union(kinds: tuple[Any, ...], plain: Any, path: _Path) -> Any:
    if plain is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    for kind in rest:  # plain scalars only, so that no two alternatives both fit
        if kind in (bool, int, str) and type(plain) is kind:
            return _SCALARS[kind](plain, path)
    if float not in rest or type(plain) not in (int, float):
        _refuse(path, " or ".join(_WORDS.get(each, str(each)) for each in rest), plain)
    return float(plain)


@cache
def _init_fields(kind: type) -> dict[str, _Reader]:
    """How every field that the constructor takes is read."""
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in dataclasses.fields(kind) if f.init}


def _refuse_fields(
    path: _Path, plain: dict[str, Any], fields: Mapping[str, _Reader]
) -> NoReturn:
    unknown = sorted(plain.keys() - fields.keys())
    what = "unknown field" if unknown else "missing field"
    missing = (name for name in fields if name not in plain)
    name = unknown[0] if unknown else next(missing)
    fix = nearest(name, fields) if unknown else ""
    raise MalformedError(what, field=_text(path, name), fix=fix)


def _refuse_as_it_says(path: _Path, error: SealiftError) -> NoReturn:
    """What a constructor refuses, with the field named."""
    field = _text(path, getattr(error, "field", ""))
    raise MalformedError(
        error.what, field=field, why=error.why, fix=error.fix, code=error.code
    ) from None


def _refuse(path: _Path, expected: str, plain: Any) -> NoReturn:
    found = _WORDS.get(type(plain), type(plain).__name__)
    field = _text(path) or "(root)"
    raise MalformedError(f"expected {expected}, found {found}", field=field)


def _text(path: _Path, name: str = "") -> str:
    """A path as people read it: ``parties[2].name``."""
    names: list[str | int] = [name] if name else []
    while not isinstance(path, str):
        path, entered = path
        names.append(entered)
    text = path
    for each in reversed(names):
        if isinstance(each, int):
            text += f"[{each}]"
        else:
            text += f".{each[:_MAX_NAME]}" if text else each[:_MAX_NAME]
    return text
