"""The quote or report inside of dstack's own containers, which wrap it with logs.

Version 0 is written in SCALE, version 1 in MessagePack; both are told by their first
byte. Logs and settings of dstack are left out: our verifiers read them in no form.
Source: Dstack-TEE/dstack, crate dstack-attest.
"""

from __future__ import annotations

from typing import Any, Final

from sealift.attest.cursor import Cursor
from sealift.attest.snp.evidence import SnpBody
from sealift.attest.tdx.evidence import TdxBody
from sealift.errors import MalformedError

_MAX_DEPTH: Final = 16
_TDX, _SNP = 0, 3
_SIZES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # binary, text
_NUMBERS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_LISTS: Final = {0xDC: 2, 0xDD: 4}
_OBJECTS: Final = {0xDE: 2, 0xDF: 4}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def begins_container(raw: bytes) -> bool:
    """Whether it begins like a container of either version."""
    return raw[:2] in (b"\0\0", b"\0\3") or 0x80 < raw[0] <= 0x8F


def read_container(raw: bytes) -> TdxBody | SnpBody:
    """What was signed, as evidence of ours.

    Raises:
        MalformedError: for another container, or another platform in it.
    """
    return _read_scale(raw) if raw[:1] == b"\0" else _read_messagepack(raw)


def _read_scale(raw: bytes) -> TdxBody | SnpBody:
    cursor = Cursor(raw, "dstack's container")
    cursor.take(1)
    platform, signed = cursor.number(1), cursor.take(_compact(cursor))
    if platform == _TDX:
        return TdxBody(quote=signed)
    if platform != _SNP:
        raise MalformedError(f"dstack's container of platform {platform}")
    chain = tuple(cursor.take(_compact(cursor)) for _ in range(_compact(cursor)))
    return SnpBody(report=signed, certificates=chain)


def _compact(cursor: Cursor) -> int:
    """SCALE's compact number, of one, two or four bytes."""
    first = cursor.number(1)
    if first & 3 == 3:
        raise MalformedError("a length in dstack's container is too large")
    return (first | cursor.number((0, 1, 3)[first & 3]) << 8) >> 2


def _read_messagepack(raw: bytes) -> TdxBody | SnpBody:
    cursor = Cursor(raw, "dstack's container", "big")
    try:
        platform = _value(cursor, 0)["platform"]
        kind, found = platform["kind"], platform["data"]
        if kind in ("tdx", "gcp-tdx"):
            return TdxBody(quote=_octets(found["quote"]))
        chain = tuple(_octets(each) for each in found["cert_chain"])
        return SnpBody(report=_octets(found["report"]), certificates=chain)
    except (KeyError, TypeError, ValueError):
        raise MalformedError("not dstack's container") from None


def _octets(value: object) -> bytes:
    if not isinstance(value, bytes | list):
        raise ValueError
    return bytes(value)


def _value(cursor: Cursor, depth: int) -> Any:
    first = cursor.number(1)
    if depth > _MAX_DEPTH:
        raise MalformedError("dstack's container is too deep")
    if first < 0x80:
        return first
    if first in _NUMBERS or first in _CONSTANTS:
        width = _NUMBERS.get(first)
        return cursor.number(width) if width else _CONSTANTS[first]
    if 0xA0 <= first < 0xC0 or first in _SIZES:
        size = cursor.number(_SIZES[first]) if first in _SIZES else first & 0x1F
        taken = cursor.take(size)
        return taken if first in (0xC4, 0xC5, 0xC6) else taken.decode()
    if 0x90 <= first < 0xA0 or first in _LISTS:
        many = cursor.number(_LISTS[first]) if first in _LISTS else first & 0xF
        return [_value(cursor, depth + 1) for _ in range(many)]
    if first < 0x90 or first in _OBJECTS:
        many = cursor.number(_OBJECTS[first]) if first in _OBJECTS else first & 0xF
        pairs = (
            (_value(cursor, depth + 1), _value(cursor, depth + 1)) for _ in range(many)
        )
        return dict(pairs)
    raise MalformedError("dstack's container has a value of another kind")
