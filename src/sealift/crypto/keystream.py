"""Bytes that nobody without the key can tell from random ones: AES-256 over zeros.

GCM's ciphertext of zeros, its tag dropped: the mode of the kept library that is quickest
here, and releases the GIL. A key of this file is never one of ``aead.py`` (rule C3).
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import UsageError
from sealift.ids import Buffer

MAX_BYTES: Final = 1 << 18  # of a block; more would not stay in a core's cache
_ZEROS: Final = memoryview(bytes(MAX_BYTES))


class Keystream:
    """Blocks of keystream under one key, each by its number and attempt."""

    __slots__ = ("_cipher",)

    def __init__(self, key: SecretKey) -> None:
        if len(key) != 32:
            raise UsageError("a keystream's key must have 32 bytes")
        self._cipher = AESGCM(key.reveal(TOKEN))

    def fill(self, block: int, out: Buffer, attempt: int = 0) -> None:
        """Overwrite ``out``; its last 16 bytes (the tag) are no keystream.

        ``out`` has at most ``MAX_BYTES`` + 16 bytes; a shorter one gets a prefix.
        """
        zeros = _ZEROS[: memoryview(out).nbytes - TAG_BYTES]
        nonce = attempt.to_bytes(4, "big") + block.to_bytes(8, "big")
        self._cipher.encrypt_into(nonce, zeros, None, out)
