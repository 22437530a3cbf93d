"""Records that their owner sealed at home, opened on a device (rule C6).

They cross unopened. The announcement, fresh and sealed for this link, names their stream
and how many follow; each must be exactly the next record of that stream, so nothing of
another file or place gets in, and bound to this crossing by its sender (``crossing.py``).
"""

from __future__ import annotations

from sealift.channel.device.device import DeviceEngine, DeviceKey, RecordPlace
from sealift.channel.device.keys import DeviceKeys
from sealift.channel.link.announcement import Announcement
from sealift.channel.link.crossing import FORWARDED_EXTRA_BYTES, Ends, bound
from sealift.channel.link.keys import LinkOpener
from sealift.channel.record.header import StreamHeader
from sealift.channel.record.record import RecordKeys, verify_header_key
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError


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
        announcement: Announcement,
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

    def begin(self, announcement: Announcement) -> None:
        """Go to the first record of another transfer of the same stream.

        Raises:
            MalformedError: if the announcement does not fit the stream.
        """
        self._check(announcement)
        self._announced = announcement
        self._index = announcement.first_index

    def admit(
        self, ends: Ends, sealed_offset: int, plain_offset: int, unit_bytes: int
    ) -> tuple[DeviceKey, RecordPlace]:
        """Where the next record is opened, which crossed as its sender bound it.

        Args:
            ends: Copied from its frame; the record that is opened must end in ``tag``.
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
        return self._device_keys.place(
            index,
            index,
            final=self._header.is_final(index),
            sealed_offset=sealed_offset,
            plain_offset=plain_offset,
            plaintext_bytes=unit_bytes,
        )

    def close(self) -> None:
        """Forget the owner's key, here and on the device."""
        self._device_keys.close()
        self._keys.wipe()

    def _check(self, announcement: Announcement) -> None:
        header, first = self._header, announcement.first_index
        if header.carries_messages or announcement.unit_bytes != header.record_bytes:
            raise MalformedError("the transfer is not laid out as its stream is")
        left = header.total_bytes - first * header.record_bytes
        whole = announcement.total_bytes % header.record_bytes == 0
        if announcement.total_bytes > left or not (
            whole or announcement.total_bytes == left
        ):
            raise MalformedError("the transfer is not whole records of its stream")
