"""What is not sealed of a sealed stream: header, trailer, and a prefix before each frame.

Fixed bytes, parsed strictly. Nothing parsed here is authenticated; ``record.py`` checks the
header's key commitment, and the hash of the whole header is in the associated data of every
record. The trailer holds counts and a root over header and all tags (``TagRoot``). The root
binds only those without the stream's key (rule C5): whoever holds it can change content and
keep every tag. Content is bound by ``commitment.py``.
Source: spec/record.md section 2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.errors import MalformedError, UsageError
from sealift.ids import Buffer

MAGIC: Final = b"SEALIFT\x01"
HEADER_BYTES: Final = 120
UNKNOWN: Final = 2**64 - 1
MESSAGES: Final = 0x01  # flag: unknown length, records of any size up to record_bytes
DESCRIBED: Final = 0x02  # flag: the stream id commits to what the content is said to be
RECORD_ALIGNMENT_BYTES: Final = 32  # what copy engines of GPUs ask for
MIN_RECORD_BYTES: Final = 64
MAX_RECORD_BYTES: Final = 4 << 20
DEFAULT_RECORD_BYTES: Final = 1 << 20
MAX_STREAM_BYTES: Final = 2**62

_LAYOUT: Final = struct.Struct(">8sBBHIQ16sQQ32s32s")
TRAILER_MAGIC: Final = b"SEALEND\x01"
TRAILER_BYTES: Final = 56
_TRAILER: Final = struct.Struct(">8sQQ32s")
PREFIX_BYTES: Final = 16
MAX_FRAME_BYTES: Final = PREFIX_BYTES + MAX_RECORD_BYTES + TAG_BYTES
PREFIX: Final = struct.Struct(">IIQ")
FINAL_BIT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """The first 120 bytes of a sealed stream; all of it is public.

    Attributes:
        record_bytes: Plaintext bytes of every record but the last (of every record
            at most, when the stream carries messages).
        total_bytes: Plaintext bytes, or ``UNKNOWN`` for messages.
        record_count: Records, or ``UNKNOWN`` for messages. An empty stream has one.
    """

    suite: Suite
    flags: int
    record_bytes: int
    key_epoch: int
    stream_id: bytes
    total_bytes: int
    record_count: int
    salt: bytes
    key_commitment: bytes

    @classmethod
    def parse(cls, raw: Buffer) -> Self:
        """Read a header; nothing in it is authenticated yet.

        Raises:
            MalformedError: with the field, if the bytes are not a header of version 1.
        """
        if len(raw) != HEADER_BYTES:
            raise _malformed(
                "length", len(raw), why=f"a header must have {HEADER_BYTES} bytes"
            )
        magic, suite, flags, reserved, *rest = _LAYOUT.unpack(raw)
        if magic != MAGIC:
            raise _malformed("magic", 0, why="not a sealed stream of version 1")
        if suite not in tuple(Suite):
            raise _malformed("suite", 8, why=f"suite {suite} is unknown")
        if reserved != 0:
            raise _malformed("reserved", 10, why="must be zero")
        header = cls(Suite(suite), flags, *rest)
        header.validate()
        return header

    def encode(self) -> bytes:
        """The 120 bytes."""
        return _LAYOUT.pack(
            MAGIC, self.suite, self.flags, 0, self.record_bytes, self.key_epoch,
            self.stream_id, self.total_bytes, self.record_count, self.salt,
            self.key_commitment,
        )  # fmt: skip

    def validate(self) -> None:
        """Check every limit.

        Raises:
            MalformedError: with the field that is out of its limits.
        """
        if self.flags & ~(MESSAGES | DESCRIBED):
            raise _malformed("flags", 9, why="unknown flag")
        if not 0 <= self.key_epoch < 2**64:
            raise _malformed("key_epoch", 16, why="not an unsigned 64-bit number")
        check_record_bytes(self.record_bytes)
        if self.carries_messages:
            if (self.total_bytes, self.record_count) != (UNKNOWN, UNKNOWN):
                raise _malformed("total_bytes", 40, why="messages have no known length")
            if self.is_described:
                raise _malformed("flags", 9, why="messages have no description")
            return
        if not 0 <= self.total_bytes <= MAX_STREAM_BYTES:
            raise _malformed("total_bytes", 40, why=f"not in 0..{MAX_STREAM_BYTES}")
        if self.record_count != count_records(self.total_bytes, self.record_bytes):
            raise _malformed("record_count", 48, why="does not fit total_bytes")

    @property
    def carries_messages(self) -> bool:
        """Whether length and record sizes are unknown beforehand."""
        return bool(self.flags & MESSAGES)

    @property
    def is_described(self) -> bool:
        """Whether its writer said what the content is; see ``verify_description``."""
        return bool(self.flags & DESCRIBED)

    def plaintext_bytes(self, index: int) -> int:
        """Plaintext bytes of record ``index`` (the most it can have, for messages).

        Raises:
            UsageError: if the stream has no such record.
        """
        if not 0 <= index < self.record_count:
            raise UsageError(f"the stream has no record {index}", code="no-such-record")
        if self.carries_messages or index < self.record_count - 1:
            return self.record_bytes
        return self.total_bytes - index * self.record_bytes

    def is_final(self, index: int) -> bool:
        """Whether ``index`` is the last record of a stream of known length."""
        return index == self.record_count - 1


def check_record_bytes(record_bytes: int) -> None:
    """Refuse record sizes outside 64 B to 4 MiB or not a multiple of 32.

    Raises:
        MalformedError: if the size is not allowed.
    """
    inside = MIN_RECORD_BYTES <= record_bytes <= MAX_RECORD_BYTES
    if not inside or record_bytes % RECORD_ALIGNMENT_BYTES:
        raise _malformed(
            "record_bytes",
            12,
            why=f"{record_bytes} is not a multiple of 32 in 64..4 MiB",
        )


def count_records(total_bytes: int, record_bytes: int) -> int:
    """Records of a stream; at least one, so that there is always a final record."""
    return max(1, -(-total_bytes // record_bytes))


def sealed_bytes(plaintext_bytes: int) -> int:
    """Bytes of a record with that many plaintext bytes."""
    return plaintext_bytes + TAG_BYTES


def _malformed(field: str, offset: int, *, why: str) -> MalformedError:
    return MalformedError(
        "the header of the sealed stream is malformed",
        field=field,
        offset=offset,
        why=why,
        code="bad-stream-header",
    )


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
            raise _bad_trailer(
                "magic", why="the stream was truncated or has another format"
            )
        return cls(record_count, total_bytes, root)


def _bad_trailer(field: str, *, why: str) -> MalformedError:
    return MalformedError(
        "the trailer of the sealed stream is malformed",
        field=field,
        why=why,
        code="bad-stream-trailer",
    )


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
            raise _bad_prefix(
                f"announces {length} bytes, and has {frame_bytes - PREFIX_BYTES}"
            )
        if flags & ~FINAL_BIT:
            raise _bad_prefix("has unknown bits")
        return cls(length, sequence, bool(flags & FINAL_BIT))


def _bad_prefix(why: str) -> MalformedError:
    return MalformedError("sealed frame is malformed", why=why, code="bad-frame")
