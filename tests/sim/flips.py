"""Which bytes to flip: all of a short field, the same sample of a long one every time."""

from __future__ import annotations

from collections.abc import Iterator

from sealift.crypto.hash import sha256

SAMPLE = 300


def places(size: int, sample: int = SAMPLE) -> list[int]:
    """Offsets to change."""
    if size <= sample:
        return list(range(size))
    hashed = (sha256(number.to_bytes(4, "big")) for number in range(sample))
    return sorted({int.from_bytes(each[:8], "big") % size for each in hashed})


def flips(raw: bytes, sample: int = SAMPLE) -> Iterator[tuple[int, bytes]]:
    """Offset and ``raw`` with one bit of that byte changed."""
    for place in places(len(raw), sample):
        bit = 1 << (place % 8)
        yield place, raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :]
