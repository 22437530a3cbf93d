"""A keystream is AES-256 in GCM's counter mode, block by block."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sealift.crypto.keys import SecretKey
from sealift.crypto.keystream import MAX_BYTES, Keystream
from sealift.errors import UsageError

KEY = bytes(range(32))


@pytest.mark.parametrize(("block", "attempt"), [(0, 0), (1, 0), (0, 1), (2**40, 3)])
def test_blocks_are_the_counter_mode(block: int, attempt: int) -> None:
    out = bytearray(100 + 16)
    Keystream(SecretKey(KEY)).fill(block, out, attempt)
    nonce = attempt.to_bytes(4, "big") + block.to_bytes(8, "big") + b"\0\0\0\2"
    counter = Cipher(algorithms.AES(KEY), modes.CTR(nonce)).encryptor()
    assert out[:100] == counter.update(bytes(100))


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(UsageError):
        Keystream(SecretKey(KEY[:16]))


def test_a_whole_block_fits() -> None:
    out = bytearray(MAX_BYTES + 16)
    Keystream(SecretKey(KEY)).fill(0, out)
    assert out[MAX_BYTES - 32 : MAX_BYTES] != bytes(32)
