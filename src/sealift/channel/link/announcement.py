"""What precedes the records of a transfer on a link: how many bytes, in which units.

It crosses as a sealed message of the same stream, so it is authentic, fresh and in its
place before anything is opened because of it. Big-endian:
magic (4), kind (u8), 3 zero bytes, number (u64), total_bytes (u64), unit_bytes (u64),
first_index (u64); a transfer of records that were sealed at home continues with the 120
bytes of their own header.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from sealift.channel.record.header import HEADER_BYTES
from sealift.errors import MalformedError

MAX_TRANSFER_BYTES: Final = 1 << 40
_MAGIC: Final = b"SLT\x01"
_LAYOUT: Final = struct.Struct(">4sB3sQQQQ")


class TransferKind(IntEnum):
    """Whose records follow."""

    LIVE = 1  # sealed for this link
    HOME = 2  # sealed by their owner, at rest


@dataclass(frozen=True, slots=True)
class Announcement:
    """The next transfer.

    Attributes:
        number: Transfers before it on this link.
        total_bytes: Plaintext bytes.
        unit_bytes: Plaintext under one tag; the last unit may be shorter.
        first_index: HOME: index of the first record that follows.
        header_bytes: HOME: header of the stream they belong to.
    """

    kind: TransferKind
    number: int
    total_bytes: int
    unit_bytes: int
    first_index: int = 0
    header_bytes: bytes = b""

    @property
    def num_units(self) -> int:
        """Units that follow."""
        return -(-self.total_bytes // self.unit_bytes)

    def encode(self) -> bytes:
        """The bytes."""
        fixed = _LAYOUT.pack(
            _MAGIC, self.kind, bytes(3), self.number, self.total_bytes,
            self.unit_bytes, self.first_index,
        )  # fmt: skip
        return fixed + self.header_bytes

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read an announcement.

        Raises:
            MalformedError: if the bytes are none, or its sizes cannot be.
        """
        if len(raw) not in (_LAYOUT.size, _LAYOUT.size + HEADER_BYTES):
            raise _malformed("length")
        magic, kind, reserved, number, total, unit, first = _LAYOUT.unpack_from(raw)
        if (magic, reserved) != (_MAGIC, bytes(3)):
            raise _malformed("magic")
        header_bytes = raw[_LAYOUT.size :]
        if kind not in tuple(TransferKind) or (kind == TransferKind.HOME) != bool(
            header_bytes
        ):
            raise _malformed("kind")
        found = cls(TransferKind(kind), number, total, unit, first, header_bytes)
        found.validate()
        return found

    def validate(self) -> None:
        """Check the sizes.

        Raises:
            MalformedError: if they cannot be.
        """
        if not 0 < self.total_bytes <= MAX_TRANSFER_BYTES:
            raise _malformed("total_bytes")
        if self.unit_bytes == 0:
            raise _malformed("unit_bytes")
        if self.kind is TransferKind.LIVE and self.first_index:
            raise _malformed("first_index")


def _malformed(field: str) -> MalformedError:
    return MalformedError(
        "the announcement of a transfer is malformed",
        field=field,
        code="bad-announcement",
    )
