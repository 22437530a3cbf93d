"""Sealing and opening; what a failed opening leaves behind; misuse."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidTag

from sealift.crypto.aead import NONCE_BYTES, TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UsageError
from sealift.ids import Buffer

NONCE, AD = b"n" * NONCE_BYTES, b"record 7"
PLAINTEXT = bytes(range(1, 256)) * 17

suites = pytest.mark.parametrize("suite", Suite)


def key() -> SecretKey:
    return SecretKey(bytes(range(32)))


class LeavesPlaintext(Aead):
    """The mutant: what the library below does when nobody overwrites the buffer."""

    def open_into(
        self, nonce: bytes, ciphertext: Buffer, associated_data: bytes, out: Buffer
    ) -> int:
        try:
            return self._cipher.decrypt_into(nonce, ciphertext, associated_data, out)
        except InvalidTag:
            raise AuthenticationError from None


def left_after_a_failed_opening(kind: type[Aead], suite: Suite, change: int) -> bytes:
    aead = kind(suite, key())
    sealed = bytearray(aead.seal(NONCE, PLAINTEXT, AD))
    sealed[change] ^= 1
    out = bytearray(b"\xaa" * len(PLAINTEXT))
    with pytest.raises(AuthenticationError):
        aead.open_into(NONCE, sealed, AD, out)
    return bytes(out)


@suites
@pytest.mark.parametrize("change", [0, len(PLAINTEXT) - 1, -1])
def test_failed_opening_leaves_zeros(suite: Suite, change: int) -> None:
    left = left_after_a_failed_opening(Aead, suite, change)
    assert left == bytes(len(PLAINTEXT))


@suites
def test_positive_control_the_library_leaves_plaintext(suite: Suite) -> None:
    left = left_after_a_failed_opening(LeavesPlaintext, suite, -1)
    assert left != bytes(len(PLAINTEXT))


def test_positive_control_and_gcm_leaves_all_of_it() -> None:
    left = left_after_a_failed_opening(LeavesPlaintext, Suite.AES_256_GCM, -1)
    assert left == PLAINTEXT


@suites
def test_zeroes_a_part_of_a_larger_buffer_only(suite: Suite) -> None:
    aead = Aead(suite, key())
    out = bytearray(b"\xaa" * 96)
    with pytest.raises(AuthenticationError):
        aead.open_into(NONCE, bytes(32 + TAG_BYTES), AD, memoryview(out)[32:64])
    assert out == b"\xaa" * 32 + bytes(32) + b"\xaa" * 32


@suites
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 4095])
def test_round_trip_in_both_forms(suite: Suite, length: int) -> None:
    aead, plaintext = Aead(suite, key()), PLAINTEXT[:length]
    sealed = aead.seal(NONCE, plaintext, AD)
    assert len(sealed) == length + TAG_BYTES
    assert aead.open(NONCE, sealed, AD) == plaintext
    into, out = bytearray(len(sealed)), bytearray(length)
    assert aead.seal_into(NONCE, memoryview(plaintext), AD, into) == len(sealed)
    assert into == sealed
    assert aead.open_into(NONCE, memoryview(into), AD, out) == length
    assert out == plaintext


@suites
def test_nothing_else_opens(suite: Suite) -> None:
    aead = Aead(suite, key())
    sealed = aead.seal(NONCE, PLAINTEXT, AD)
    other_suite = Aead(next(s for s in Suite if s != suite), key())
    attempts = [
        (Aead(suite, SecretKey(bytes(32))), NONCE, sealed, AD),
        (other_suite, NONCE, sealed, AD),
        (aead, b"m" * NONCE_BYTES, sealed, AD),
        (aead, NONCE, sealed, b""),
        (aead, NONCE, sealed, AD + b"\0"),
        (aead, NONCE, sealed[:-1], AD),
        (aead, NONCE, sealed + b"\0", AD),
        (aead, NONCE, b"", AD),
        (aead, NONCE, bytes(TAG_BYTES - 1), AD),
    ]
    for opener, nonce, ciphertext, ad in attempts:
        with pytest.raises(AuthenticationError):
            opener.open(nonce, ciphertext, ad)
        out = bytearray(max(0, len(ciphertext) - TAG_BYTES))
        with pytest.raises(AuthenticationError):
            opener.open_into(nonce, ciphertext, ad, out)
        assert out == bytes(len(out))


@suites
@pytest.mark.parametrize("length", [0, 8, 11, 13, 16])
def test_nonce_has_12_bytes(suite: Suite, length: int) -> None:
    aead, nonce, tag = Aead(suite, key()), bytes(length), bytearray(TAG_BYTES)
    for call in (
        lambda: aead.seal(nonce, b"", AD),
        lambda: aead.open(nonce, tag, AD),
        lambda: aead.seal_into(nonce, b"", AD, tag),
        lambda: aead.open_into(nonce, tag, AD, bytearray()),
    ):
        with pytest.raises(UsageError, match="nonce"):
            call()


@suites
@pytest.mark.parametrize("length", [16, 24, 31, 33])
def test_key_has_32_bytes(suite: Suite, length: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        Aead(suite, SecretKey.generate(length))


@suites
def test_output_buffer_of_another_length_is_misuse(suite: Suite) -> None:
    aead = Aead(suite, key())
    sealed = aead.seal(NONCE, b"four", AD)
    with pytest.raises(ValueError, match="buffer"):
        aead.open_into(NONCE, sealed, AD, bytearray(5))
    with pytest.raises(ValueError, match="buffer"):
        aead.seal_into(NONCE, b"four", AD, bytearray(4))


def test_suite_numbers_are_what_headers_carry() -> None:
    assert {s.name: s.value for s in Suite} == {
        "AES_256_GCM": 1,
        "CHACHA20_POLY1305": 2,
    }
