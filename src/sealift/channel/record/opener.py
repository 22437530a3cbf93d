"""Open records of a sealed stream, any one or in order: verified before release.

Guarantees: plaintext lies in a quarantine slot until its tag verified, since the AEAD
library writes it before it knows, and leaves it there if the tag does not fit (measured:
4,095 of 4,096 bytes). On failure the slot is scrubbed and the caller's memory untouched.
Bytes that somebody else could write meanwhile are copied first (rule H3): everything but
``bytes`` objects, which cannot change, and memory for which the caller says
``private=True`` (its own receive buffer, or a memfd mapped by the two ends alone).
In order: any change, drop, repetition, reordering or splice of records is an error at the
record where it happens, and what was opened before is an exact prefix of what was sealed;
the end is known by the final bit, truncation by its absence. The nonce sequence is explicit
in flight, grows and may have gaps; the record index is dense, and the opener demands exactly
the next one (rule H4). After one error an opener is dead for ever.
One opener serves one thread at a time. ``__del__`` of Python memory overwrites nothing:
whoever owns a slot scrubs it when the stream ends.
Not here: transports, files.
Source: spec/record.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.channel.record.layout import (
    PREFIX_BYTES,
    FramePrefix,
    StreamHeader,
    Trailer,
)
from sealift.channel.record.record import (
    DEFAULT_OPTIONS,
    Life,
    RecordKeys,
    StreamOptions,
    TagRoot,
    verify_header_key,
)
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, StaleError, UsageError
from sealift.ids import Buffer

_ZEROES: Final = bytes(64 << 10)


def scrub(memory: bytearray | memoryview) -> None:
    """Overwrite ``memory`` with zeroes, without allocating as much again."""
    view = memoryview(memory).cast("B")
    for start in range(0, len(view), len(_ZEROES)):
        part = view[start : start + len(_ZEROES)]
        part[:] = _ZEROES[: len(part)]


class Slot:
    """Room for the plaintext of one record.

    Args:
        memory: Memory that belongs to this process alone, or its size in bytes.
    """

    __slots__ = ("_memory", "_verified_bytes")

    def __init__(self, memory: bytearray | memoryview | int) -> None:
        owned = bytearray(memory) if isinstance(memory, int) else memory
        self._memory = memoryview(owned).cast("B")
        self._verified_bytes = -1

    @property
    def capacity_bytes(self) -> int:
        """The longest plaintext that fits."""
        return len(self._memory)

    def room(self, plaintext_bytes: int) -> memoryview:
        """Where the opener writes; what was verified before is no longer released."""
        if plaintext_bytes > len(self._memory):
            raise UsageError(
                f"a slot of {len(self._memory)} bytes is too small for {plaintext_bytes}"
            )
        self._verified_bytes = -1
        return self._memory[:plaintext_bytes]

    def mark_verified(self, plaintext_bytes: int) -> None:
        """The tag of the bytes in the slot fits."""
        self._verified_bytes = plaintext_bytes

    def release(self) -> memoryview:
        """The verified plaintext, read-only, valid until the slot is used again.

        Raises:
            UsageError: if nothing in the slot was verified.
        """
        if self._verified_bytes < 0:
            raise UsageError(
                "nothing in this slot was verified", code="unverified-slot"
            )
        return self._memory[: self._verified_bytes].toreadonly()

    def scrub(self) -> None:
        """Overwrite all of it."""
        self._verified_bytes = -1
        scrub(self._memory)


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Where a record stands: its dense index, and what its nonce is made of."""

    index: int
    sequence: int
    final: bool


class RecordOpener:
    """Random access to the records of one stream.

    Args:
        base_key: The key that the header must commit to.
        header_bytes: The 120 bytes of the header, as received.
        context: What both ends know besides the header (empty at rest).

    Raises:
        MalformedError: if the header does not parse.
        AuthenticationError: if the header belongs to another key.
    """

    def __init__(
        self,
        base_key: SecretKey,
        header_bytes: Buffer,
        *,
        context: bytes = b"",
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.header = StreamHeader.parse(header_bytes)
        verify_header_key(base_key, self.header)
        self.keys = RecordKeys(base_key, self.header, context=context, options=options)
        self.last_tag = b""
        self._messages = self.header.carries_messages
        self._slot = Slot(0)
        self._sealed_copy = bytearray()

    def open_record(
        self, index: int, record: Buffer, out: bytearray | memoryview
    ) -> int:
        """Open record ``index`` of a stream of known length; return plaintext bytes.

        Raises:
            AuthenticationError: if the tag does not verify; ``out`` is untouched.
            MalformedError: if the record has not the length that the header says.
        """
        if self.header.carries_messages:
            raise UsageError("messages can be opened only in order")
        place = RecordPosition(index, index, self.header.is_final(index))
        return self.open_at(place, record, out)

    def open_at(
        self,
        place: RecordPosition,
        record: Buffer,
        out: bytearray | memoryview,
        *,
        private: bool = False,
    ) -> int:
        """Open the record that stands at ``place``, then copy its plaintext to ``out``."""
        plaintext_bytes = self.check_length(place, len(record))
        target = memoryview(out).cast("B")
        if len(target) < plaintext_bytes:
            raise UsageError(
                f"it has {len(target):,} bytes, and the record {plaintext_bytes:,}"
            )
        slot = self.own_slot(plaintext_bytes)
        released = self.open_in(slot, place, record, private=private)
        target[:plaintext_bytes] = released
        return plaintext_bytes

    def open_in(
        self,
        slot: Slot,
        place: RecordPosition,
        record: Buffer,
        *,
        private: bool = False,
    ) -> memoryview:
        """Open into a quarantine slot and hand it over: a read-only view of it."""
        plaintext_bytes = self.check_length(place, len(record))
        sealed = record if private else self._copied(record)
        room = slot.room(plaintext_bytes)
        cipher = self.keys.cipher(place.index)
        nonce = self.keys.nonce(place.index, place.sequence)
        associated_data = self.keys.associated_data(place.index, final=place.final)
        try:
            cipher.open_into(nonce, sealed, associated_data, room)
        except BaseException:
            slot.scrub()
            raise
        # From the bytes that were opened, not from those that may have changed since.
        self.last_tag = bytes(memoryview(sealed)[-TAG_BYTES:])
        slot.mark_verified(plaintext_bytes)
        return slot.release()

    def check_length(self, place: RecordPosition, record_bytes: int) -> int:
        """The plaintext bytes of a record of ``record_bytes`` sealed bytes.

        Raises:
            MalformedError: if the record at ``place`` cannot have that length.
        """
        plaintext_bytes = record_bytes - TAG_BYTES
        expected = self.header.plaintext_bytes(place.index)
        shorter = self._messages and 0 <= plaintext_bytes <= expected
        if plaintext_bytes != expected and not shorter:
            raise MalformedError(
                f"record {place.index} has {record_bytes} bytes",
                why=f"expected {expected + TAG_BYTES}",
                code="bad-record-length",
            )
        return plaintext_bytes

    def own_slot(self, plaintext_bytes: int) -> Slot:
        """This opener's own slot, grown to what is needed."""
        if self._slot.capacity_bytes < plaintext_bytes:
            self._slot.scrub()
            self._slot = Slot(plaintext_bytes)
        return self._slot

    def close(self) -> None:
        """Scrub the opener's own memory and forget the keys."""
        self._slot.scrub()
        scrub(self._sealed_copy)
        self.keys.wipe()

    def _copied(self, record: Buffer) -> Buffer:
        if isinstance(record, bytes):
            return record
        view = memoryview(record).cast("B")
        if len(self._sealed_copy) < len(view):
            self._sealed_copy = bytearray(len(view))
        private = memoryview(self._sealed_copy)[: len(view)]
        private[:] = view
        return private


class StreamOpener:
    """Opens the records of one stream in order.

    Args:
        base_key: The key that the header must commit to; not kept.
        header_bytes: The 120 bytes of the header, as received.
        context: What the sealer was given.
        trailer: Whether the stream ends with one; a session's do not.

    Raises:
        MalformedError: if the header does not parse.
        AuthenticationError: if the header belongs to another key.
    """

    def __init__(
        self,
        base_key: SecretKey,
        header_bytes: Buffer,
        *,
        context: bytes = b"",
        trailer: bool = True,
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._records = RecordOpener(
            base_key, header_bytes, context=context, options=options
        )
        self.header = self._records.header
        self._messages = self.header.carries_messages
        self._root = TagRoot(self._records.keys, self.header) if trailer else None
        self._life = Life()
        self._index = 0
        self._last_sequence = -1
        self._finished = False

    @property
    def finished(self) -> bool:
        """Whether the final record was opened."""
        return self._finished

    def open(self, record: Buffer, seq: int | None = None) -> bytes:
        """Open the next record of a stream of known length.

        Raises:
            AuthenticationError: if it is not exactly the next record.
            StaleError: if ``seq`` did not grow.
            MalformedError: if its length is wrong, or the stream ended before.
        """
        out = bytearray(max(0, len(record) - TAG_BYTES))
        self.open_into(record, out, seq=seq)
        return bytes(out)

    def open_into(
        self, record: Buffer, out: bytearray | memoryview, *, seq: int | None = None
    ) -> int:
        """Open the next record into ``out``; return the plaintext bytes."""
        if self._messages:
            raise UsageError("messages must be opened as frames: use open_frame")
        with self._life:
            sequence = self._last_sequence + 1 if seq is None else seq
            final = self.header.is_final(self._index)
            place = self._next_place(sequence, final=final)
            written = self._records.open_at(place, record, out)
            self._accept(place, written)
            return written

    def open_frame(self, frame: Buffer, *, private: bool = False) -> bytes:
        """Open the next frame: a prefix and a record, as ``seal_frame`` made it.

        Raises:
            AuthenticationError: if it is not exactly the next record.
            StaleError: if it was opened before.
            MalformedError: if its lengths are wrong, or the stream ended before.
        """
        with self._life:
            longest = max(0, len(frame) - PREFIX_BYTES - TAG_BYTES)
            slot = self._records.own_slot(longest)
            return bytes(self._open_frame(slot, frame, private=private))

    def finish(self, trailer: Buffer) -> None:
        """Verify the trailer; the stream is whole.

        Raises:
            MalformedError: if records are missing, or the trailer does not parse.
            AuthenticationError: if it is not the trailer of these records.
        """
        with self._life:
            self._check_finished()
            if self._root is None:
                raise UsageError("this stream ends without a trailer")
            self._root.verify(Trailer.parse(trailer))
        self.close()

    def verify_finished(self) -> None:
        """Check that the final record was opened (streams without a trailer).

        Raises:
            MalformedError: if the stream was cut.
        """
        with self._life:
            self._check_finished()

    def close(self) -> None:
        """Scrub the opener's memory and forget the keys."""
        self._life.dead = True
        self._records.close()

    def _open_frame(self, slot: Slot, frame: Buffer, *, private: bool) -> memoryview:
        view = memoryview(frame)
        prefix = FramePrefix.parse(bytes(view[:PREFIX_BYTES]), len(view))
        place = self._next_place(prefix.sequence, final=prefix.final)
        # bytes cannot change; a view of them does not show that to the opener.
        private = private or isinstance(frame, bytes)
        record = view[PREFIX_BYTES:]
        released = self._records.open_in(slot, place, record, private=private)
        self._accept(place, len(released))
        return released

    def _check_finished(self) -> None:
        if not self._finished:
            raise MalformedError(
                "the sealed stream was truncated",
                why=f"it ended after {self._index} records, before the final one",
                code="stream-cut",
            )

    def _next_place(self, sequence: int, *, final: bool) -> RecordPosition:
        if self._finished:
            raise MalformedError(
                "a record came after the final one", code="record-after-end"
            )
        if sequence <= self._last_sequence:
            raise StaleError("a record was replayed", code="replayed-record")
        if not self._messages and final != self.header.is_final(self._index):
            raise MalformedError("the final bit is at the wrong record")
        return RecordPosition(self._index, sequence, final)

    def _accept(self, place: RecordPosition, plaintext_bytes: int) -> None:
        if self._root is not None:
            self._root.add(self._records.last_tag, plaintext_bytes)
        self._last_sequence = place.sequence
        self._index += 1
        self._finished = place.final
