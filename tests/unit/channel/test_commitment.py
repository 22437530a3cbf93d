"""Content commitments: one content, one commitment, one key."""

from __future__ import annotations

import os

import pytest

from sealift.channel.record.commitment import (
    CommitmentBuilder,
    LeafHasher,
    key_commitment,
    verify_leaves,
)
from sealift.crypto.keys import SecretKey
from sealift.errors import IntegrityError, UsageError

KEY = SecretKey.from_bytes(b"k" * 32)
CHUNKS = [os.urandom(64), os.urandom(64), os.urandom(10)]


def build(chunks=CHUNKS, *, key=KEY, total_bytes=138, record_bytes=64):
    builder = CommitmentBuilder(key, total_bytes=total_bytes, record_bytes=record_bytes)
    for chunk in chunks:
        builder.add(chunk)
    return builder.commitment(), builder.leaves


def test_the_committed_content_verifies_in_any_order():
    commitment, leaves = build()
    verified = verify_leaves(leaves, commitment, data_key=KEY)
    for index in (2, 0, 1, 0):
        verified.verify(index, CHUNKS[index])
    assert len(verified) == 3


def test_other_content_another_place_and_another_length_do_not():
    commitment, leaves = build()
    verified = verify_leaves(leaves, commitment, data_key=KEY)
    for index, chunk in [(0, CHUNKS[1]), (1, CHUNKS[0]), (2, CHUNKS[2] + b"\0")]:
        with pytest.raises(IntegrityError):
            verified.verify(index, chunk)
    with pytest.raises(UsageError):
        verified.verify(3, b"")


@pytest.mark.parametrize(
    "change",
    [
        lambda leaves: leaves[:-1],
        lambda leaves: (*leaves, leaves[0]),
        lambda leaves: (leaves[1], leaves[0], leaves[2]),
        lambda leaves: (bytes(32), *leaves[1:]),
    ],
)
def test_other_leaves_are_refused(change):
    commitment, leaves = build()
    with pytest.raises(IntegrityError):
        verify_leaves(change(leaves), commitment, data_key=KEY)


def test_another_key_is_refused():
    # So a holder cannot open the commitment to other content by choosing the key.
    commitment, leaves = build()
    with pytest.raises(IntegrityError):
        verify_leaves(leaves, commitment, data_key=SecretKey.generate())


def test_sizes_are_part_of_the_commitment():
    one, _ = build(CHUNKS[:2], total_bytes=128)
    two, _ = build(CHUNKS[:2], total_bytes=127)
    assert one.digest != two.digest


def test_equal_content_under_two_keys_has_two_commitments():
    # Otherwise a guess of the content could be confirmed without the key.
    assert build()[0] != build(key=SecretKey.generate())[0]


def test_leaves_depend_on_their_index():
    hasher = LeafHasher(KEY)
    assert hasher.leaf(0, b"x") != hasher.leaf(1, b"x")


def test_a_key_commitment_binds_key_and_resource():
    assert key_commitment(KEY, "a") == key_commitment(KEY, "a")
    assert key_commitment(KEY, "a") != key_commitment(KEY, "b")
    assert key_commitment(KEY, "a") != key_commitment(SecretKey.generate(), "a")
