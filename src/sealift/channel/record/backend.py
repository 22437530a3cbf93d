"""Who computes the AEAD of records: one protocol, several engines.

The CPU engine is the oracle: any other must give the same bytes (contract tests).
An engine is told nonces and associated data; it decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.ids import Buffer


class RecordCipher(Protocol):
    """One AEAD key, ready for use."""

    def seal_into(
        self, nonce: bytes, plaintext: Buffer, associated_data: bytes, out: Buffer
    ) -> int:
        """Write ciphertext and tag to ``out``; return the bytes written."""

    def open_into(
        self, nonce: bytes, ciphertext: Buffer, associated_data: bytes, out: Buffer
    ) -> int:
        """Write the plaintext to ``out``; return the bytes written.

        Raises:
            AuthenticationError: if the tag does not verify; ``out`` is zero then.
        """


class AeadBackend(Protocol):
    """An engine that makes ciphers."""

    name: str

    def suites(self) -> tuple[Suite, ...]:
        """The suites this engine can compute, fastest first."""

    def cipher(self, suite: Suite, key: SecretKey) -> RecordCipher:
        """A cipher for one key.

        Raises:
            UnavailableError: if the engine does not have this suite.
        """
