"""The prefix of a record in flight: length, final bit and sequence; 16 bytes.

Layout, big-endian: length u32 (of the record), u32 with the final bit at its top and
zeros below, sequence u64. Nothing here is trusted as it stands: the final bit is in the
associated data, the sequence in the nonce, so a changed prefix fails the record's tag.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from sealift.channel.record.header import MAX_RECORD_BYTES
from sealift.crypto.aead import TAG_BYTES
from sealift.errors import MalformedError
from sealift.ids import Buffer

PREFIX_BYTES: Final = 16
MAX_FRAME_BYTES: Final = PREFIX_BYTES + MAX_RECORD_BYTES + TAG_BYTES
_LAYOUT: Final = struct.Struct(">IIQ")
_FINAL: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class FramePrefix:
    """What precedes a record on a transport."""

    record_bytes: int
    sequence: int
    final: bool

    def encode(self) -> bytes:
        """The 16 bytes."""
        flags = _FINAL if self.final else 0
        return _LAYOUT.pack(self.record_bytes, flags, self.sequence)

    @classmethod
    def parse(cls, prefix: Buffer, frame_bytes: int) -> Self:
        """Read the prefix of a frame that has ``frame_bytes`` bytes altogether.

        Raises:
            MalformedError: if the frame is too short or not as long as it says.
        """
        if frame_bytes < PREFIX_BYTES + TAG_BYTES:
            raise _malformed(f"{frame_bytes} bytes are too few")
        length, flags, sequence = _LAYOUT.unpack(prefix)
        if length != frame_bytes - PREFIX_BYTES:
            raise _malformed(f"says {length} bytes, has {frame_bytes - PREFIX_BYTES}")
        if flags & ~_FINAL:
            raise _malformed("bits are set that mean nothing")
        return cls(length, sequence, bool(flags & _FINAL))


def _malformed(why: str) -> MalformedError:
    return MalformedError("sealed frame is malformed", why=why, code="bad-frame")
