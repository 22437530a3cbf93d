"""The GPU's AES-256-GCM, compiled by gcc: NIST's vectors, and keys and lengths at edges."""

from __future__ import annotations

from collections import defaultdict

import pytest

from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from tests.sim.kernel_batches import Text, open_all, seal_all
from tests.vectors.test_aes_gcm import ours

pytestmark = pytest.mark.gcc
GCM = Suite.AES_256_GCM


def by_key(path: str) -> dict[bytes, list[dict[str, bytes]]]:
    """NIST's cases, those of one key together: a key is expanded once a batch."""
    keys: dict[bytes, list[dict[str, bytes]]] = defaultdict(list)
    for case in ours(path):
        keys[case["key"]].append(case)
    return keys


def test_encrypt() -> None:
    found = 0
    for key, cases in by_key("ciphers/AES/GCM/gcmEncryptExtIV256.rsp").items():
        sealed = seal_all(GCM, key, [Text(c["pt"], c["iv"], c["aad"]) for c in cases])
        assert sealed == [c["ct"] + c["tag"] for c in cases]
        found += len(cases)
    assert found == 375


def test_decrypt() -> None:
    good = bad = 0
    for key, cases in by_key("ciphers/AES/GCM/gcmDecrypt256.rsp").items():
        texts = [Text(c["ct"] + c["tag"], c["iv"], c["aad"]) for c in cases]
        for case, (genuine, plain) in zip(
            cases, open_all(GCM, key, texts), strict=True
        ):
            assert genuine == ("fail" not in case)
            assert plain == (case["pt"] if genuine else bytes(len(case["ct"])))
            good, bad = good + genuine, bad + (not genuine)
    assert good + bad == 375
    assert min(good, bad) > 100


# Hash keys, counters and texts of extreme bits: where sums of products overflow first.
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x01, 0x55, 0xAA])
def test_extreme_bits(byte: int) -> None:
    key, nonce = bytes([byte]) * 32, bytes([byte]) * 12
    for content in (bytes([byte]) * 4096, bytes([byte ^ 0xFF]) * 333):
        text = Text(content, nonce, bytes([byte]) * 73)
        expected = Aead(GCM, SecretKey(key)).seal(nonce, content, text.aad)
        assert seal_all(GCM, key, [text]) == [expected]
