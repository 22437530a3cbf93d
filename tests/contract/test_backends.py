"""Every AEAD engine gives the oracle's bytes, and nothing on a bad tag."""

from __future__ import annotations

import os

import pytest

from sealift.channel.record.cpu import CpuBackend
from sealift.channel.select import select
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UnavailableError

KEY = SecretKey.from_bytes(b"k" * 32)
NONCE = bytes(range(12))
BACKENDS = [CpuBackend()]
CASES = [(backend, suite) for backend in BACKENDS for suite in backend.suites()]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name}-{case[1].name}")
def case(request):
    return request.param


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 4096, 1 << 20])
def test_the_bytes_are_those_of_the_oracle(case, length):
    backend, suite = case
    plaintext, sealed = os.urandom(length), bytearray(length + 16)
    written = backend.cipher(suite, KEY).seal_into(NONCE, plaintext, b"ad", sealed)
    oracle = bytearray(length + 16)
    CpuBackend().cipher(suite, KEY).seal_into(NONCE, plaintext, b"ad", oracle)
    assert written == length + 16
    assert sealed == oracle
    opened = bytearray(length)
    assert backend.cipher(suite, KEY).open_into(NONCE, sealed, b"ad", opened) == length
    assert opened == plaintext


@pytest.mark.parametrize("byte", [0, 63, 64, 79])
def test_a_bad_tag_raises_and_leaves_zeroes(case, byte):
    backend, suite = case
    sealed, out = bytearray(80), bytearray(b"\xaa" * 64)
    cipher = backend.cipher(suite, KEY)
    cipher.seal_into(NONCE, os.urandom(64), b"ad", sealed)
    sealed[byte] ^= 1
    with pytest.raises(AuthenticationError):
        cipher.open_into(NONCE, sealed, b"ad", out)
    assert out == bytes(64)


def test_other_associated_data_raises(case):
    backend, suite = case
    sealed = bytearray(80)
    cipher = backend.cipher(suite, KEY)
    cipher.seal_into(NONCE, bytes(64), b"ad", sealed)
    with pytest.raises(AuthenticationError):
        cipher.open_into(NONCE, sealed, b"da", bytearray(64))


@pytest.mark.parametrize("suite", list(Suite))
def test_the_selection_says_why(suite):
    chosen = select(suite)
    assert chosen.backend.name == "cpu"
    assert chosen.reason == "cpu: the only engine in this installation"
    assert "asked for" in select(suite, prefer="cpu").reason


def test_an_engine_that_is_not_there_is_never_replaced_silently():
    with pytest.raises(UnavailableError, match="no AEAD engine named 'cuda'"):
        select(prefer="cuda")
