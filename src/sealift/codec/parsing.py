"""From bytes to plain values: canonical JSON, or JSON and TOML that others wrote."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

import rfc8785

from sealift.codec.writing import MAX_INTEGER, dump
from sealift.errors import MalformedError

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 16
_SMALL_DIGITS: Final = 15  # whole numbers of so many digits are below 2^53
# Strings are matched whole, so that brackets inside them do not count. Possessive, and
# content with an unclosed string too: every byte is read once, whatever the input.
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class _UnusualError(Exception):
    """A number that is a fraction, or large."""


def parse(raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Parse canonical bytes into plain JSON values.

    Raises:
        MalformedError: if they are too large, too deep, or not canonical JSON.
    """
    raw, text = _text(raw, max_bytes, max_depth)
    try:
        plain, canonical = _read(text)
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode())
        raise MalformedError(
            "the bytes are not JSON", why=error.msg, offset=offset
        ) from None
    except (rfc8785.CanonicalizationError, ValueError, RecursionError):
        raise MalformedError("the JSON has no canonical form") from None
    if canonical != raw:
        offset = _first_difference(canonical, raw)
        raise MalformedError(
            "the JSON is not in canonical form (RFC 8785)", offset=offset
        )
    return plain


def parse_foreign(raw: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> Any:
    """Parse JSON that others wrote, in any layout, into plain JSON values.

    Raises:
        MalformedError: if it is too large, too deep, no JSON, or names a field twice.
    """
    _, text = _text(raw, max_bytes, max_depth)
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_once_each
        )
    except (ValueError, RecursionError):
        raise MalformedError(
            "the bytes are not JSON, or a field appears twice"
        ) from None


def _text(raw: bytes, max_bytes: int, max_depth: int) -> tuple[bytes, str]:
    """The bytes in memory of our own, and as text."""
    if len(raw) > max_bytes:
        raise MalformedError(
            f"a message has {len(raw):,} bytes", why=f"the limit is {max_bytes:,}"
        )
    raw = bytes(raw)
    _check_depth(raw, max_depth)
    try:
        return raw, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError("the bytes are not UTF-8", offset=error.start) from None


def parse_toml(raw: bytes, *, source: str, code: str = "bad-toml") -> dict[str, Any]:
    """Parse TOML that a person wrote; ``source`` names it in the error.

    Raises:
        MalformedError: with ``code``, if it is none.
    """
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also of too long an integer
        raise MalformedError(f"{source} is not TOML", why=error, code=code) from None


def _read(text: str) -> tuple[Any, bytes]:
    """Plain values, and their canonical form."""
    try:
        plain = _COMMON.decode(text)
    except _UnusualError:
        plain = _ANY.decode(text)
        return plain, dump(plain, common=False)
    return plain, dump(plain, common=True)


def _number(digits: str) -> int | float:
    # JCS writes floats below 1e21 without a point: beyond 2^53 they are floats.
    value = float(digits)
    if abs(value) <= MAX_INTEGER and digits.lstrip("-").isdecimal():
        return int(digits)
    return value


def _small_number(digits: str) -> int:
    if len(digits) > _SMALL_DIGITS:
        raise _UnusualError
    return int(digits)


def _fraction(digits: str) -> float:
    raise _UnusualError


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


_ANY: Final = json.JSONDecoder(
    parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
)
_COMMON: Final = json.JSONDecoder(
    parse_int=_small_number, parse_float=_fraction, parse_constant=_refuse_constant
)


def _check_depth(raw: bytes, max_depth: int) -> None:
    """Refuse deep nesting before the recursive parser sees it."""
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return  # so few brackets cannot nest deeper, wherever they stand
    depth = 0
    for token in _BRACKETS.finditer(raw):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth > max_depth:
                offset = token.start()
                raise MalformedError(
                    f"it is nested deeper than {max_depth}", offset=offset
                )
        elif token[0] in (b"]", b"}"):
            depth -= 1


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field appears twice")
    return fields


def _first_difference(left: bytes, right: bytes) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
