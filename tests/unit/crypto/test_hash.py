"""Hashes: known values, framing of parts, constant-time comparison."""

from __future__ import annotations

import hashlib

import pytest

from sealift.crypto.hash import (
    KeyedHasher,
    keyed_hash,
    labelled,
    sha256,
    verify_equal,
)
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError

# From BLAKE3's own test_vectors.json: key, inputs 0, 1, ... 250 repeated, first 32 bytes.
BLAKE3_KEY = SecretKey(b"whats the Elvish word for friend")
BLAKE3_KEYED = {
    0: "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
    1: "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
    1024: "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4",
    102400: "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7",
}


@pytest.mark.parametrize(("length", "digest"), BLAKE3_KEYED.items())
def test_keyed_hash_is_blake3(length: int, digest: str) -> None:
    message = bytes(i % 251 for i in range(length))
    assert keyed_hash(BLAKE3_KEY, message).hex() == digest
    parts = [message[i : i + 1000] for i in range(0, length, 1000)]
    assert keyed_hash(BLAKE3_KEY, *parts).hex() == digest


def test_keyed_hasher_can_go_on_after_a_digest() -> None:
    hasher = KeyedHasher(BLAKE3_KEY)
    hasher.update(b"a")
    first = hasher.digest()
    hasher.update(memoryview(b"b"))
    assert first == keyed_hash(BLAKE3_KEY, b"a")
    assert hasher.digest() == keyed_hash(BLAKE3_KEY, b"ab")
    assert first != keyed_hash(SecretKey(bytes(32)), b"a")


def test_sha256_joins_its_parts() -> None:
    expected = hashlib.sha256(b"abc").digest()
    assert sha256(b"abc") == sha256(b"a", bytearray(b"b"), memoryview(b"c")) == expected


LISTS = [(), (b"",), (b"", b""), (b"ab",), (b"a", b"b"), (b"ab", b""), (b"", b"ab")]


def test_labelled_tells_lists_of_parts_apart() -> None:
    hashes = {labelled(label, *parts) for parts in LISTS for label in ("", "a", "ab")}
    assert len(hashes) == 3 * len(LISTS)


def test_positive_control_plain_joining_does_not() -> None:
    assert len({sha256(*parts) for parts in LISTS}) == 2


def test_labelled_by_hand() -> None:
    framed = b"\0" * 7 + b"\x01L" + b"\0" * 7 + b"\x02ab" + b"\0" * 8
    assert labelled("L", b"ab", b"") == hashlib.sha256(framed).digest()


def test_verify_equal() -> None:
    verify_equal(b"same", bytearray(b"same"))
    for other in (b"", b"sam", b"same ", b"Same"):
        with pytest.raises(AuthenticationError):
            verify_equal(b"same", other)
