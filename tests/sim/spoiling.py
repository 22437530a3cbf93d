"""What a hostile peer makes of any message, and what a clear refusal of it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from sealift.codec import encode
from sealift.errors import catalogue

SOURCE = Path(__file__).parents[2] / "src/sealift"
LONG = 1 << 20


def spoilt(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut, of another type, too long: none of them is a message."""
    for end in (0, 1, len(raw) // 3, len(raw) // 2, len(raw) - 1):
        yield f"cut at {end}", raw[:end]
    plain = json.loads(raw)
    body = plain.get("body", plain)
    others = (None, [], 7, "x", {}, [plain], {**plain, "more": 1})
    yield from ((f"another type, {n}", encode(each)) for n, each in enumerate(others))
    yield "not canonical", raw + b" "
    yield "changed", bytes([raw[0] ^ 1]) + raw[1:]
    yield "deep", b"[" * 5000
    yield "too long", raw + bytes(LONG)
    for name in body if isinstance(body, dict) else ():
        longer = {**body, name: 1 << 60}
        whole = {**plain, "body": longer} if "body" in plain else longer
        yield f"{name} too large", json.dumps(whole, separators=(",", ":")).encode()


def require_clear(code: str, line: str) -> None:
    assert code in catalogue(), code
    assert line
    assert "\n" not in line
    assert "Traceback" not in line
    assert len(line) < 1000
