"""The modes in which a holder seals its records again for one visit (its end).

It opens its own record at home and seals it under a key of this visit, as a stream of
its own (spec/record.md) with the digest of the lease as context; the frames around the
records are those of every mode. What comes out in the accelerator still has to match the
agreement's content commitment, so a holder gains nothing by having had plaintext here.
Source: spec/visit.md section Modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from sealift.channel.header import StreamHeader, sealed_bytes
from sealift.channel.opener import Place, RecordOpener
from sealift.channel.quarantine import Slot, scrub
from sealift.channel.record import RecordKeys, make_header
from sealift.crypto.keys import SecretKey
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Buffer
from sealift.travel.lease import Lease
from sealift.travel.messages import MessageSession, RatchetKey, receive_message
from sealift.travel.visitkeys import (
    Exporting,
    VisitKeys,
    keys_of_ratchet,
    keys_of_session,
)


class SealedSource(Protocol):
    """A sealed file without its key (``channel.rawfile.RawSealedFile``)."""

    @property
    def header_bytes(self) -> bytes:
        """The stream header."""
        ...

    def record(self, index: int) -> Buffer:
        """One sealed record: ciphertext and tag."""
        ...

    def record_length(self, index: int) -> int:
        """Bytes of one sealed record."""
        ...

    def record_into(self, index: int, out: memoryview) -> int:
        """Read one sealed record into memory; return its bytes."""
        ...

    def check_unchanged(self) -> None:
        """Raise unless the file is still the one that was opened."""
        ...


class ResealedSource:
    """A sealed file as one visit sees it: every record under the visit's key.

    Plaintext is in this object's own memory while a record is sealed, and overwritten
    then. Each record is sealed once, in order, so no nonce is used twice (rule H4).

    Args:
        source: The file as it was sealed at home.
        data_key: Opens it.
        keys: Of this visit, with a record key.
    """

    def __init__(
        self, source: SealedSource, data_key: SecretKey, keys: VisitKeys
    ) -> None:
        assert keys.record is not None, "this mode has a record key"
        self._source = source
        self._opener = RecordOpener(data_key, source.header_bytes)
        self._header = _like(self._opener.header, keys.record, keys)
        self._keys = RecordKeys(keys.record, self._header, context=keys.context)
        self._slot = Slot(self._header.record_bytes)
        self._sealed = bytearray(sealed_bytes(self._header.record_bytes))
        self._next = 0

    @property
    def header_bytes(self) -> bytes:
        """A header of this visit."""
        return self._header.encode()

    def record_length(self, index: int) -> int:
        """Bytes of one sealed record: as many as at home."""
        return sealed_bytes(self._header.plaintext_bytes(index))

    def record(self, index: int) -> bytes:
        """One record, sealed again."""
        out = bytearray(self.record_length(index))
        self.record_into(index, out)
        return bytes(out)

    def record_into(self, index: int, out: bytearray | memoryview) -> int:
        """Seal one record again into ``out``; return its bytes.

        It is sealed in private memory: ``out`` may have another reader (rule H3).

        Raises:
            UsageError: if it, or one after it, was sealed for this visit before.
        """
        if index < self._next:
            raise UsageError(f"record {index} has left already", code="stream-ended")
        self._next = index + 1
        length = self._seal_again(index)
        memoryview(out)[:length] = memoryview(self._sealed)[:length]
        return length

    def check_unchanged(self) -> None:
        """Raise unless the file is still the one that was opened."""
        self._source.check_unchanged()

    def close(self) -> None:
        """Forget keys and plaintext; the file stays open."""
        self._slot.scrub()
        scrub(self._sealed)
        self._keys.wipe()
        self._opener.close()

    def _seal_again(self, index: int) -> int:
        final = self._header.is_final(index)
        where = Place(index, index, final)
        try:
            plaintext = self._opener.open_in(
                self._slot, where, self._source.record(index)
            )
            return self._keys.cipher(index).seal_into(
                self._keys.nonce(index, index),
                plaintext,
                self._keys.associated_data(index, final=final),
                memoryview(self._sealed)[: self.record_length(index)],
            )
        finally:
            self._slot.scrub()


@dataclass(frozen=True, slots=True)
class Departure:
    """What a holder brings to one visit: records, and the key of their frames."""

    source: SealedSource
    frame_key: SecretKey


class DepartingSession(MessageSession, Exporting, Protocol):
    """The part of a session that a departure needs."""


@contextmanager
def departing(
    source: SealedSource,
    data_key: SecretKey | None,
    lease: Lease,
    session: DepartingSession,
    *,
    timeout_s: float,
) -> Iterator[Departure]:
    """A departure in the lease's mode; keys and plaintext are gone after the block.

    Raises:
        UnavailableError: code ``no-key``, where records are sealed again and there is
            no key to open them at home.
    """
    keys = _visit_keys(lease, session, timeout_s)
    try:
        if keys.record is None:
            yield Departure(source, keys.frame)
            return
        resealed = ResealedSource(source, _require(data_key, lease), keys)
        try:
            yield Departure(resealed, keys.frame)
        finally:
            resealed.close()
    finally:
        keys.wipe()


def _visit_keys(lease: Lease, session: DepartingSession, timeout_s: float) -> VisitKeys:
    if lease.crossing != "ratchet":
        return keys_of_session(session, lease)
    handed = receive_message(session, RatchetKey, timeout_s=timeout_s)
    key = SecretKey(handed.key)
    try:
        return keys_of_ratchet(key, lease)
    finally:
        key.wipe()


def _require(data_key: SecretKey | None, lease: Lease) -> SecretKey:
    if data_key is None:
        raise UnavailableError(
            f"mode {lease.crossing} needs the key of {lease.resource} at home",
            why="the holder seals its records again for each visit",
            fix="Give the holder its vault",
            code="no-key",
        )
    return data_key


def _like(header: StreamHeader, key: SecretKey, keys: VisitKeys) -> StreamHeader:
    return make_header(
        key,
        total_bytes=header.total_bytes,
        record_bytes=header.record_bytes,
        suite=header.suite,
        options=keys.options,
    )
