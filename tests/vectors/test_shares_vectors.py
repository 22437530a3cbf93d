"""The vectors of shares, recomputed without our code, and regenerated with it."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SPEC = Path(__file__).parents[2] / "spec" / "vectors"
VECTORS: dict[str, Any] = json.loads((SPEC / "shares.json").read_text())


def kdf(key: bytes, label: str, context: bytes, length: int) -> bytes:
    name = f"sealift v1 {label}".encode()
    extracted = hmac.digest(bytes(32), key, "sha256")
    info = bytes([len(name)]) + name + context
    return hmac.digest(extracted, info + b"\1", "sha256")[:length]


def block(key: bytes, number: int, count: int, modulus: int) -> list[int]:
    """The numbers of a block, from its first attempt."""
    length = 6 * (count + 16)
    nonce = bytes(4) + number.to_bytes(8, "big") + b"\0\0\0\2"
    raw = (
        Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor().update(bytes(length))
    )
    words = []
    for each in range(count + 16):
        low = raw[4 * each : 4 * each + 4]
        start = 4 * (count + 16) + 2 * each
        words.append(int.from_bytes(low + raw[start : start + 2], "little"))

    def counts(word: int) -> bool:
        return word * modulus % 2**48 >= 2**48 % modulus

    spares = (word for word in words[count:] if counts(word))
    chosen = (word if counts(word) else next(spares) for word in words[:count])
    return [word * modulus >> 48 for word in chosen]


@pytest.mark.parametrize("vector", VECTORS["masks"], ids=lambda v: str(v["modulus"]))
def test_masks(vector: dict[str, Any]) -> None:
    modulus, length = vector["modulus"], vector["length"]
    context = modulus.to_bytes(8, "big")
    key = kdf(bytes.fromhex(vector["seed"]), "mask stream", context, 32)
    numbers = []
    for number, start in enumerate(range(0, length, 1 << 15)):
        numbers += block(key, number, min(1 << 15, length - start), modulus)
    raw = b"".join(each.to_bytes(4, "little") for each in numbers)
    assert hashlib.sha256(raw).hexdigest() == vector["sha256"]
    for at, place in enumerate(vector["places"]):
        q, u = place * 37 % 4095 - 2047, numbers[place]
        assert vector["mask"][at] == u
        assert vector["plus"][at] == (q + u) % modulus
        assert vector["minus"][at] == (q - u) % modulus


@pytest.mark.parametrize("vector", VECTORS["residues"], ids=lambda v: len(v["moduli"]))
def test_residues(vector: dict[str, Any]) -> None:
    modulus = math.prod(vector["moduli"])
    rows = zip(vector["moduli"], vector["split"], vector["sums"], strict=True)
    for m, split, sums in rows:
        for value, residue in zip(vector["values"], split, strict=True):
            assert (value - residue) % m == 0
            assert abs(residue) <= m // 2
        for whole, total in zip(vector["recombined"], sums, strict=True):
            assert (whole - total) % m == 0
    assert max(vector["recombined"]) < modulus


@pytest.mark.parametrize("vector", VECTORS["products"], ids=lambda v: str(v["modulus"]))
def test_products(vector: dict[str, Any]) -> None:
    modulus = vector["modulus"]
    half = pow(2, -1, modulus)
    answers = zip(vector["p"], vector["m"], vector["z"], strict=True)
    for (p, m, z), found in zip(answers, vector["product"], strict=True):
        assert (found - (p + m) * half + z) % modulus == 0
        assert abs(found) <= modulus // 2
    for found, value in zip(
        vector["product"], vector["times_2_to_minus_9"], strict=True
    ):
        assert value == pytest.approx(found / 512, rel=2**-24)


def test_rounding() -> None:
    vector = VECTORS["rounding"]
    context = vector["step"].to_bytes(8, "big") + vector["call"].to_bytes(8, "big")
    seed = bytes.fromhex(vector["seed"])
    drawn = kdf(seed, "rounding noise", context + vector["tensor"].encode(), 8)
    add, xor = int.from_bytes(drawn[:4], "big"), int.from_bytes(drawn[4:], "big")
    assert [add, xor] == vector["add_xor"]
    for place, (x, q) in enumerate(zip(vector["x"], vector["q"], strict=True)):
        h = (place + add) % 2**32
        h = (h ^ h >> 16) * 0x7FEB352D % 2**32
        h = (h ^ h >> 15 ^ xor) * 0x846CA68B % 2**32
        exact = Fraction(x) * vector["scale"] + Fraction(2 * (h >> 16) + 1, 2**17)
        assert q == max(-vector["limit"], min(vector["limit"], math.floor(exact)))


def test_our_code_makes_the_same_file() -> None:
    path = SPEC / "generate_shares.py"
    spec = importlib.util.spec_from_file_location("generate_shares", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.generate() == (SPEC / "shares.json").read_text()
