"""An engine that reads ciphertext twice, as some code paths of AES-GCM do (rule H3)."""

from __future__ import annotations

from sealift.crypto.aead import Aead


class TwiceReadingCipher:
    """Verifies what it read first, decrypts what it reads then; a writer in between."""

    def __init__(self, inner, write_between):
        self._inner = inner
        self._write_between = write_between

    def open_into(self, nonce, ciphertext, associated_data, out):
        first = bytes(ciphertext)
        written = self._inner.open_into(nonce, first, associated_data, out)
        self._write_between()
        changed = (a ^ b for a, b in zip(first, bytes(ciphertext), strict=True))
        out[:written] = bytes(p ^ d for p, d in zip(out, changed, strict=False))
        return written


class TwiceReadingBackend:
    """Ciphers that read twice."""

    def __init__(self, write_between):
        self._write_between = write_between

    def cipher(self, suite, key):
        return TwiceReadingCipher(Aead(suite, key), self._write_between)
