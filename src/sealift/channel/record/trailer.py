"""What ends a sealed stream, and what precedes each of its records in flight.

The trailer: counts and a root over header and all tags; 56 bytes. The root binds only those
without the stream's key (rule C5): whoever holds it can change content and keep every tag.
Content is bound by ``commitment.py``. The prefix: length, final bit and sequence.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from sealift.channel.record.header import MAX_RECORD_BYTES, StreamHeader
from sealift.channel.record.record import RecordKeys
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.hash import KeyedHasher, verify_equal
from sealift.errors import MalformedError
from sealift.ids import Buffer

TRAILER_MAGIC: Final = b"SEALEND\x01"
TRAILER_BYTES: Final = 56
_TRAILER: Final = struct.Struct(">8sQQ32s")
_COUNTS: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 56 bytes of a sealed stream."""

    record_count: int
    total_bytes: int
    root: bytes

    def encode(self) -> bytes:
        """The 56 bytes."""
        return _TRAILER.pack(
            TRAILER_MAGIC, self.record_count, self.total_bytes, self.root
        )

    @classmethod
    def parse(cls, raw: Buffer) -> Self:
        """Read a trailer.

        Raises:
            MalformedError: if the bytes are not a trailer of version 1.
        """
        if len(raw) != TRAILER_BYTES:
            raise _bad_trailer("length", why=f"{len(raw)} bytes, not {TRAILER_BYTES}")
        magic, record_count, total_bytes, root = _TRAILER.unpack(raw)
        if magic != TRAILER_MAGIC:
            raise _bad_trailer("magic", why="the stream was cut or is another format")
        return cls(record_count, total_bytes, root)


class TagRoot:
    """Takes tags in order of their index; makes or verifies the trailer."""

    def __init__(self, keys: RecordKeys, header: StreamHeader) -> None:
        self._hasher = KeyedHasher(keys.trailer_key())
        self._hasher.update(header.encode())
        self._record_count = 0
        self._total_bytes = 0

    def add(self, tag: Buffer, plaintext_bytes: int) -> None:
        """Add the tag of the next record."""
        self._hasher.update(bytes(tag))
        self._record_count += 1
        self._total_bytes += plaintext_bytes

    def trailer(self) -> Trailer:
        """The trailer of what was added; ends the hash."""
        self._hasher.update(_COUNTS.pack(self._record_count, self._total_bytes))
        root = self._hasher.digest()
        return Trailer(self._record_count, self._total_bytes, root)

    def verify(self, received: Trailer) -> None:
        """Compare with a received trailer.

        Raises:
            AuthenticationError: if it is not the trailer of the tags added.
        """
        verify_equal(self.trailer().encode(), received.encode())


def _bad_trailer(field: str, *, why: str) -> MalformedError:
    return MalformedError(
        "sealed stream trailer is malformed",
        field=field,
        why=why,
        code="bad-stream-trailer",
    )


PREFIX_BYTES: Final = 16
MAX_FRAME_BYTES: Final = PREFIX_BYTES + MAX_RECORD_BYTES + TAG_BYTES
PREFIX: Final = struct.Struct(">IIQ")
FINAL_BIT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class FramePrefix:
    """What precedes a record on a transport."""

    record_bytes: int
    sequence: int
    final: bool

    def encode(self) -> bytes:
        """The 16 bytes."""
        flags = FINAL_BIT if self.final else 0
        return PREFIX.pack(self.record_bytes, flags, self.sequence)

    @classmethod
    def parse(cls, prefix: Buffer, frame_bytes: int) -> Self:
        """Read the prefix of a frame that has ``frame_bytes`` bytes altogether.

        Raises:
            MalformedError: if the frame is too short or not as long as it says.
        """
        if frame_bytes < PREFIX_BYTES + TAG_BYTES:
            raise _bad_prefix(f"{frame_bytes} bytes are too few")
        length, flags, sequence = PREFIX.unpack(prefix)
        if length != frame_bytes - PREFIX_BYTES:
            raise _bad_prefix(f"says {length} bytes, has {frame_bytes - PREFIX_BYTES}")
        if flags & ~FINAL_BIT:
            raise _bad_prefix("bits are set that mean nothing")
        return cls(length, sequence, bool(flags & FINAL_BIT))


def _bad_prefix(why: str) -> MalformedError:
    return MalformedError("sealed frame is malformed", why=why, code="bad-frame")
