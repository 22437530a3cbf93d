"""The visit frame: a record of the owner's sealed file, crossing unopened (rule C6).

The frame's MAC, under the visit key, says where the record goes in this visit; the
record's own tag, under the data key, says that it is what was sealed at home. Pure:
bytes in, bytes out. Layout in spec/visit.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Protocol

from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.hash import keyed_hash, verify_equal
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError
from sealift.ids import Buffer, Digest, Handle
from sealift.travel.visit.lease import Lease

VERSION: Final = 1
MAC_BYTES: Final = 32
_FIELDS: Final = struct.Struct(">BxxxIQ16sQQ")
HEADER_BYTES: Final = _FIELDS.size + MAC_BYTES


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the bytes of one record go.

    Attributes:
        sequence: Position in this visit, from 0.
        record: Index of the record in the sealed file.
        offset: Offset in the buffer, in bytes.
        length: Bytes of the record's plaintext that are placed.
        skip: Bytes at the record's start that lie before the cargo.
    """

    sequence: int
    record: int
    offset: int
    length: int
    skip: int


def frame_bytes(record_bytes: int) -> int:
    """The longest frame of a file with records of this size."""
    return HEADER_BYTES + record_bytes + TAG_BYTES


def record_range(lease: Lease, record_bytes: int) -> range:
    """The records of the sealed file that hold the lease's rows."""
    first = lease.start_byte // record_bytes
    last = (lease.start_byte + lease.cargo_bytes - 1) // record_bytes
    return range(first, last + 1)


def placement(lease: Lease, sequence: int, record_bytes: int) -> Placement:
    """Where frame number ``sequence`` of this lease must go."""
    record = record_range(lease, record_bytes)[sequence]
    start, end = lease.start_byte, lease.start_byte + lease.cargo_bytes
    low = max(start, record * record_bytes)
    high = min(end, (record + 1) * record_bytes)
    skip = low - record * record_bytes
    return Placement(sequence, record, lease.offset + low - start, high - low, skip)


class Leased(Protocol):
    """What a frame says of its lease: a `Lease`, or what an attack puts there."""

    @property
    def handle(self) -> Handle:
        """Names the buffer."""
        ...

    @property
    def digest(self) -> Digest:
        """Of the whole lease; under the MAC."""
        ...


def build_frame(
    visit_key: SecretKey, lease: Leased, place: Placement, record: Buffer
) -> bytes:
    """The frame around one sealed record."""
    head = frame_head(visit_key, lease, place, memoryview(record)[-TAG_BYTES:])
    return b"".join((head, record))


def frame_head(
    visit_key: SecretKey, lease: Leased, place: Placement, tag: Buffer
) -> bytes:
    """Fields and MAC of the frame around the record that ends in ``tag``."""
    fields = _FIELDS.pack(
        VERSION,
        place.sequence,
        place.record,
        lease.handle.raw,
        place.offset,
        place.length,
    )
    return fields + _mac(visit_key, lease.digest, fields, tag)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as received: nothing in it is to be believed before ``authenticate``."""

    fields: bytes
    sequence: int
    record_index: int
    handle: Handle
    offset: int
    length: int
    mac: bytes
    record: memoryview

    def authenticate(self, visit_key: SecretKey, lease: Digest) -> None:
        """Check the MAC.

        Raises:
            AuthenticationError: if it was not made with this visit's key and lease.
        """
        tag = self.record[-TAG_BYTES:]
        verify_equal(_mac(visit_key, lease, self.fields, tag), self.mac)


def parse_frame(raw: Buffer) -> Frame:
    """Split a frame into its fields.

    Raises:
        MalformedError: if it is too short or of another version.
    """
    view = memoryview(raw)
    if len(view) < HEADER_BYTES + TAG_BYTES:
        raise MalformedError("visit frame is too short", offset=len(view))
    fields = bytes(view[: _FIELDS.size])
    version, sequence, record, handle, offset, length = _FIELDS.unpack(fields)
    if version != VERSION or fields[1:4] != bytes(3):
        raise MalformedError(f"visit frame version {version}", why="this is version 1")
    mac = bytes(view[_FIELDS.size : HEADER_BYTES])
    body = view[HEADER_BYTES:]
    return Frame(fields, sequence, record, Handle(handle), offset, length, mac, body)


def _mac(key: SecretKey, lease: Digest, fields: bytes, tag: Buffer) -> bytes:
    return keyed_hash(key, lease.raw, fields, tag)
