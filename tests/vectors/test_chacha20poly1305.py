"""ChaCha20-Poly1305: the vectors of RFC 7539, BoringSSL and OpenSSL."""

from __future__ import annotations

import pytest

from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError
from tests.vectors.vectorfile import cases


def octets(text: str) -> bytes:
    """Hex, or text in quotes, as BoringSSL writes it."""
    return text[1:-1].encode() if text.startswith('"') else bytes.fromhex(text)


@pytest.mark.parametrize(
    ("path", "names", "counts"),
    [
        ("boringssl.txt", ("nonce", "in", "ad", "ct"), (66, 0)),
        ("openssl.txt", ("iv", "plaintext", "aad", "ciphertext"), (4, 1)),
    ],
)
def test_both_ways(path: str, names: tuple[str, ...], counts: tuple[int, int]) -> None:
    passed = failed = 0
    for case in cases(f"ciphers/ChaCha20Poly1305/{path}"):
        nonce, plaintext, ad, ciphertext = (octets(case[name]) for name in names)
        sealed = ciphertext + octets(case["tag"])
        aead = Aead(Suite.CHACHA20_POLY1305, SecretKey(octets(case["key"])))
        if "result" in case:  # CIPHERFINAL_ERROR: a wrong tag
            with pytest.raises(AuthenticationError):
                aead.open(nonce, sealed, ad)
            failed += 1
        else:
            assert aead.seal(nonce, plaintext, ad) == sealed
            assert aead.open(nonce, sealed, ad) == plaintext
            passed += 1
    assert (passed, failed) == counts
