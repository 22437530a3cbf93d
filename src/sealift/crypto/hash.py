"""Hashes: SHA-256 where documents and transcripts are named, keyed BLAKE3 for content.

BLAKE3 is used where bytes are many (9.95 GB/s a core measured, SHA-256 2.06); a keyed
hash doubles as a MAC of public-length input.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, Literal

import blake3
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError
from sealift.ids import Buffer

HASH_BYTES = 32
HashName = Literal["sha1", "sha256", "sha384", "sha512"]
_ALGORITHMS: Final[dict[HashName, hashes.HashAlgorithm]] = {
    "sha1": hashes.SHA1(),  # noqa: S303 - old event logs and IMA lists still carry it
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
HASHES: Final[dict[str, HashName]] = {name: name for name in _ALGORITHMS}
STRONG_HASHES: Final = frozenset(HASHES) - {"sha1"}


def hash_algorithm(name: HashName) -> hashes.HashAlgorithm:
    """The algorithm of that name, for the other files of this room."""
    return _ALGORITHMS[name]


def digest_bytes(name: HashName) -> int:
    """Length of a digest."""
    return _ALGORITHMS[name].digest_size


def digest(name: HashName, *parts: Buffer) -> bytes:
    """The digest of the concatenation of ``parts``, for formats that others made."""
    hasher = hashes.Hash(hash_algorithm(name))
    for part in parts:
        hasher.update(part)
    return hasher.finalize()


def sha256(*parts: Buffer) -> bytes:
    """SHA-256 of the concatenation of ``parts``."""
    return sha256_of(parts)


def sha256_of(parts: Iterable[Buffer]) -> bytes:
    """SHA-256 of the concatenation of ``parts``, each taken when the last one is done."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def labelled(label: str, *parts: Buffer) -> bytes:
    """SHA-256 of a label and parts, each behind its 8-byte length.

    No two different lists of parts have the same input to the hash.
    """
    hasher = hashlib.sha256()
    for part in (label.encode(), *parts):
        hasher.update(memoryview(part).nbytes.to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


SCRYPT_R: Final = 8


def stretch(guessable: bytes, salt: bytes, *, log2_n: int, length: int) -> bytes:
    """Scrypt with r = 8 and p = 1 (RFC 7914): ``2 ** (log2_n + 10)`` bytes for each try."""
    return Scrypt(salt=salt, length=length, n=1 << log2_n, r=SCRYPT_R, p=1).derive(
        guessable
    )


def content_hash(*parts: Buffer) -> bytes:
    """BLAKE3 of the concatenation of ``parts``."""
    hasher = ContentHasher()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


class ContentHasher:
    """Incremental BLAKE3, 32-byte output."""

    __slots__ = ("_hasher",)

    def __init__(self) -> None:
        self._hasher = blake3.blake3()

    def update(self, part: Buffer) -> None:
        """Add bytes."""
        self._hasher.update(part)

    def digest(self) -> bytes:
        """The 32-byte hash of everything added so far."""
        return self._hasher.digest()


class KeyedHasher:
    """Incremental keyed BLAKE3, 32-byte output."""

    __slots__ = ("_hasher",)

    def __init__(self, key: SecretKey) -> None:
        self._hasher = blake3.blake3(key=key.reveal(TOKEN))

    def update(self, part: Buffer) -> None:
        """Add bytes."""
        self._hasher.update(part)

    def digest(self) -> bytes:
        """The 32-byte keyed hash of everything added so far."""
        return self._hasher.digest()


def keyed_hash(key: SecretKey, *parts: Buffer) -> bytes:
    """Keyed BLAKE3 of the concatenation of ``parts``; the key has 32 bytes."""
    hasher = KeyedHasher(key)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def hmac_sha256(key: SecretKey, message: Buffer) -> bytes:
    """HMAC-SHA-256 (RFC 2104), where another document asks for it."""
    return hmac.digest(key.reveal(TOKEN), message, "sha256")


def verify_equal(computed: bytes, received: Buffer) -> None:
    """Compare in constant time.

    Raises:
        AuthenticationError: if they differ.
    """
    if not hmac.compare_digest(computed, bytes(received)):
        raise AuthenticationError
