"""Authenticated encryption (RFC 5116) with associated data, two suites.

The library below leaves plaintext in the output buffer when a tag fails (measured,
4,095 of 4,096 bytes), so ``open_into`` overwrites the buffer before it raises.
Fresh nonces are the caller's duty (``channel/record/record.py`` makes them); other lengths
than 12 bytes, which AES-GCM would hash, are refused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError, UsageError
from sealift.ids import Buffer

TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12


class Suite(IntEnum):
    """The AEAD of a stream; the number is what headers carry."""

    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2


_CIPHER: Final[dict[Suite, type[AESGCM] | type[ChaCha20Poly1305]]] = {
    Suite.AES_256_GCM: AESGCM,
    Suite.CHACHA20_POLY1305: ChaCha20Poly1305,
}


class Aead:
    """One key of one suite. Both suites take 32-byte keys."""

    __slots__ = ("_cipher", "suite")

    def __init__(self, suite: Suite, key: SecretKey) -> None:
        if len(key) != 32:
            raise UsageError("an AEAD key must have 32 bytes")
        self.suite = suite
        self._cipher = _CIPHER[suite](key.reveal(TOKEN))

    def seal_into(
        self, nonce: bytes, plaintext: Buffer, associated_data: bytes, out: Buffer
    ) -> int:
        """Seal into ``out`` (plaintext length + 16); return the bytes written."""
        _require_nonce(nonce)
        return self._cipher.encrypt_into(nonce, plaintext, associated_data, out)

    def open_into(
        self, nonce: bytes, ciphertext: Buffer, associated_data: bytes, out: Buffer
    ) -> int:
        """Open into ``out`` (ciphertext length - 16); return the bytes written.

        Raises:
            AuthenticationError: if the tag does not verify; ``out`` is zero then.
        """
        _require_nonce(nonce)
        try:
            return self._cipher.decrypt_into(nonce, ciphertext, associated_data, out)
        except InvalidTag:
            _zero(out)
            raise AuthenticationError from None

    def seal(self, nonce: bytes, plaintext: Buffer, associated_data: bytes) -> bytes:
        """Seal into fresh memory: ciphertext followed by the tag."""
        _require_nonce(nonce)
        return self._cipher.encrypt(nonce, plaintext, associated_data)

    def open(self, nonce: bytes, ciphertext: Buffer, associated_data: bytes) -> bytes:
        """Open into fresh memory.

        Raises:
            AuthenticationError: if the tag does not verify.
        """
        _require_nonce(nonce)
        try:
            return self._cipher.decrypt(nonce, ciphertext, associated_data)
        except InvalidTag:
            raise AuthenticationError from None


def _require_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise UsageError(f"a nonce must have {NONCE_BYTES} bytes")


def _zero(out: Buffer) -> None:
    view = memoryview(out).cast("B")
    view[:] = bytes(len(view))
