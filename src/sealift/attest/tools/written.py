"""How vendors' tools write bytes down: bare, in hex or in base64; told by what they are."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from sealift.errors import MalformedError

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+")
_OPENS: Final = (b"{", b"[", b"<", b"-----")  # JSON, XML, PEM: text that stays text


def decode_text(text: str) -> bytes:
    """Bytes written in hex, with or without ``0x``, or in base64, wrapped or not.

    Text that has no other characters than pairs of hex digits is hex: in base64 of what
    vendors write, some other letter stands among the first few.

    Raises:
        MalformedError: if it is neither.
    """
    bare = "".join(text.split())
    digits = bare[2:] if bare[:2] in ("0x", "0X") else bare
    if _HEX.fullmatch(digits):
        return bytes.fromhex(digits)
    letters = bare.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except ValueError:
        raise MalformedError("neither hex nor base64") from None


def read_bytes(raw: bytes) -> bytes:
    """What a file says: itself, or what stands in it in hex or base64."""
    bare = raw.strip()
    if not bare or not bare.isascii() or bare.startswith(_OPENS):
        return raw
    try:
        return decode_text(bare.decode("ascii"))
    except MalformedError:
        return raw


def read_object(raw: bytes) -> dict[str, Any]:
    """The object that a JSON text is.

    Raises:
        MalformedError: if it is none.
    """
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise MalformedError("not a JSON object")
    return plain
