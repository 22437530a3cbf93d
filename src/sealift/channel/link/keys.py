"""A link's base keys, and what must come next where a device opens it.

What seals, and what opens on the processor, is ``channel/record/frames.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealift.channel.device.device import DeviceEngine, DeviceKey, RecordPlace
from sealift.channel.device.keys import DeviceKeys
from sealift.channel.record.frames import (
    FRAME_EXTRA_BYTES,
    FrameOpener,
    wrong_length,
)
from sealift.channel.record.record import DEFAULT_OPTIONS, StreamOptions
from sealift.crypto.keys import SecretKey
from sealift.ids import Buffer


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """The base keys of both directions; a session exports them."""

    to_device: SecretKey
    from_device: SecretKey

    def wipe(self) -> None:
        """Overwrite both, once streams were derived from them."""
        self.to_device.wipe()
        self.from_device.wipe()


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
