"""What both ends of a link agree on: keys, mode, hello, and what precedes a transfer.

An announcement says how many bytes follow in which units. It crosses as a sealed message of the same stream, so it is authentic, fresh and in its
place before anything is opened because of it. Big-endian:
magic (4), kind (u8), 3 zero bytes, number (u64), total_bytes (u64), unit_bytes (u64),
first_index (u64); a transfer of records that were sealed at home continues with the 120
bytes of their own header.

Transfers cross as they are sent, or sealed before they are asked for. In both modes every
record has its own tag, nobody but owner and device can read what crosses, and records are
opened while the next ones come. Weaker ways exist to be measured, in ``benchmarks``.

What each end says first, its hello (the link's version, and its stream's header), crosses
in the clear, so that ends of two versions can say so; the version is in the context of
both streams as well, so nobody between them can make one of it another.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Self

from sealift.channel.record.layout import HEADER_BYTES
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, PolicyError, UsageError
from sealift.ids import Buffer

MAX_TRANSFER_BYTES: Final = 1 << 40
_MAGIC: Final = b"SLT\x01"
_LAYOUT: Final = struct.Struct(">4sB3sQQQQ")


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """The base keys of both directions; a session exports them."""

    to_device: SecretKey
    from_device: SecretKey

    def wipe(self) -> None:
        """Overwrite both, once streams were derived from them."""
        self.to_device.wipe()
        self.from_device.wipe()


class TransferKind(IntEnum):
    """Whose records follow."""

    LIVE = 1  # sealed for this link
    HOME = 2  # sealed by their owner, at rest


@dataclass(frozen=True, slots=True)
class TransferAnnouncement:
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


class LinkMode(StrEnum):
    """How a transfer is laid out; the value is what people type."""

    DIRECT_OVERLAP = "direct+parallel-auth+overlap"
    SEAL_AHEAD = "seal-ahead"


DEFAULT_MODE: Final = LinkMode.DIRECT_OVERLAP


def parse_mode(name: str) -> LinkMode:
    """The mode of that name.

    Raises:
        UsageError: if there is none.
    """
    try:
        return LinkMode(name)
    except ValueError:
        known = ", ".join(LinkMode)
        raise UsageError(
            f"there is no link mode {name!r}",
            fix=f"Use one of: {known}",
            code="no-such-mode",
        ) from None


VERSION: Final = 2
_HELLO_MAGIC: Final = b"SEALLNK" + bytes([VERSION])


def encode_hello(header_bytes: bytes) -> bytes:
    """The first frame of an end."""
    return _HELLO_MAGIC + header_bytes


def parse_hello(frame: Buffer) -> bytes:
    """The header in it.

    Raises:
        PolicyError: code ``link-version``.
    """
    raw = bytes(frame)
    if not raw.startswith(_HELLO_MAGIC):
        raise PolicyError(
            "the other end uses another version of the link",
            why=f"this end uses version {VERSION}",
            code="link-version",
        )
    return raw[len(_HELLO_MAGIC) :]


def link_context(mode: LinkMode, context: bytes) -> bytes:
    """What both ends' associated data names: version and mode are part of it."""
    return b"link %d %s\0" % (VERSION, mode.value.encode()) + context
