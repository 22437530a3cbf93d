"""The vendor's forward ratchet, for rehearsal only (rule M8, weakness W1).

The driver of the GPUs of today rotates its transfer keys by a public one-way function:
whoever held one key can compute every later one, so "the key is rotated before each
holder" does not keep a past holder out. Mode ``ratchet`` does the same with our frames,
so that a test can show it; the default is a key from a fresh session for each visit.
Source: ``confComputeKeyStoreUpdateKey`` of the open GPU kernel modules:
key' = HKDF-Expand(SHA-256(key), label).
"""

from __future__ import annotations

import threading
from typing import Final

from sealift.crypto.kdf import Label, expand
from sealift.crypto.keys import SecretKey

REHEARSAL: Final = "ratchet, a rehearsal: past holders can read on"


def advance(key: SecretKey) -> SecretKey:
    """The next key; anybody who has this one can do it."""
    return expand(key, Label.RATCHET)


class Ratchet:
    """One chain of keys in one accelerator; each key serves one visit."""

    def __init__(self) -> None:
        self._key = SecretKey.generate()
        self._lock = threading.Lock()

    def take(self) -> SecretKey:
        """The current key, for one visit; the chain has moved on."""
        with self._lock:
            current = self._key
            self._key = advance(current)
        return current
