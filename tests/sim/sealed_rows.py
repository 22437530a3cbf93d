"""Sealed rows in memory, and a stand-in for a lease in a frame."""

from __future__ import annotations

import secrets
from functools import cache

from sealift.channel.record.commitment import (
    CommitmentBuilder,
    VerifiedLeaves,
    verify_leaves,
)
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import SecretKey

ROWS, ROW_BYTES, RECORD_BYTES = 12, 40, 96
PLAIN = secrets.token_bytes(ROWS * ROW_BYTES)
DATA_KEY = SecretKey.generate()


class Source:
    """A sealed file in memory."""

    def __init__(self) -> None:
        sealer = StreamSealer(
            DATA_KEY, total_bytes=len(PLAIN), record_bytes=RECORD_BYTES
        )
        content = CommitmentBuilder(
            DATA_KEY, total_bytes=len(PLAIN), record_bytes=RECORD_BYTES
        )
        self.header = sealer.header_bytes
        self.records = []
        for start in range(0, len(PLAIN), RECORD_BYTES):
            chunk = PLAIN[start : start + RECORD_BYTES]
            content.add(chunk)
            final = start + RECORD_BYTES >= len(PLAIN)
            self.records.append(sealer.seal(chunk, final))
        self.leaves: VerifiedLeaves = verify_leaves(
            content.leaves, content.commitment(), data_key=DATA_KEY
        )


@cache
def source() -> Source:
    """Made once."""
    return Source()
