"""What must come next on a link, and where a device opens it.

Units that the sender sealed for the link follow from its header and the next index.
Records that their owner sealed at home cross unopened (rule C6). The announcement, fresh
and sealed for this link, names their stream and how many follow; each must be exactly the
next record of that stream, so nothing of another file or place gets in, and bound to this
crossing by its sender, which makes it fresh. The record's own tag is its owner's and the same on every crossing. Behind it goes a tag
under the link's key and its next sequence: over nothing, with the record's tag and its
place in this transfer as associated data. So a frame that was recorded says nothing
anywhere else: not later in its transfer, not in another one, not on another link.
It binds the record as far as the record's tag does: whoever has the owner's key can make
other content with the same tag (rule C5).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from sealift.channel.device.device import (
    DeviceEngine,
    DeviceKey,
    DeviceKeys,
    RecordPlace,
)
from sealift.channel.link.announcement import TransferAnnouncement
from sealift.channel.record.frames import (
    FRAME_EXTRA_BYTES,
    FrameOpener,
    FrameSealer,
    wrong_length,
)
from sealift.channel.record.layout import PREFIX_BYTES, StreamHeader
from sealift.channel.record.record import (
    DEFAULT_OPTIONS,
    RecordKeys,
    StreamOptions,
    verify_header_key,
)
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError
from sealift.ids import Buffer

FORWARDED_EXTRA_BYTES: Final = FRAME_EXTRA_BYTES + TAG_BYTES
"""What a frame has besides the ciphertext: prefix, the record's tag, the crossing's."""

_PLACE: Final = struct.Struct(">QQQQ")
_PREFIX: Final = struct.Struct(f"{PREFIX_BYTES}s")
_TAGS: Final = struct.Struct(f"{TAG_BYTES}s{TAG_BYTES}s")


class FrameEnds(NamedTuple):
    """A private copy of what a frame has before and behind the ciphertext."""

    prefix: bytes
    tag: bytes
    crossing: bytes


def ends_of(frame: memoryview, unit_bytes: int) -> FrameEnds:
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
    return FrameEnds(prefix, *_TAGS.unpack_from(frame, expected - _TAGS.size))


def bound(
    announced: TransferAnnouncement, index: int, unit_bytes: int, tag: bytes
) -> bytes:
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
    sealer: FrameSealer,
    announced: TransferAnnouncement,
    index: int,
    record: Buffer,
    frame: memoryview,
) -> None:
    """Put a record, the prefix before it and the crossing tag behind it into ``frame``."""
    frame[PREFIX_BYTES:-TAG_BYTES] = record
    tag = bytes(memoryview(record)[-TAG_BYTES:])
    unit_bytes = len(frame) - FORWARDED_EXTRA_BYTES
    sealer.bind(bound(announced, index, unit_bytes, tag), frame)


class LinkOpener(FrameOpener):
    """The receiving end of a link; an engine opens what it says.

    Args:
        base_key: The key that the header must commit to.
        header_bytes: The header, as received.
        engine: Opens the units on the device.
        context: What the sealer was given.

    Raises:
        MalformedError: if the header does not parse.
        AuthenticationError: if it belongs to another key.
    """

    def __init__(
        self,
        base_key: SecretKey,
        header_bytes: Buffer,
        engine: DeviceEngine,
        *,
        context: bytes = b"",
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(base_key, header_bytes, context=context, options=options)
        self._device_keys = DeviceKeys(self._keys, self.header.suite, engine)

    def expect(
        self, frame: memoryview, sealed_offset: int, plain_offset: int, unit_bytes: int
    ) -> tuple[DeviceKey, RecordPlace]:
        """Where the next unit is opened, which must have ``unit_bytes``.

        Its counters are taken: whatever comes of it, it is not opened twice.

        Raises:
            StaleError: if it was opened before.
            MalformedError: if it has another length.
        """
        sequence = self._sequence_of(frame, len(frame))
        if len(frame) != unit_bytes + FRAME_EXTRA_BYTES:
            raise wrong_length(len(frame), unit_bytes + FRAME_EXTRA_BYTES)
        found = self._device_keys.place(
            self._index,
            sequence,
            final=False,
            sealed_offset=sealed_offset,
            plain_offset=plain_offset,
            plaintext_bytes=unit_bytes,
        )
        self._accept(sequence, unit_bytes)
        return found

    def close(self) -> None:
        """Forget the keys, here and on the device."""
        self._device_keys.close()
        super().close()


class HomeOpener:
    """Says where the next record of a stream at rest stands.

    Args:
        key: The owner's.
        announcement: The first transfer of that stream.
        engine: Opens the records.
        link: Checks that each was bound to this crossing.

    Raises:
        AuthenticationError: if the header belongs to another key.
        MalformedError: if the announcement does not fit the stream.
    """

    def __init__(
        self,
        key: SecretKey,
        announcement: TransferAnnouncement,
        engine: DeviceEngine,
        link: LinkOpener,
    ) -> None:
        self.header_bytes = announcement.header_bytes
        self._header = StreamHeader.parse(announcement.header_bytes)
        verify_header_key(key, self._header)
        self.begin(announcement)  # before there are keys to forget
        self._keys = RecordKeys(key, self._header)
        self._device_keys = DeviceKeys(self._keys, self._header.suite, engine)
        self._link = link

    def begin(self, announcement: TransferAnnouncement) -> None:
        """Go to the first record of another transfer of the same stream.

        Raises:
            MalformedError: if the announcement does not fit the stream.
        """
        self._check(announcement)
        self._announced = announcement
        self._index = announcement.first_index

    def admit(
        self, ends: FrameEnds, sealed_offset: int, plain_offset: int, unit_bytes: int
    ) -> tuple[DeviceKey, RecordPlace]:
        """Where the next record is opened, which crossed as its sender bound it.

        Args:
            ends: Copied from its frame; the record is opened under their ``tag``,
                whatever its slot says by then.
            sealed_offset: Where it lies.
            plain_offset: Where its plaintext goes.
            unit_bytes: That plaintext's length.

        Raises:
            AuthenticationError, StaleError, MalformedError: if it is not the next one.
        """
        index = self._index
        covered = bound(self._announced, index, unit_bytes, ends.tag)
        self._link.verify_bound(
            ends.prefix, unit_bytes + FORWARDED_EXTRA_BYTES, covered, ends.crossing
        )
        self._index = index + 1
        key, place = self._device_keys.place(
            index,
            index,
            final=self._header.is_final(index),
            sealed_offset=sealed_offset,
            plain_offset=plain_offset,
            plaintext_bytes=unit_bytes,
        )
        return key, place._replace(tag=ends.tag)

    def close(self) -> None:
        """Forget the owner's key, here and on the device."""
        self._device_keys.close()
        self._keys.wipe()

    def _check(self, announcement: TransferAnnouncement) -> None:
        header, first = self._header, announcement.first_index
        if header.carries_messages or announcement.unit_bytes != header.record_bytes:
            raise MalformedError("the transfer does not have the layout of its stream")
        left = header.total_bytes - first * header.record_bytes
        whole = announcement.total_bytes % header.record_bytes == 0
        if announcement.total_bytes > left or not (
            whole or announcement.total_bytes == left
        ):
            raise MalformedError(
                "the transfer does not consist of whole records of its stream"
            )
