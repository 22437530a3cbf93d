"""What makes a record that was sealed at home fresh for one crossing (rule C6).

The record's own tag is its owner's and the same on every crossing. Behind it goes a tag
under the link's key and its next sequence: over nothing, with the record's tag and its
place in this transfer as associated data. So a frame that was recorded says nothing
anywhere else: not later in its transfer, not in another one, not on another link.
It binds the record as far as the record's tag does: whoever has the owner's key can make
other content with the same tag (rule C5).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from sealift.channel.link.announcement import Announcement
from sealift.channel.link.keys import FRAME_EXTRA_BYTES, LinkSealer, wrong_length
from sealift.channel.record.frame import PREFIX_BYTES
from sealift.crypto.aead import TAG_BYTES
from sealift.ids import Buffer

FORWARDED_EXTRA_BYTES: Final = FRAME_EXTRA_BYTES + TAG_BYTES
"""What a frame has besides the ciphertext: prefix, the record's tag, the crossing's."""

_PLACE: Final = struct.Struct(">QQQQ")
_PREFIX: Final = struct.Struct(f"{PREFIX_BYTES}s")
_TAGS: Final = struct.Struct(f"{TAG_BYTES}s{TAG_BYTES}s")


class Ends(NamedTuple):
    """A private copy of what a frame has before and behind the ciphertext."""

    prefix: bytes
    tag: bytes
    crossing: bytes


def ends_of(frame: memoryview, unit_bytes: int) -> Ends:
    """Copy the ends of a frame, whose record must have ``unit_bytes`` of plaintext.

    Each byte is read once: whoever can write ``frame`` meanwhile is checked by what this
    returns, and that is what must be opened (rule H3).

    Raises:
        MalformedError: code ``bad-record-length``.
    """
    expected = unit_bytes + FORWARDED_EXTRA_BYTES
    if len(frame) != expected:
        raise wrong_length(len(frame), expected)
    (prefix,) = _PREFIX.unpack_from(frame)
    return Ends(prefix, *_TAGS.unpack_from(frame, expected - _TAGS.size))


def bound(announced: Announcement, index: int, unit_bytes: int, tag: bytes) -> bytes:
    """What a crossing tag covers besides the link's own associated data, 48 bytes.

    Args:
        announced: The transfer.
        index: The record's, in its own stream.
        unit_bytes: Its plaintext.
        tag: Its own.
    """
    offset = (index - announced.first_index) * announced.unit_bytes
    return _PLACE.pack(announced.number, index, offset, unit_bytes) + tag


def fill_frame(
    sealer: LinkSealer,
    announced: Announcement,
    index: int,
    record: Buffer,
    frame: memoryview,
) -> None:
    """Put a record, the prefix before it and the crossing tag behind it into ``frame``."""
    frame[PREFIX_BYTES:-TAG_BYTES] = record
    tag = bytes(memoryview(record)[-TAG_BYTES:])
    unit_bytes = len(frame) - FORWARDED_EXTRA_BYTES
    sealer.bind(bound(announced, index, unit_bytes, tag), frame)
