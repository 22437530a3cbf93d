"""The CPU engine: the cryptography library's one-shot AEADs, which release the GIL.

It is the oracle that other engines are compared with.
"""

from __future__ import annotations

from sealift.channel.record.backend import RecordCipher
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey


class CpuBackend:
    """Seals and opens on the processor, with whatever AES instructions it has."""

    name = "cpu"

    def suites(self) -> tuple[Suite, ...]:
        """Both suites; AES-256-GCM first."""
        return (Suite.AES_256_GCM, Suite.CHACHA20_POLY1305)

    def cipher(self, suite: Suite, key: SecretKey) -> RecordCipher:
        """A cipher for one key."""
        return Aead(suite, key)
