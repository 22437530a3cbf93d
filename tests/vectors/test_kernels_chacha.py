"""The GPU's ChaCha20-Poly1305, compiled by gcc: RFC 8439's, BoringSSL's, OpenSSL's cases."""

from __future__ import annotations

import pytest

from sealift.channel.device.device import MAX_ASSOCIATED_BYTES
from sealift.crypto.aead import Suite
from tests.sim.kernel_batches import Text, open_all, seal_all
from tests.vectors.test_chacha20poly1305 import octets
from tests.vectors.vectorfile import cases

pytestmark = pytest.mark.gcc
CHACHA = Suite.CHACHA20_POLY1305


@pytest.mark.parametrize(
    ("path", "names", "counts"),
    [
        ("boringssl.txt", ("nonce", "in", "ad", "ct"), (58, 0, 8)),
        ("openssl.txt", ("iv", "plaintext", "aad", "ciphertext"), (4, 1, 0)),
    ],
)
def test_both_ways(path: str, names: tuple[str, ...], counts: tuple[int, int]) -> None:
    passed = failed = refused = 0
    for case in cases(f"ciphers/ChaCha20Poly1305/{path}"):
        nonce, plaintext, ad, ciphertext = (octets(case[name]) for name in names)
        key, sealed = octets(case["key"]), ciphertext + octets(case["tag"])
        (opened,) = open_all(CHACHA, key, [Text(sealed, nonce, ad)])
        if len(ad) > MAX_ASSOCIATED_BYTES:
            assert opened == (False, b"\xa5" * len(ciphertext))  # nothing was written
            refused += 1
        elif "result" in case:  # CIPHERFINAL_ERROR: a wrong tag
            assert opened == (False, bytes(len(ciphertext)))
            failed += 1
        else:
            assert opened == (True, plaintext)
            assert seal_all(CHACHA, key, [Text(plaintext, nonce, ad)]) == [sealed]
            passed += 1
    assert (passed, failed, refused) == counts
