"""The vendor protocol's shape, to be measured: the host opens, and seals again.

The owner's records are opened with the owner's key in the host's memory and sealed with
the device's, so whoever reads the host's memory reads them. It exists to say what sealing
once saves.
"""

from __future__ import annotations

from sealift.channel.link.keys import FRAME_EXTRA_BYTES, records_of
from sealift.channel.quarantine import scrub
from sealift.channel.record import RecordKeys, make_header
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import SecretKey
from sealift.lab.bench.linkshapes import ShapedSender


class OwnersRecords:
    """A transfer that its owner sealed before, in units of one size.

    Args:
        key: The owner's key; the host is given it: that is the weakness.
        source: The plaintext.
        unit_bytes: Plaintext under one tag.
    """

    def __init__(
        self,
        key: SecretKey,
        source: memoryview,
        unit_bytes: int,
        suite: Suite = Suite.AES_256_GCM,
    ) -> None:
        header = make_header(key, total_bytes=None, suite=suite)
        self._keys = RecordKeys(key, header)
        self.total_bytes = len(source)
        self.unit_bytes = unit_bytes
        self.records = [
            self._sealed(source[start : start + unit_bytes], number)
            for number, start in enumerate(range(0, len(source), unit_bytes))
        ]

    def open_into(self, number: int, out: memoryview) -> None:
        """Open one unit into the host's memory."""
        cipher, nonce, associated_data = self._keys.crossing(
            *self._place(number), False
        )
        cipher.open_into(nonce, self.records[number], associated_data, out)

    def _sealed(self, plaintext: memoryview, number: int) -> bytearray:
        record = bytearray(len(plaintext) + TAG_BYTES)
        cipher, nonce, associated_data = self._keys.crossing(
            *self._place(number), False
        )
        cipher.seal_into(nonce, plaintext, associated_data, record)
        return record

    def _place(self, number: int) -> tuple[int, int]:
        index = number * records_of(self.unit_bytes)
        return index, index


class Reencrypter:
    """The host between owner and device.

    Args:
        sender: A link of shape ``reencrypt`` or ``reencrypt+chunk``.
        max_unit_bytes: Longest unit; its room is made, and touched, beforehand.
    """

    def __init__(self, sender: ShapedSender, max_unit_bytes: int) -> None:
        self._sender = sender
        self._clear = memoryview(bytearray(max_unit_bytes))
        scrub(self._clear)

    def send(self, records: OwnersRecords) -> None:
        """Open and seal again unit by unit; return when the device verified all."""
        sender, sealer = self._sender, self._sender.sealer
        planned = sender.plan(records.total_bytes)
        with sender.life:
            announcement = sender.announce(planned)
            for number, record in enumerate(records.records):
                clear = self._clear[: len(record) - TAG_BYTES]
                records.open_into(number, clear)
                frame = sender.transport.reserve(
                    len(clear) + FRAME_EXTRA_BYTES, sender.timeout_s
                )
                sealer.seal(clear, frame)
                sender.transport.commit()
            sender.await_verdict(announcement)

    def close(self) -> None:
        """Overwrite what the host saw."""
        scrub(self._clear)
