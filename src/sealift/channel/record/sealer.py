"""Seal a stream of records in order, under a fresh header.

Guarantees: a nonce is spent before the cipher runs and never used again; a record is
sealed once per index unless it is discarded first (rule H4); after one error, after the
final record and in a forked child the sealer refuses.
Not here: transports, files.
Source: spec/record.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sealift.channel.record.layout import (
    DEFAULT_RECORD_BYTES,
    PREFIX_BYTES,
    FramePrefix,
    sealed_bytes,
)
from sealift.channel.record.opener import scrub
from sealift.channel.record.record import (
    DEFAULT_OPTIONS,
    Life,
    RecordKeys,
    StreamOptions,
    TagRoot,
    make_header,
)
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import UsageError
from sealift.ids import Buffer


class StreamSealer:
    """Seals plaintext into records under a fresh header.

    Args:
        base_key: Key that the stream's own key is derived from; not kept.
        total_bytes: Plaintext bytes, or None for messages of any size up to
            ``record_bytes``, of which the last is sealed with ``final=True``.
        record_bytes: Plaintext bytes per record; a multiple of 32, 64 B to 4 MiB.
        context: What both ends know besides the header (empty at rest).
        description: What the content is said to be, for ``verify_description``.
        trailer: Whether the stream ends with one; a session's do not.
    """

    def __init__(
        self,
        base_key: SecretKey,
        *,
        total_bytes: int | None,
        record_bytes: int = DEFAULT_RECORD_BYTES,
        suite: Suite = Suite.AES_256_GCM,
        key_epoch: int = 0,
        context: bytes = b"",
        description: bytes | None = None,
        trailer: bool = True,
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.header = make_header(
            base_key,
            total_bytes=total_bytes,
            record_bytes=record_bytes,
            suite=suite,
            key_epoch=key_epoch,
            description=description,
            options=options,
        )
        self.header_bytes = self.header.encode()
        self._keys = RecordKeys(base_key, self.header, context=context, options=options)
        self._root = TagRoot(self._keys, self.header) if trailer else None
        self._life = Life()
        self._index = 0
        self._sequence = 0
        self._messages = self.header.carries_messages
        self._pending: tuple[bytes, int] | None = None
        self._ended = False

    def seal(self, plaintext: Buffer, final: bool | None = None) -> bytes:
        """Seal the next record of a stream at rest: ciphertext and tag.

        ``final`` follows from the header; where given it must agree.

        Raises:
            UsageError: if the plaintext has the wrong length, or the stream ended.
        """
        out = bytearray(sealed_bytes(memoryview(plaintext).nbytes))
        self.seal_into(plaintext, out, final=final)
        return bytes(out)

    def seal_into(
        self,
        plaintext: Buffer,
        out: bytearray | memoryview,
        *,
        final: bool | None = None,
    ) -> int:
        """Seal the next record into ``out``; return the bytes written.

        ``out`` is private memory or a private memfd: an AEAD reads its own ciphertext
        again for the tag, so a second writer could have its bytes signed (rule H3).
        """
        if self._messages:
            raise UsageError("messages must be sealed as frames: use seal_frame")
        with self._life:
            return self._seal(plaintext, memoryview(out).cast("B"), final)[1]

    def seal_frame(self, plaintext: Buffer, *, final: bool | None = None) -> bytes:
        """Seal the next record as a frame for a transport: prefix, ciphertext, tag."""
        out = bytearray(PREFIX_BYTES + sealed_bytes(memoryview(plaintext).nbytes))
        self.seal_frame_into(plaintext, out, final=final)
        return bytes(out)

    def seal_frame_into(
        self,
        plaintext: Buffer,
        out: bytearray | memoryview,
        *,
        final: bool | None = None,
    ) -> int:
        """Seal the next record as a frame into ``out``; return the bytes written."""
        view = memoryview(out).cast("B")
        with self._life:
            sequence, written = self._seal(plaintext, view[PREFIX_BYTES:], final)
            prefix = FramePrefix(written, sequence, self._ended)
            view[:PREFIX_BYTES] = prefix.encode()
            return PREFIX_BYTES + written

    def discard(self, sealed: bytearray | memoryview) -> None:
        """Take back the record sealed last, which never left private memory (rule H4).

        ``sealed`` is overwritten; its index is sealed again under the next sequence.
        Only for streams in flight: at rest the sequence is the index.

        Raises:
            UsageError: if ``sealed`` does not end with the tag of the last record.
        """
        with self._life:
            if self._pending is None:
                raise UsageError("there is no sealed record to discard")
            tag = self._pending[0]
            view = memoryview(sealed).cast("B")
            if bytes(view[-TAG_BYTES:]) != tag:
                raise UsageError("only the last sealed record can be discarded")
            scrub(view)
            self._pending = None
            self._index -= 1
            self._ended = False

    def trailer(self) -> bytes:
        """The 56 bytes after the final record; the sealer is closed then.

        Raises:
            UsageError: before the final record was sealed.
        """
        with self._life:
            if not self._ended:
                raise UsageError("the final record was not sealed yet")
            self._settle()
            trailer = self._rooted().trailer().encode()
        self._life.dead = True
        return trailer

    def close(self) -> None:
        """Forget the keys."""
        self._life.dead = True
        self._keys.wipe()

    def _seal(
        self, plaintext: Buffer, out: memoryview, final: bool | None
    ) -> tuple[int, int]:
        plaintext_bytes = memoryview(plaintext).nbytes
        last = self._check_next(plaintext_bytes, final)
        room = out[: sealed_bytes(plaintext_bytes)]
        if len(room) != sealed_bytes(plaintext_bytes):
            raise UsageError(
                f"the buffer cannot hold {sealed_bytes(plaintext_bytes):,} sealed bytes"
            )
        index, sequence = self._index, self._sequence
        cipher = self._keys.cipher(index)
        # The sequence is spent before the cipher runs: whatever happens, it is not
        # used again.
        self._sequence += 1
        written = cipher.seal_into(
            self._keys.nonce(index, sequence),
            plaintext,
            self._keys.associated_data(index, final=last),
            room,
        )
        self._settle()
        self._pending = (bytes(room[-TAG_BYTES:]), plaintext_bytes)
        self._index += 1
        self._ended = last
        return sequence, written

    def _check_next(self, plaintext_bytes: int, final: bool | None) -> bool:
        if self._ended:
            raise UsageError("the final record was sealed already", code="stream-ended")
        expected = self.header.plaintext_bytes(self._index)
        if self._messages:
            if plaintext_bytes > expected:
                raise UsageError(
                    f"a message has {plaintext_bytes:,} bytes, more than {expected:,}",
                    code="message-too-long",
                )
            return bool(final)
        last = self.header.is_final(self._index)
        if plaintext_bytes != expected or final not in (None, last):
            raise UsageError(
                f"record {self._index} must have {expected} bytes, final={last}"
            )
        return last

    def _settle(self) -> None:
        """The last record can no longer be discarded: its tag enters the root."""
        if self._pending is not None:
            if self._root is not None:
                self._root.add(*self._pending)
            self._pending = None

    def _rooted(self) -> TagRoot:
        if self._root is None:
            raise UsageError("this stream ends without a trailer")
        return self._root


def regroup(chunks: Iterable[Buffer], record_bytes: int) -> Iterator[memoryview]:
    """Cut pieces of any size into pieces of ``record_bytes``; the last may be shorter.

    A yielded view is valid until the next one is asked for.
    """
    room = memoryview(bytearray(record_bytes))
    filled = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while len(view) > 0:
            if filled == 0 and len(view) >= record_bytes:
                yield view[:record_bytes]
                view = view[record_bytes:]
                continue
            taken = min(record_bytes - filled, len(view))
            room[filled : filled + taken] = view[:taken]
            filled, view = filled + taken, view[taken:]
            if filled == record_bytes:
                yield room
                filled = 0
    if filled:
        yield room[:filled]
    scrub(room)
