"""Fresh headers; keys, nonces and associated data of a stream's records; its root and life.

Guarantees: every stream has its own secret, because 32 fresh random bytes in the header
enter it (rule C8); a header opened with another key is refused before any record
(rule C5); no nonce of one key repeats as long as a stream has one writer whose
sequence only grows. In a forked child the keys of a stream are gone.
A stream's life is one call at a time, and none after the first error.
Not here: order and truncation (``sealer.py``, ``opener.py``).
Source: spec/record.md.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from sealift.channel.record.commitment import description_id
from sealift.channel.record.layout import (
    DEFAULT_RECORD_BYTES,
    DESCRIBED,
    HEADER_BYTES,
    MESSAGES,
    UNKNOWN,
    Trailer,
    check_record_bytes,
    count_records,
)
from sealift.channel.record.layout import StreamHeader as StreamHeader
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.hash import KeyedHasher, sha256, verify_equal
from sealift.crypto.keys import KEY_BYTES, Label, SecretKey, derive, derive_bytes
from sealift.errors import UsageError
from sealift.ids import Buffer

SEGMENT_BYTES: Final = 64 << 30  # plaintext under one AEAD key (rule C8)
_COMMITTED_BYTES: Final = HEADER_BYTES - 32  # all but the commitment itself
_COUNTS: Final = struct.Struct(">QQ")
_INDEX: Final = struct.Struct(">QB")


MakeCipher = Callable[[Suite, SecretKey], Aead]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What tests, vectors and other engines set; everybody else takes the defaults.

    Attributes:
        make_cipher: Who computes the AEAD.
        segment_bytes: Plaintext per AEAD key. It is part of the format: 64 GiB.
        random_bytes: Where stream id and salt come from. A salt used twice with one
            base key is a stream key used twice.
    """

    make_cipher: MakeCipher = Aead
    segment_bytes: int = SEGMENT_BYTES
    random_bytes: Callable[[int], bytes] = secrets.token_bytes


DEFAULT_OPTIONS: Final = StreamOptions()


def make_header(
    base_key: SecretKey,
    *,
    total_bytes: int | None,
    record_bytes: int = DEFAULT_RECORD_BYTES,
    suite: Suite = Suite.AES_256_GCM,
    key_epoch: int = 0,
    description: bytes | None = None,
    options: StreamOptions = DEFAULT_OPTIONS,
) -> StreamHeader:
    """A fresh header; ``total_bytes=None`` makes a stream of messages.

    Args:
        description: What the content is said to be, for ``verify_description``.
        (The others are the header's own fields.)
    """
    check_record_bytes(record_bytes)
    known = total_bytes is not None
    header = StreamHeader(
        suite=suite,
        flags=0 if known else MESSAGES,
        record_bytes=record_bytes,
        key_epoch=key_epoch,
        stream_id=options.random_bytes(16),
        total_bytes=UNKNOWN if total_bytes is None else total_bytes,
        record_count=(
            UNKNOWN if total_bytes is None else count_records(total_bytes, record_bytes)
        ),
        salt=options.random_bytes(32),
        key_commitment=bytes(32),
    )
    if description is not None:
        described = description_id(base_key, header.salt, description)
        flags = header.flags | DESCRIBED
        header = replace(header, flags=flags, stream_id=described)
    header.validate()
    return replace(header, key_commitment=_commitment(base_key, header))


def verify_header_key(base_key: SecretKey, header: StreamHeader) -> None:
    """Check that ``base_key`` is the one key this header was made with (rule C5).

    Raises:
        AuthenticationError: if it is not, or the header was changed.
    """
    verify_equal(_commitment(base_key, header), header.key_commitment)


def verify_description(
    base_key: SecretKey, header: StreamHeader, description: bytes
) -> None:
    """Check that a described stream was sealed as what ``description`` says.

    Args:
        base_key: The data key.
        header: A header that this key was verified for.
        description: The same bytes as when it was sealed.

    Raises:
        AuthenticationError: if it was sealed as something else.
    """
    expected = description_id(base_key, header.salt, description)
    verify_equal(expected, header.stream_id)


class RecordKeys:
    """Keys, nonces and associated data of one stream; keeps one segment key at a time.

    Args:
        base_key: The key that the header commits to; it is not kept.
        header: A header whose key commitment was made or verified.
        context: What both ends know besides the header (empty at rest).
        options: The engine and the segment size.
    """

    def __init__(
        self,
        base_key: SecretKey,
        header: StreamHeader,
        *,
        context: bytes = b"",
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        raw = header.encode()
        self._secret = derive(base_key, Label.STREAM, raw)
        self._make_cipher = options.make_cipher
        self._suite = header.suite
        self._record_bytes = header.record_bytes
        self._segment_bytes = options.segment_bytes
        self._prefix = sha256(raw)
        self._context_hash = sha256(context)
        self._segment: tuple[int, Aead, int] | None = None
        self._forked = False
        _LIVE.add(self)

    def cipher(self, index: int) -> Aead:
        """The cipher under the segment key of record ``index``."""
        return self._segment_of(index)[1]

    def nonce(self, index: int, sequence: int) -> bytes:
        """The nonce of record ``index``: segment mask XOR sequence."""
        mask = self._segment_of(index)[2]
        return (mask ^ sequence).to_bytes(NONCE_BYTES, "big")

    def associated_data(self, index: int, *, final: bool) -> bytes:
        """Header hash, index, final bit and context hash: 73 bytes."""
        return self._prefix + _INDEX.pack(index, final) + self._context_hash

    def crossing(
        self, index: int, sequence: int, final: bool
    ) -> tuple[Aead, bytes, bytes]:
        """Cipher, nonce and associated data of one record, looked up once."""
        _, cipher, mask = self._segment_of(index)
        nonce = (mask ^ sequence).to_bytes(NONCE_BYTES, "big")
        return (
            cipher,
            nonce,
            self._prefix + _INDEX.pack(index, final) + (self._context_hash),
        )

    def segment_number(self, index: int) -> int:
        """Which segment record ``index`` is in: records of one share a key."""
        return index * self._record_bytes // self._segment_bytes

    def segment_secret(self, number: int) -> tuple[SecretKey, int]:
        """Key and nonce mask of a segment, for an engine that keeps keys elsewhere."""
        self._check_alive()
        material = derive_bytes(
            self._secret,
            Label.SEGMENT,
            number.to_bytes(8, "big"),
            length=KEY_BYTES + NONCE_BYTES,
        )
        mask = int.from_bytes(material[KEY_BYTES:], "big")
        return SecretKey(material[:KEY_BYTES]), mask

    def trailer_key(self) -> SecretKey:
        """The key of the root over header and tags."""
        self._check_alive()
        return derive(self._secret, Label.TRAILER)

    def wipe(self) -> None:
        """Forget the keys; every later use raises."""
        self._segment = None
        self._secret.wipe()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "keys of a sealed stream cannot be copied or saved",
            why="both copies would use the same nonces",
            fix="Open a new stream",
        )

    def poison(self) -> None:
        """Forget the keys in a forked child, where the parent goes on using them."""
        self._forked = True
        self.wipe()

    def _segment_of(self, index: int) -> tuple[int, Aead, int]:
        number = self.segment_number(index)
        segment = self._segment  # another thread may wipe meanwhile
        if segment is None or segment[0] != number:
            segment = self._segment = self._derive_segment(number)
        return segment

    def _derive_segment(self, number: int) -> tuple[int, Aead, int]:
        key, mask = self.segment_secret(number)
        return number, self._make_cipher(self._suite, key), mask

    def _check_alive(self) -> None:
        if self._forked:
            raise forked_stream()


def forked_stream() -> UsageError:
    """What a child is told that goes on with its parent's stream."""
    return UsageError(
        "a sealed stream cannot be used in a forked process",
        why="two processes would use the same nonces",
        code="forked-stream",
    )


class TagRoot:
    """Takes tags in order of their index; makes or verifies the trailer."""

    def __init__(self, keys: RecordKeys, header: StreamHeader) -> None:
        self._hasher = KeyedHasher(keys.trailer_key())
        self._hasher.update(header.encode())
        self._record_count = 0
        self._total_bytes = 0

    def add(self, tag: Buffer, plaintext_bytes: int) -> None:
        """Add the tag of the next record."""
        self._hasher.update(bytes(tag))
        self._record_count += 1
        self._total_bytes += plaintext_bytes

    def trailer(self) -> Trailer:
        """The trailer of what was added; ends the hash."""
        self._hasher.update(_COUNTS.pack(self._record_count, self._total_bytes))
        root = self._hasher.digest()
        return Trailer(self._record_count, self._total_bytes, root)

    def verify(self, received: Trailer) -> None:
        """Compare with a received trailer.

        Raises:
            AuthenticationError: if it is not the trailer of the tags added.
        """
        verify_equal(self.trailer().encode(), received.encode())


class Life:
    """Entered around every call; an exception inside ends the stream for ever.

    A stream that another thread closed meanwhile refuses at the end of the call too: its
    memory may have been scrubbed under the call.
    A class rather than a generator because bulk streams enter it for every record.
    """

    __slots__ = ("_lock", "dead")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.dead = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.dead:
            self._lock.release()
            raise dead_stream()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        closed_meanwhile = self.dead
        if kind is not None:
            self.dead = True
        self._lock.release()
        if kind is None and closed_meanwhile:
            raise dead_stream()


def dead_stream() -> UsageError:
    """What is told of a stream that is over."""
    return UsageError(
        "this sealed stream is closed, or ended with an error", code="dead-stream"
    )


_LIVE: weakref.WeakSet[RecordKeys] = weakref.WeakSet()


def _poison_after_fork() -> None:
    for keys in list(_LIVE):
        keys.poison()


os.register_at_fork(after_in_child=_poison_after_fork)


def _commitment(base_key: SecretKey, header: StreamHeader) -> bytes:
    committed = header.encode()[:_COMMITTED_BYTES]
    return derive_bytes(base_key, Label.KEY_COMMITMENT, committed)
