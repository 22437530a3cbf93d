"""A stream of frames in bulk: who seals next under which nonce, what must come next.

For links and pipes: one stream of messages a direction (spec/record.md section 5), so keys
are derived once, and order, repetition and gaps over all that crosses are those of one
stream: the index is dense, the sequence grows (rule H4). A frame may be bound to what
both ends know besides. A unit under one tag that is longer than a record of the format
counts as so many records, which keeps the bound on bytes per key.
Made once a record, so: no objects that are not needed, and no lock; whoever has one of
these serves one thread at a time. Where a device opens: ``channel/link/openers.py``.
"""

from __future__ import annotations

from typing import Final, NoReturn

from sealift.channel.record.layout import (
    FINAL_BIT,
    MAX_RECORD_BYTES,
    PREFIX,
    PREFIX_BYTES,
    StreamHeader,
)
from sealift.channel.record.record import (
    DEFAULT_OPTIONS,
    RecordKeys,
    StreamOptions,
    make_header,
    verify_header_key,
)
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, StaleError
from sealift.ids import Buffer

FRAME_EXTRA_BYTES: Final = PREFIX_BYTES + TAG_BYTES
_NOTHING: Final = bytearray()  # where an empty plaintext goes


class FrameSealer:
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

    def seal(
        self,
        plaintext: Buffer,
        frame: memoryview,
        bound: bytes = b"",
        *,
        final: bool = False,
    ) -> None:
        """Seal the next unit into ``frame``: prefix, ciphertext, tag; as long as it is.

        ``frame`` is private, or mapped by the two ends alone (rule H3). The sequence is
        spent before the cipher runs.
        """
        index, sequence = self.index, self._sequence
        self._sequence = sequence + 1
        cipher, nonce, associated_data = self._keys.crossing(index, sequence, final)
        room = frame[PREFIX_BYTES:]
        cipher.seal_into(nonce, plaintext, associated_data + bound, room)
        PREFIX.pack_into(frame, 0, len(room), FINAL_BIT if final else 0, sequence)
        self.index = index + _records_of(len(room) - TAG_BYTES)

    @property
    def keys(self) -> RecordKeys:
        """The stream's keys, for a device that seals what ``spend`` counts."""
        return self._keys

    def spend(self, plaintext_bytes: int) -> tuple[int, int]:
        """Index and sequence of the next unit, which a device seals; they are used up."""
        index, sequence = self.index, self._sequence
        self._sequence = sequence + 1
        self.index = index + _records_of(plaintext_bytes)
        return index, sequence

    def bind(self, bound: bytes, frame: memoryview) -> None:
        """Tag what the other end knows too: the last 16 bytes of ``frame``, and a prefix.

        It takes an index and spends a sequence, as a record does, and seals nothing. Its
        associated data is longer than a record's, so neither passes for the other.
        """
        index, sequence = self.index, self._sequence
        self._sequence = sequence + 1
        cipher, nonce, associated_data = self._keys.crossing(index, sequence, False)
        cipher.seal_into(nonce, b"", associated_data + bound, frame[-TAG_BYTES:])
        PREFIX.pack_into(frame, 0, len(frame) - PREFIX_BYTES, 0, sequence)
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


class FrameOpener:
    """The receiving end's keys and counters; the processor opens.

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
        *,
        context: bytes = b"",
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        header = StreamHeader.parse(header_bytes)
        if not header.carries_messages:
            raise MalformedError("a link must be a stream of messages", field="flags")
        verify_header_key(base_key, header)
        self.header = header
        self._keys = RecordKeys(base_key, header, context=context, options=options)
        self._index = 0
        self._last_sequence = -1

    def open_message(self, frame: Buffer) -> bytes:
        """Open a short message, from a private copy; raises like ``open_into``."""
        private = memoryview(bytes(frame))
        out = bytearray(max(0, len(private) - FRAME_EXTRA_BYTES))
        self.open_into(private, out)
        return bytes(out)

    def open_into(
        self,
        frame: memoryview,
        out: bytearray | memoryview,
        bound: bytes = b"",
        *,
        final: bool = False,
    ) -> None:
        """Open the next frame into ``out``, which has the plaintext's length.

        ``frame`` is private, or mapped by the two ends alone (rule H3); ``out`` is
        nobody's to read before this returns, and zero if it raises.

        Raises:
            AuthenticationError, StaleError, MalformedError: if it is not the next one.
        """
        sequence = self._sequence_of(frame, len(frame), final=final)
        cipher, nonce, associated_data = self._keys.crossing(
            self._index, sequence, final
        )
        cipher.open_into(nonce, frame[PREFIX_BYTES:], associated_data + bound, out)
        self._accept(sequence, len(out))

    @property
    def keys(self) -> RecordKeys:
        """The stream's keys, for a device that opens what ``admit`` lets in."""
        return self._keys

    def admit(self, prefix: bytes, plaintext_bytes: int) -> tuple[int, int]:
        """Index and sequence of the next frame, which a device opens; they are used up.

        Args:
            prefix: Of the frame, in private memory.
            plaintext_bytes: What the frame's length leaves for the plaintext.

        Raises:
            StaleError, MalformedError: if it is not the next one.
        """
        sequence = self._sequence_of(prefix, plaintext_bytes + FRAME_EXTRA_BYTES)
        index = self._index
        self._accept(sequence, plaintext_bytes)
        return index, sequence

    def verify_bound(
        self, prefix: bytes, frame_bytes: int, bound: bytes, tag: bytes
    ) -> None:
        """Check what ``FrameSealer.bind`` made; all bytes are private.

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
        """Forget the keys."""
        self._keys.wipe()

    def _sequence_of(
        self, frame: Buffer, frame_bytes: int, *, final: bool = False
    ) -> int:
        if frame_bytes < FRAME_EXTRA_BYTES:
            raise wrong_length(frame_bytes, FRAME_EXTRA_BYTES)
        length, flags, sequence = PREFIX.unpack_from(frame)
        if length != frame_bytes - PREFIX_BYTES or flags != (FINAL_BIT if final else 0):
            raise MalformedError("sealed frame is malformed", code="bad-frame")
        if sequence <= self._last_sequence:
            raise StaleError("a record was replayed", code="replayed-record")
        return int(sequence)

    def _accept(self, sequence: int, plaintext_bytes: int) -> None:
        self._last_sequence = sequence
        self._index += _records_of(plaintext_bytes)


def _records_of(plaintext_bytes: int) -> int:
    """How many indexes a unit takes: one, unless it is longer than any record."""
    if plaintext_bytes <= MAX_RECORD_BYTES:
        return 1
    return -(-plaintext_bytes // MAX_RECORD_BYTES)


def wrong_length(found: int, expected: int) -> MalformedError:
    """A record that is not as long as the announcement says."""
    return MalformedError(
        f"a record of the transfer has {found:,} bytes",
        why=f"the announcement has {expected:,} bytes",
        code="bad-record-length",
    )
