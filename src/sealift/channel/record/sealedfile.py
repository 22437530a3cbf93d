"""Sealed files: written whole or not at all, read at random, memory constant in size.

Layout: header, records, trailer, nothing else; record ``i`` starts at
``120 + i * (record_bytes + 16)``. An interrupted file is started again under a fresh
header, never continued (rule C8). Bytes are read with ``pread`` into private memory, so
that a writer of the file cannot change them while they are opened (rule H3).
Leaves of the content commitment (32 bytes per record) are made while sealing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sealift.channel.record.commitment import (
    CommitmentBuilder,
    ContentCommitment,
    VerifiedLeaves,
)
from sealift.channel.record.layout import (
    DEFAULT_RECORD_BYTES,
    StreamHeader,
    Trailer,
    sealed_bytes,
)
from sealift.channel.record.opener import RecordOpener, RecordPosition, Slot
from sealift.channel.record.outputfile import OutputFile, open_output
from sealift.channel.record.rawfile import ByteSource
from sealift.channel.record.rawfile import RawSealedFile as RawSealedFile
from sealift.channel.record.record import RecordKeys, TagRoot
from sealift.channel.record.sealer import StreamSealer, regroup
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, UsageError
from sealift.ids import Buffer


@dataclass(frozen=True, slots=True)
class SealedFileCard:
    """What its writer knows of a sealed file; nothing in it is secret."""

    path: Path
    header: StreamHeader
    content: ContentCommitment
    leaves: tuple[bytes, ...]

    @property
    def total_bytes(self) -> int:
        """Plaintext bytes."""
        return self.header.total_bytes

    @property
    def record_bytes(self) -> int:
        """Plaintext bytes per record."""
        return self.header.record_bytes


def write_sealed_file(
    path: str | Path,
    chunks: Iterable[Buffer],
    *,
    key: SecretKey,
    total_bytes: int,
    record_bytes: int = DEFAULT_RECORD_BYTES,
    suite: Suite = Suite.AES_256_GCM,
    key_epoch: int = 0,
    description: bytes | None = None,
    replace: bool = False,
    folder: int | None = None,
) -> SealedFileCard:
    """Seal a source of known length into a file.

    Args:
        path: The file; it appears when everything is written and synced.
        chunks: The plaintext in pieces of any size.
        key: The data key.
        total_bytes: Plaintext bytes; ``chunks`` must have exactly as many.
        record_bytes: Plaintext bytes per record.
        suite: The AEAD.
        key_epoch: Number of the data key, for the header.
        description: What the content is said to be; ``verify_description`` compares.
        replace: Whether an existing file is replaced.
        folder: A descriptor of its folder, where that was opened before.

    Raises:
        MalformedError: if the source is shorter or longer than ``total_bytes``.
        UnavailableError: if the disk is full; nothing is left behind.
        UsageError: if the file exists and ``replace`` is False.
    """
    target = Path(path)
    sealer = StreamSealer(
        key,
        total_bytes=total_bytes,
        record_bytes=record_bytes,
        suite=suite,
        key_epoch=key_epoch,
        description=description,
    )
    content = CommitmentBuilder(key, total_bytes=total_bytes, record_bytes=record_bytes)
    try:
        with open_output(target, replace=replace, folder=folder) as output:
            _write_stream(output, chunks, sealer, content)
    finally:
        sealer.close()
    return SealedFileCard(target, sealer.header, content.commitment(), content.leaves)


def _write_stream(
    output: OutputFile,
    chunks: Iterable[Buffer],
    sealer: StreamSealer,
    content: CommitmentBuilder,
) -> None:
    header = sealer.header
    sealed = memoryview(bytearray(sealed_bytes(header.record_bytes)))
    output.write(sealer.header_bytes)
    for plaintext in _exact_records(chunks, header):
        content.add(plaintext)
        output.write(sealed[: sealer.seal_into(plaintext, sealed)])
    output.write(sealer.trailer())


def _exact_records(
    chunks: Iterable[Buffer], header: StreamHeader
) -> Iterator[memoryview]:
    """The records of the source; raises if there are more or fewer bytes than said."""
    seen_bytes = 0
    for record in regroup(chunks, header.record_bytes):
        seen_bytes += len(record)
        if seen_bytes > header.total_bytes:
            raise _wrong_length(header.total_bytes, "more")
        if len(record) < header.record_bytes and seen_bytes < header.total_bytes:
            break
        yield record
    if seen_bytes < header.total_bytes:
        raise _wrong_length(header.total_bytes, f"{seen_bytes}")
    if header.total_bytes == 0:
        yield memoryview(b"")  # an empty stream has one record, the final one


class SealedFileReader:
    """Reads a sealed file with its key, at random; for one thread at a time.

    Args:
        source: A path, or a source of bytes, which this object owns from now on.
        key: The data key.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file.
        AuthenticationError: if it was sealed with another key.
    """

    def __init__(self, source: str | Path | ByteSource, key: SecretKey) -> None:
        self._raw = RawSealedFile(source)
        try:
            self._opener = RecordOpener(key, self._raw.header_bytes)
        except BaseException:
            self._raw.close()
            raise
        self.header = self._raw.header
        self._sealed = bytearray(sealed_bytes(self._widest_bytes))

    @property
    def record_count(self) -> int:
        """Records in the file."""
        return self.header.record_count

    @property
    def total_bytes(self) -> int:
        """Plaintext bytes."""
        return self.header.total_bytes

    def open_record(self, index: int) -> bytes:
        """The plaintext of record ``index``.

        Raises:
            AuthenticationError: if the record was changed.
        """
        return bytes(self._released(index))

    def open_record_into(self, index: int, out: bytearray | memoryview) -> int:
        """Open record ``index`` into ``out``; return the plaintext bytes."""
        released = self._released(index)
        memoryview(out).cast("B")[: len(released)] = released
        return len(released)

    def open_record_in(self, index: int, slot: Slot) -> memoryview:
        """Open record ``index`` into a quarantine slot; its verified bytes, read-only.

        Raises:
            AuthenticationError: if the record was changed; the slot is scrubbed.
        """
        length = self._raw.record_into(index, self._sealed)
        place = RecordPosition(index, index, self.header.is_final(index))
        sealed = memoryview(self._sealed)[:length]
        return self._opener.open_in(slot, place, sealed, private=True)

    @property
    def keys(self) -> RecordKeys:
        """The stream's keys, for an engine that opens records elsewhere."""
        return self._opener.keys

    def sealed_record_into(self, index: int, out: bytearray | memoryview) -> int:
        """Read record ``index`` as it is stored into private memory; its bytes."""
        return self._raw.record_into(index, out)

    def check_unchanged(self) -> None:
        """The file is the one that was opened; see ``RawSealedFile``."""
        self._raw.check_unchanged()

    def read(self, offset: int, length: int) -> bytes:
        """Plaintext ``[offset, offset + length)``.

        Raises:
            UsageError: if that is not inside the file.
            AuthenticationError: if a record in that range was changed.
        """
        if offset < 0 or length < 0 or offset + length > self.total_bytes:
            raise UsageError(
                f"bytes {offset} to {offset + length} are not in a file of {self.total_bytes}"
            )
        out = bytearray(length)
        filled = 0
        while filled < length:
            index, start = divmod(offset + filled, self.header.record_bytes)
            part = self._released(index)[start : start + length - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
        return bytes(out)

    def verify(self, leaves: VerifiedLeaves | None = None) -> None:
        """Open every record and check the trailer, and the content if leaves are given.

        Raises:
            AuthenticationError: if anything was changed by somebody without the key.
            IntegrityError: if the content is not what was committed to.
        """
        tags = TagRoot(self._opener.keys, self.header)
        for index in range(self.record_count):
            released = self._released(index)
            tags.add(self._opener.last_tag, len(released))
            if leaves is not None:
                leaves.verify(index, released)
        tags.verify(Trailer.parse(self._raw.trailer))

    def close(self) -> None:
        """Close the file, scrub the reader's memory, forget the keys."""
        self._raw.close()
        self._opener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _widest_bytes(self) -> int:
        return min(self.header.record_bytes, self.header.total_bytes)

    def _released(self, index: int) -> memoryview:
        return self.open_record_in(index, self._opener.own_slot(self._widest_bytes))


def _wrong_length(expected: int, actual: str) -> MalformedError:
    return MalformedError(
        "the source does not have its stated length",
        why=f"expected {expected:,} bytes, got {actual}",
        code="source-length",
    )
