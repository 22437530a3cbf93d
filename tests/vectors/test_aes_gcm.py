"""AES-256-GCM: NIST's CAVS vectors with 96-bit nonces and whole tags."""

from __future__ import annotations

from collections import Counter

import pytest

from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError
from tests.vectors.vectorfile import cases


def ours(path: str) -> list[dict[str, bytes | None]]:
    """The cases of lengths that we use: the others of a .rsp file we refuse."""
    return [
        {name: bytes.fromhex(value) for name, value in case.items() if name != "count"}
        | ({"fail": None} if "fail" in case else {})
        for case in cases(path)
        if len(case["iv"]) == 24 and len(case["tag"]) == 32
    ]


def aead(case: dict[str, bytes]) -> Aead:
    return Aead(Suite.AES_256_GCM, SecretKey(case["key"]))


def test_encrypt() -> None:
    found = ours("ciphers/AES/GCM/gcmEncryptExtIV256.rsp")
    for case in found:
        sealed, out = case["ct"] + case["tag"], bytearray(len(case["pt"]) + 16)
        assert aead(case).seal(case["iv"], case["pt"], case["aad"]) == sealed
        aead(case).seal_into(case["iv"], case["pt"], case["aad"], out)
        assert out == sealed
    assert len(found) == 375


def test_decrypt() -> None:
    outcomes: Counter[str] = Counter()
    for case in ours("ciphers/AES/GCM/gcmDecrypt256.rsp"):
        sealed, out = case["ct"] + case["tag"], bytearray(b"\xaa" * len(case["ct"]))
        if "fail" in case:
            with pytest.raises(AuthenticationError):
                aead(case).open(case["iv"], sealed, case["aad"])
            with pytest.raises(AuthenticationError):
                aead(case).open_into(case["iv"], sealed, case["aad"], out)
            assert out == bytes(len(out))
        else:
            assert aead(case).open(case["iv"], sealed, case["aad"]) == case["pt"]
            aead(case).open_into(case["iv"], sealed, case["aad"], out)
            assert out == case["pt"]
        outcomes["fail" if "fail" in case else "pass"] += 1
    assert outcomes.total() == 375
    assert min(outcomes["fail"], outcomes["pass"]) > 100
