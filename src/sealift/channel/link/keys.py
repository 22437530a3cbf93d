"""Both ends of a link's stream: who seals next under which nonce, what must come next.

A link is one stream of messages in each direction (spec/record.md section 5), so its
keys are derived once, and order, repetition and gaps over all of its transfers are those
of one stream: the index is dense, the sequence grows. A unit under one tag that is longer
than a record of the format counts as so many records, which keeps the bound on bytes per
key.
Made once a record, so: no objects that are not needed, and one lock a transfer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from sealift.channel.device.device import DeviceEngine, DeviceKey, RecordPlace
from sealift.channel.device.keys import DeviceKeys
from sealift.channel.record.header import MAX_RECORD_BYTES, StreamHeader
from sealift.channel.record.record import (
    DEFAULT_OPTIONS,
    RecordKeys,
    StreamOptions,
    make_header,
    verify_header_key,
)
from sealift.channel.record.trailer import PREFIX_BYTES
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, StaleError
from sealift.ids import Buffer

FRAME_EXTRA_BYTES: Final = PREFIX_BYTES + TAG_BYTES
_PREFIX: Final = struct.Struct(">IIQ")
_NOTHING: Final = bytearray()  # where an empty plaintext goes


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """The base keys of both directions; a session exports them."""

    to_device: SecretKey
    from_device: SecretKey

    def wipe(self) -> None:
        """Overwrite both, once streams were derived from them."""
        self.to_device.wipe()
        self.from_device.wipe()


class LinkSealer:
    """The sending end's keys and counters.

    Args:
        base_key: Key of this direction; not kept.
        context: What both ends know: mode, agreement, job.
    """

    def __init__(
        self,
        base_key: SecretKey,
        *,
        suite: Suite = Suite.AES_256_GCM,
        context: bytes = b"",
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        header = make_header(
            base_key,
            total_bytes=None,
            record_bytes=MAX_RECORD_BYTES,
            suite=suite,
            options=options,
        )
        self.header_bytes = header.encode()
        self._keys = RecordKeys(base_key, header, context=context, options=options)
        self.index = 0
        self._sequence = 0

    def seal(self, plaintext: Buffer, frame: memoryview) -> None:
        """Seal the next unit into ``frame``: prefix, ciphertext, tag; as long as it is.

        The sequence is spent before the cipher runs.
        """
        index, sequence = self.index, self._sequence
        self._sequence = sequence + 1
        cipher, nonce, associated_data = self._keys.crossing(index, sequence, False)
        room = frame[PREFIX_BYTES:]
        cipher.seal_into(nonce, plaintext, associated_data, room)
        _PREFIX.pack_into(frame, 0, len(room), 0, sequence)
        self.index = index + records_of(len(room) - TAG_BYTES)

    def bind(self, bound: bytes, frame: memoryview) -> None:
        """Tag what the other end knows too: the last 16 bytes of ``frame``, and a prefix.

        It takes an index and spends a sequence, as a record does, and seals nothing. Its
        associated data is longer than a record's, so neither passes for the other.
        """
        index, sequence = self.index, self._sequence
        self._sequence = sequence + 1
        cipher, nonce, associated_data = self._keys.crossing(index, sequence, False)
        cipher.seal_into(nonce, b"", associated_data + bound, frame[-TAG_BYTES:])
        _PREFIX.pack_into(frame, 0, len(frame) - PREFIX_BYTES, 0, sequence)
        self.index = index + 1

    def rewind(self, index: int) -> None:
        """Seal from ``index`` again, under new sequences (rule H4).

        Only after everything sealed from there on was overwritten, unsent.
        """
        self.index = index

    def __reduce__(self) -> NoReturn:
        self._keys.__reduce__()  # refuses

    def close(self) -> None:
        """Forget the keys."""
        self._keys.wipe()


class LinkOpener:
    """The receiving end's keys and counters; an engine opens what it says.

    Args:
        base_key: The key that the header must commit to.
        header_bytes: The header, as received.
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
        header = StreamHeader.parse(header_bytes)
        if not header.carries_messages:
            raise MalformedError("a link is a stream of messages", field="flags")
        verify_header_key(base_key, header)
        self.header = header
        self._keys = RecordKeys(base_key, header, context=context, options=options)
        self._device_keys = DeviceKeys(self._keys, header.suite, engine)
        self._index = 0
        self._last_sequence = -1

    def open_message(self, frame: Buffer) -> bytes:
        """Open a short message on the processor, from a private copy.

        Raises:
            AuthenticationError, StaleError, MalformedError: if it is not the next one.
        """
        private = bytes(frame)
        sequence = self._sequence_of(private, len(private))
        out = bytearray(len(private) - FRAME_EXTRA_BYTES)
        cipher, nonce, associated_data = self._keys.crossing(
            self._index, sequence, False
        )
        cipher.open_into(nonce, private[PREFIX_BYTES:], associated_data, out)
        self._accept(sequence, len(out))
        return bytes(out)

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

    def verify_bound(
        self, prefix: bytes, frame_bytes: int, bound: bytes, tag: bytes
    ) -> None:
        """Check what ``LinkSealer.bind`` made, on the processor; all bytes are private.

        Raises:
            AuthenticationError, StaleError, MalformedError: if it is not the next one.
        """
        sequence = self._sequence_of(prefix, frame_bytes)
        cipher, nonce, associated_data = self._keys.crossing(
            self._index, sequence, False
        )
        cipher.open_into(nonce, tag, associated_data + bound, _NOTHING)
        self._last_sequence = sequence
        self._index += 1

    def close(self) -> None:
        """Forget the keys, here and on the device."""
        self._device_keys.close()
        self._keys.wipe()

    def _sequence_of(self, frame: Buffer, frame_bytes: int) -> int:
        if frame_bytes < FRAME_EXTRA_BYTES:
            raise wrong_length(frame_bytes, FRAME_EXTRA_BYTES)
        length, flags, sequence = _PREFIX.unpack_from(frame)
        if length != frame_bytes - PREFIX_BYTES or flags:  # no unit is final
            raise MalformedError("sealed frame is malformed", code="bad-frame")
        if sequence <= self._last_sequence:
            raise StaleError("a record was replayed", code="replayed-record")
        return int(sequence)

    def _accept(self, sequence: int, plaintext_bytes: int) -> None:
        self._last_sequence = sequence
        self._index += records_of(plaintext_bytes)


def records_of(plaintext_bytes: int) -> int:
    """How many indexes a unit takes: one, unless it is longer than any record."""
    if plaintext_bytes <= MAX_RECORD_BYTES:
        return 1
    return -(-plaintext_bytes // MAX_RECORD_BYTES)


def wrong_length(found: int, expected: int) -> MalformedError:
    """A record that is not as long as the announcement says."""
    return MalformedError(
        f"a record of the transfer has {found} bytes",
        why=f"the announcement says {expected}",
        code="bad-record-length",
    )
