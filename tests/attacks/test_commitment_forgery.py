"""C5: who holds the key changes content and keeps every tag.

GCM's tag is a polynomial in a value that the key's holder can compute. Change one block
of ciphertext as you like, repair another, and the tag, the root over all tags and any
signature of that root stay as they were. Only a commitment to the content tells.
"""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sealift.channel.record.commitment import verify_leaves
from sealift.channel.record.layout import HEADER_BYTES, StreamHeader
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import Label, SecretKey, derive, derive_bytes
from sealift.errors import IntegrityError

KEY = SecretKey.from_bytes(b"k" * 32)
RECORD_BYTES = 4096


def multiply(x: int, y: int) -> int:
    """In GHASH's field, its bits in GCM's order."""
    product = 0
    for bit in range(127, -1, -1):
        if y >> bit & 1:
            product ^= x
        x = x >> 1 ^ (0xE1 << 120 if x & 1 else 0)
    return product


def power(x: int, exponent: int) -> int:
    result = 1 << 127
    while exponent:
        if exponent & 1:
            result = multiply(result, x)
        x, exponent = multiply(x, x), exponent >> 1
    return result


def segment_key(header_bytes: bytes) -> bytes:
    stream_secret = derive(KEY, Label.STREAM, header_bytes)
    return derive_bytes(stream_secret, Label.SEGMENT, bytes(8), length=44)[:32]


def forge(record: bytearray, key: bytes) -> None:
    """Change block 3 at random and repair block 200, under the same tag."""
    zero = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(16))
    hash_key = int.from_bytes(zero, "big")
    blocks = (len(record) - 16) // 16
    first, second = 3, 200
    change = int.from_bytes(os.urandom(16), "big")
    # Block i is multiplied by H to the power of its distance from the end, lengths
    # included; the second change cancels the first.
    undo = power(power(hash_key, blocks - second + 1), 2**128 - 2)
    repair = multiply(multiply(change, power(hash_key, blocks - first + 1)), undo)
    for block, delta in ((first, change), (second, repair)):
        at = slice(16 * block, 16 * block + 16)
        value = int.from_bytes(record[at], "big") ^ delta
        record[at] = value.to_bytes(16, "big")


@pytest.fixture
def forged(tmp_path):
    """A sealed file whose holder swapped content after the owner committed to it."""
    plaintext = os.urandom(3 * RECORD_BYTES)
    card = write_sealed_file(
        tmp_path / "x", [plaintext], key=KEY,
        total_bytes=len(plaintext), record_bytes=RECORD_BYTES,
    )  # fmt: skip
    raw = bytearray(card.path.read_bytes())
    header = bytes(raw[:HEADER_BYTES])
    assert StreamHeader.parse(header) == card.header
    record = raw[HEADER_BYTES : HEADER_BYTES + RECORD_BYTES + 16]
    forge(record, segment_key(header))
    raw[HEADER_BYTES : HEADER_BYTES + RECORD_BYTES + 16] = record
    card.path.write_bytes(raw)
    return card, plaintext


def test_the_forgery_passes_every_tag_and_the_root_over_tags(forged):
    """The mutant that trusts the root over tags: it accepts other content."""
    card, plaintext = forged
    with SealedFileReader(card.path, KEY) as reader:
        reader.verify()
        assert reader.read(0, len(plaintext)) != plaintext


def test_the_content_commitment_catches_it(forged):
    card, _ = forged
    leaves = verify_leaves(card.leaves, card.content, data_key=KEY)
    with SealedFileReader(card.path, KEY) as reader:
        leaves.verify(1, reader.open_record(1))
        with pytest.raises(IntegrityError, match="record 0"):
            leaves.verify(0, reader.open_record(0))
        with pytest.raises(IntegrityError):
            reader.verify(leaves)


def test_leaves_made_for_the_forgery_do_not_fit_the_commitment(forged):
    card, _ = forged
    from sealift.channel.record.commitment import LeafHasher

    with SealedFileReader(card.path, KEY) as reader:
        hasher = LeafHasher(KEY)
        forged_leaves = [hasher.leaf(i, reader.open_record(i)) for i in range(3)]
    with pytest.raises(IntegrityError):
        verify_leaves(forged_leaves, card.content, data_key=KEY)
