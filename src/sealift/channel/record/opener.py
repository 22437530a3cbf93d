"""Open any one record of a sealed stream: verified before release, from private bytes.

Guarantees: the caller's memory is written only after the tag verified; on failure the
quarantine slot is scrubbed and the caller's memory untouched. Bytes that somebody else
could write meanwhile are copied first (rule H3): everything but ``bytes`` objects, which
cannot change, and memory for which the caller says ``private=True`` (its own receive
buffer, or a private memfd mapped by the two ends alone).
Not here: order and completeness of a stream (``stream.py``).
One opener serves one thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealift.channel.record.header import StreamHeader
from sealift.channel.record.quarantine import Slot, scrub
from sealift.channel.record.record import (
    DEFAULT_OPTIONS,
    RecordKeys,
    StreamOptions,
    verify_header_key,
)
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, UsageError
from sealift.ids import Buffer


@dataclass(frozen=True, slots=True)
class Place:
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
            raise UsageError("messages are opened in order only")
        place = Place(index, index, self.header.is_final(index))
        return self.open_at(place, record, out)

    def open_at(
        self,
        place: Place,
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
                f"room for {len(target)} bytes, the record has {plaintext_bytes}"
            )
        slot = self.own_slot(plaintext_bytes)
        released = self.open_in(slot, place, record, private=private)
        target[:plaintext_bytes] = released
        return plaintext_bytes

    def open_in(
        self, slot: Slot, place: Place, record: Buffer, *, private: bool = False
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

    def check_length(self, place: Place, record_bytes: int) -> int:
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
