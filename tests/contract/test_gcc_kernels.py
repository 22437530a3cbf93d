"""Whole kernels, run on the processor, give the oracle's bytes, and nothing on a bad tag.

Blocks and threads run one after another here, in an order that a seed decides: a barrier
that is missing gives other bytes for another seed.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator

import pytest

from sealift.channel.cuda.plan import MAX_PLAINTEXT_BYTES
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from tests.sim import kernel_batches
from tests.sim.gcc_kernels import loaded
from tests.sim.kernel_batches import GPU, SMALL_GPU, Text, open_all, seal_all

pytestmark = pytest.mark.gcc
LENGTHS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 2047, 2048, 4095, 4096, 4097]
AADS = [0, 1, 15, 16, 17, 73, 255, 256]
BATCHES = {
    "short": LENGTHS,
    "tiles": [8191, 8192, 8193, 16383, 16384, 16385],
    "segments": [65536, 65537, 65535, 300_000, 20, 0],
    "large": [1 << 20],
}


@pytest.fixture(params=list(Suite), ids=lambda suite: suite.name)
def suite(request: pytest.FixtureRequest) -> Suite:
    return request.param


@pytest.fixture(params=[0, 5], ids=["ascending", "shuffled"])
def order(request: pytest.FixtureRequest) -> Iterator[int]:
    loaded().sealift_host_order(request.param)
    yield request.param
    loaded().sealift_host_order(0)


def made(lengths: list[int]) -> list[Text]:
    return [
        Text(os.urandom(n), os.urandom(12), os.urandom(AADS[i % len(AADS)]))
        for i, n in enumerate(lengths)
    ]


def sealed_by_oracle(suite: Suite, key: bytes, texts: list[Text]) -> list[bytes]:
    aead = Aead(suite, SecretKey(key))
    return [aead.seal(text.nonce, text.content, text.aad) for text in texts]


def as_sealed(texts: list[Text], sealed: list[bytes]) -> list[Text]:
    return [
        Text(content, text.nonce, text.aad)
        for text, content in zip(texts, sealed, strict=True)
    ]


# One multiprocessor gets long segments, many get short ones.
@pytest.mark.parametrize("gpu", [GPU, SMALL_GPU], ids=["wide", "narrow"])
@pytest.mark.parametrize("batch", BATCHES)
def test_both_ways(suite: Suite, batch: str, gpu, order: int) -> None:
    key, texts = os.urandom(32), made(BATCHES[batch])
    expected = sealed_by_oracle(suite, key, texts)
    assert seal_all(suite, key, texts, gpu=gpu) == expected
    opened = open_all(suite, key, as_sealed(texts, expected), gpu=gpu)
    assert opened == [(True, text.content) for text in texts]


@pytest.mark.parametrize("aad_bytes", [*AADS, 2, 14, 18, 31, 32, 33, 72, 74, 240])
def test_associated_data_of_any_length(suite: Suite, aad_bytes: int) -> None:
    key, texts = os.urandom(32), [Text(b"x" * 40, b"n" * 12, os.urandom(aad_bytes))]
    assert seal_all(suite, key, texts) == sealed_by_oracle(suite, key, texts)


@pytest.mark.parametrize("shift", [1, 4, 8])
def test_memory_that_is_not_aligned(suite: Suite, shift: int) -> None:
    key, texts = os.urandom(32), made([0, 1, 100, 5000, 20_000])
    expected = sealed_by_oracle(suite, key, texts)
    assert seal_all(suite, key, texts, shift=shift) == expected
    opened = open_all(suite, key, as_sealed(texts, expected), shift=shift)
    assert opened == [(True, text.content) for text in texts]


def test_the_largest_record(suite: Suite) -> None:
    """256 or 512 segments: more than a block of threads has threads."""
    key, texts = os.urandom(32), made([MAX_PLAINTEXT_BYTES])
    expected = sealed_by_oracle(suite, key, texts)
    opened = open_all(suite, key, as_sealed(texts, expected))
    assert opened == [(True, texts[0].content)]


def test_random_batches(suite: Suite, order: int) -> None:
    lengths = [secrets.randbelow(1 << secrets.randbelow(18)) for _ in range(12)]
    key, texts = os.urandom(32), made(lengths)
    expected = sealed_by_oracle(suite, key, texts)
    assert seal_all(suite, key, texts, gpu=SMALL_GPU) == expected, lengths
    opened = open_all(suite, key, as_sealed(texts, expected))
    assert opened == [(True, text.content) for text in texts], lengths


# One memory for both: had a kernel read what it hashes after what it wrote, it would hash
# plaintext.
def test_in_place(suite: Suite) -> None:
    key, texts = os.urandom(32), made([0, 1, 100, 16384, 40_000])
    expected = sealed_by_oracle(suite, key, texts)
    assert seal_all(suite, key, texts, in_place=True) == expected
    opened = open_all(suite, key, as_sealed(texts, expected), in_place=True)
    assert opened == [(True, text.content) for text in texts]


def test_many_records(suite: Suite) -> None:
    key = os.urandom(32)
    texts = made([i % 50 for i in range(1100)])  # two blocks of masks
    assert seal_all(suite, key, texts) == sealed_by_oracle(suite, key, texts)


@pytest.mark.parametrize("length", [1, 16, 40, 5000, 70_001])
def test_what_was_changed_leaves_zeroes(suite: Suite, length: int) -> None:
    key = os.urandom(32)
    genuine = Text(os.urandom(length), os.urandom(12), os.urandom(73))
    (sealed,) = sealed_by_oracle(suite, key, [genuine])
    texts = [Text(sealed, genuine.nonce, genuine.aad), *changed(sealed, genuine)]
    opened = open_all(suite, key, texts)
    assert opened[0] == (True, genuine.content)
    assert opened[1:] == [(False, bytes(length))] * (len(texts) - 1)


def changed(sealed: bytes, genuine: Text) -> Iterator[Text]:
    """The record with one bit changed: in ciphertext, tag, nonce, associated data."""
    tag = len(sealed) - 16
    for at in {0, tag // 2, tag - 1, tag, tag + 7, tag + 15}:
        yield Text(flipped(sealed, at), genuine.nonce, genuine.aad)
    for at in (0, 11):
        yield Text(sealed, flipped(genuine.nonce, at), genuine.aad)
    for at in (0, 40, 72):
        yield Text(sealed, genuine.nonce, flipped(genuine.aad, at))
    yield Text(sealed, genuine.nonce, genuine.aad[:-1])
    yield Text(sealed, genuine.nonce, genuine.aad + b"\0")


def flipped(content: bytes, at: int) -> bytes:
    bit = 1 << os.urandom(1)[0] % 8
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


# Every bit of the tag counts: a comparison of a part of it would let some pass.
def test_each_bit_of_the_tag(suite: Suite) -> None:
    key, genuine = os.urandom(32), Text(b"abc", os.urandom(12))
    (sealed,) = sealed_by_oracle(suite, key, [genuine])
    number = int.from_bytes(sealed, "big")
    texts = [
        Text((number ^ 1 << bit).to_bytes(19, "big"), genuine.nonce)
        for bit in range(128)
    ]
    assert open_all(suite, key, texts) == [(False, bytes(3))] * 128


@pytest.mark.parametrize(
    ("length", "aad_bytes"), [(MAX_PLAINTEXT_BYTES + 1, 0), (64, 257), (2**32 - 1, 0)]
)
def test_lengths_that_kernels_are_not_made_for(
    suite: Suite, length: int, aad_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that claims them gets no good verdict, and nothing is written."""
    claimed = _Claiming(length, aad_bytes)
    monkeypatch.setattr(kernel_batches, "RECORD", claimed)
    (opened,) = open_all(suite, b"k" * 32, [Text(bytes(80), b"n" * 12)])
    assert opened == (False, b"\xa5" * 64)


class _Claiming:
    def __init__(self, length: int, aad_bytes: int) -> None:
        self._lengths = (length, aad_bytes)

    def pack(self, *fields: object) -> bytes:
        rest = fields[4:]
        return struct.pack("<QQIIQ12sI16s", *fields[:2], *self._lengths, *rest)
