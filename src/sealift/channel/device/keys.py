"""The keys of one stream on a device, and where each of its records goes.

What ``RecordOpener`` is for the processor: nonce, associated data and key follow from the
header and the record's index; the engine is told and decides nothing.
In a forked child the keys are gone (rule R8).
"""

from __future__ import annotations

import os
import weakref

from sealift.channel.device.device import DeviceEngine, DeviceKey, RecordPlace
from sealift.channel.record.record import RecordKeys
from sealift.crypto.aead import NONCE_BYTES, Suite
from sealift.errors import UsageError


class DeviceKeys:
    """Segment keys of one stream, put on the device when they are needed.

    Args:
        keys: The stream's keys; whoever made them verified the header.
        suite: The suite in its header.
        engine: The device.
    """

    def __init__(self, keys: RecordKeys, suite: Suite, engine: DeviceEngine) -> None:
        self._keys = keys
        self._suite = suite
        self._engine = engine
        self._segment: tuple[int, DeviceKey, int] | None = None
        # Kept a segment longer: records that are queued may be under it.
        self._former: DeviceKey | None = None
        self._process = os.getpid()
        _LIVE.add(self)

    def place(
        self,
        index: int,
        sequence: int,
        *,
        final: bool,
        sealed_offset: int,
        plain_offset: int,
        plaintext_bytes: int,
    ) -> tuple[DeviceKey, RecordPlace]:
        """Key and place of record ``index``, for ``engine.open`` or ``engine.seal``.

        Records of one call need one key: those of one segment of 64 GiB.
        """
        key, mask = self._of_segment(self._keys.segment_number(index))
        nonce = (mask ^ sequence).to_bytes(NONCE_BYTES, "big")
        associated_data = self._keys.associated_data(index, final=final)
        return key, RecordPlace(
            nonce, associated_data, sealed_offset, plain_offset, plaintext_bytes
        )

    def close(self) -> None:
        """Take the keys off the device."""
        segment, self._segment = self._segment, None
        former, self._former = self._former, None
        for key in (segment and segment[1], former):
            if key is not None:
                key.close()

    def forget(self) -> None:
        """In a forked child: the device is the parent's, the key must not be used."""
        self._segment = self._former = None

    def _of_segment(self, number: int) -> tuple[DeviceKey, int]:
        segment = self._segment  # another thread may close this meanwhile
        if segment is None or segment[0] != number:
            segment = self._segment = self._on_device(number)
        return segment[1], segment[2]

    def _on_device(self, number: int) -> tuple[int, DeviceKey, int]:
        secret, mask = self._keys.segment_secret(number)  # raises in a forked child
        if os.getpid() != self._process:
            raise UsageError("a device cannot be used in a forked process")
        if self._former is not None:
            self._former.close()
        self._former = self._segment and self._segment[1]
        try:
            return number, self._engine.key(self._suite, secret), mask
        finally:
            secret.wipe()


_LIVE: weakref.WeakSet[DeviceKeys] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for keys in list(_LIVE):
        keys.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
