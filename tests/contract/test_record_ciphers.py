"""The AEADs of records: bytes that open again, and nothing on a bad tag."""

from __future__ import annotations

import os

import pytest

from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError

KEY = SecretKey.from_bytes(b"k" * 32)
NONCE = bytes(range(12))


@pytest.fixture(params=list(Suite), ids=lambda suite: suite.name)
def cipher(request):
    return Aead(request.param, KEY)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 4096, 1 << 20])
def test_what_is_sealed_opens_again(cipher, length):
    plaintext, sealed = os.urandom(length), bytearray(length + 16)
    assert cipher.seal_into(NONCE, plaintext, b"ad", sealed) == length + 16
    opened = bytearray(length)
    assert cipher.open_into(NONCE, sealed, b"ad", opened) == length
    assert opened == plaintext


@pytest.mark.parametrize("byte", [0, 63, 64, 79])
def test_a_bad_tag_raises_and_leaves_zeroes(cipher, byte):
    sealed, out = bytearray(80), bytearray(b"\xaa" * 64)
    cipher.seal_into(NONCE, os.urandom(64), b"ad", sealed)
    sealed[byte] ^= 1
    with pytest.raises(AuthenticationError):
        cipher.open_into(NONCE, sealed, b"ad", out)
    assert out == bytes(64)


def test_other_associated_data_raises(cipher):
    sealed = bytearray(80)
    cipher.seal_into(NONCE, bytes(64), b"ad", sealed)
    with pytest.raises(AuthenticationError):
        cipher.open_into(NONCE, sealed, b"da", bytearray(64))
