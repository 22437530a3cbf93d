"""Reading binary formats front to back, never past their end: a cursor, and DER (X.690).

Of DER, the part that vendors' certificate extensions are written in. Strict: definite
lengths in their shortest form, no bytes after the end.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Literal

from sealift.errors import MalformedError


class Cursor:
    """A place in bytes; everything taken moves it on.

    Args:
        raw: All the bytes.
        what: What they are, for errors: ``the quote``.
        order: How numbers are written.
    """

    __slots__ = ("_order", "offset", "raw", "what")

    def __init__(
        self, raw: bytes, what: str, order: Literal["little", "big"] = "little"
    ) -> None:
        self.raw = raw
        self.what = what
        self.offset = 0
        self._order = order

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes.

        Raises:
            MalformedError: if there are fewer.
        """
        part = self.raw[self.offset : self.offset + size]
        if len(part) != size:
            raise self.malformed("it ends too early")
        self.offset += size
        return part

    def number(self, size: int) -> int:
        """The next ``size`` bytes as an unsigned number."""
        return int.from_bytes(self.take(size), self._order)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The fields of the next structure, as its layout declares them."""
        return layout.unpack(self.take(layout.size))

    def rest(self) -> bytes:
        """Everything that is left."""
        return self.take(len(self.raw) - self.offset)

    def malformed(self, why: str) -> MalformedError:
        """The refusal of these bytes."""
        return MalformedError(
            f"{self.what} {why.removeprefix('it ')}", offset=self.offset
        )

    def require_end(self) -> None:
        """Refuse what nobody asked for.

        Raises:
            MalformedError: if something is left.
        """
        if self.offset != len(self.raw):
            raise self.malformed("it has extra bytes at its end")


BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OID: Final = 0x06
ENUMERATED: Final = 0x0A
SEQUENCE: Final = 0x30


def read_value(raw: bytes, tag: int) -> bytes:
    """Content of the one value that ``raw`` is.

    Raises:
        MalformedError: if it is another value, or more follows.
    """
    found = read_values(raw)
    if len(found) != 1 or found[0][0] != tag:
        raise MalformedError("the DER value is not the expected one")
    return found[0][1]


def read_values(raw: bytes) -> list[tuple[int, bytes]]:
    """Every value in ``raw``, as tag and content.

    Raises:
        MalformedError: if it is not DER.
    """
    cursor = Cursor(raw, "a DER value", "big")
    found = []
    while cursor.offset < len(raw):
        tag = cursor.number(1)
        if tag & 0x1F == 0x1F:
            raise MalformedError("a DER tag has several bytes", offset=cursor.offset)
        found.append((tag, cursor.take(_take_length(cursor))))
    return found


def read_number(content: bytes) -> int:
    """A non-negative INTEGER or ENUMERATED in its shortest form.

    Raises:
        MalformedError: for any other content.
    """
    value = int.from_bytes(content)
    if content != value.to_bytes(value.bit_length() // 8 + 1):
        raise MalformedError("the DER value is not a number")
    return value


def read_oid(content: bytes) -> str:
    """An object identifier, dotted.

    Raises:
        MalformedError: if it does not parse.
    """
    if not content or content[-1] & 0x80:
        raise MalformedError("the DER value is not an object identifier")
    parts, value = [], 0
    for byte in content:
        if value == 0 and byte == 0x80:
            raise MalformedError("the DER value is not an object identifier")
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            parts.append(value)
            value = 0
    first = min(parts[0] // 40, 2)
    return ".".join(map(str, (first, parts[0] - 40 * first, *parts[1:])))


def _take_length(cursor: Cursor) -> int:
    first = cursor.number(1)
    if first < 0x80:
        return first
    size = first & 0x7F
    length = cursor.number(size) if 0 < size <= 4 else 0
    if length < 0x80 or length >> 8 * (size - 1) == 0:
        raise MalformedError("the DER length is not valid", offset=cursor.offset)
    return length
