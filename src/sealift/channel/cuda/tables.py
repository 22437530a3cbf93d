"""What a batch tells the kernels: one table of records and associated data, one crossing.

Struct ``sealift_record`` of the kernels: offsets, lengths and the nonce of one record, 48
bytes, little endian; the associated data of all follow, each on a multiple of 16 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from sealift.channel.cuda.plan import RECORD_BYTES, BatchShape
from sealift.channel.device.device import RecordPlace

_RECORD: Final = struct.Struct("<QQIIQ12sI")
_ALIGNED: Final = 16
assert _RECORD.size == RECORD_BYTES


def shape_of(places: Sequence[RecordPlace]) -> BatchShape:
    """What decides the grid."""
    lengths = [place.plaintext_bytes for place in places]
    return BatchShape(len(lengths), max(lengths, default=0), sum(lengths))


def table_of(places: Sequence[RecordPlace]) -> bytes:
    """The table; associated data begin at ``RECORD_BYTES * len(places)``."""
    records, associated, at = [], [], 0
    for place in places:
        text = place.associated_data
        records.append(
            _RECORD.pack(
                place.sealed_offset, place.plain_offset, place.plaintext_bytes,
                len(text), at, place.nonce, 0,
            )
        )  # fmt: skip
        padded = text.ljust(-(-len(text) // _ALIGNED) * _ALIGNED, b"\0")
        associated.append(padded)
        at += len(padded)
    return b"".join((*records, *associated))


def sealed_hull(places: Sequence[RecordPlace]) -> tuple[int, int]:
    """First and last byte of the sealed records."""
    return (
        min((place.sealed_offset for place in places), default=0),
        max((p.sealed_offset + p.plaintext_bytes + 16 for p in places), default=0),
    )


def plain_hull(places: Sequence[RecordPlace]) -> tuple[int, int]:
    """First and last byte of the plaintexts."""
    return (
        min((place.plain_offset for place in places), default=0),
        max((p.plain_offset + p.plaintext_bytes for p in places), default=0),
    )
