"""Header, keys, nonces: limits, key commitment, segments, fork."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

import pytest

from sealift.channel.record.layout import (
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    UNKNOWN,
    StreamHeader,
    count_records,
)
from sealift.channel.record.opener import RecordOpener, StreamOpener
from sealift.channel.record.record import (
    RecordKeys,
    StreamOptions,
    make_header,
    verify_header_key,
)
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError, UsageError

KEY = SecretKey.from_bytes(b"k" * 32)


def test_a_header_has_120_bytes_and_reads_back():
    header = make_header(KEY, total_bytes=1000, record_bytes=64, key_epoch=7)
    assert len(header.encode()) == HEADER_BYTES
    assert StreamHeader.parse(header.encode()) == header
    assert header.record_count == 16


@pytest.mark.parametrize(
    ("total", "count"), [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2)]
)
def test_every_stream_has_a_final_record(total, count):
    assert count_records(total, 64) == count


def test_two_streams_of_one_key_share_neither_salt_nor_nonce_nor_ciphertext():
    one, two = (StreamSealer(KEY, total_bytes=64, record_bytes=64) for _ in range(2))
    assert one.header.salt != two.header.salt
    assert one.seal(bytes(64)) != two.seal(bytes(64))


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (0, b"X", "magic"),
        (7, b"\x02", "magic"),
        (8, b"\x00", "suite"),
        (8, b"\x63", "suite"),
        (9, b"\x04", "flags"),
        (10, b"\x01", "reserved"),
        (12, b"\x00\x00\x00\x20", "record_bytes"),
        (12, b"\x00\x00\x00\x41", "record_bytes"),
        (12, (MAX_RECORD_BYTES + 32).to_bytes(4, "big"), "record_bytes"),
        (40, UNKNOWN.to_bytes(8, "big"), "total_bytes"),
        (48, b"\x00" * 8, "record_count"),
        (48, b"\xff" * 8, "record_count"),
    ],
)
def test_a_header_out_of_its_limits_is_malformed_and_says_where(offset, value, field):
    raw = bytearray(make_header(KEY, total_bytes=1000, record_bytes=64).encode())
    raw[offset : offset + len(value)] = value
    with pytest.raises(MalformedError) as caught:
        StreamHeader.parse(bytes(raw))
    assert caught.value.field == field
    assert caught.value.offset == (0 if field == "magic" else offset)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES + 1])
def test_a_header_of_another_length_is_malformed(length):
    with pytest.raises(MalformedError):
        StreamHeader.parse(bytes(length))


def test_a_header_with_another_key_is_refused_before_any_record():
    header = make_header(KEY, total_bytes=64, record_bytes=64)
    with pytest.raises(AuthenticationError):
        StreamOpener(SecretKey.generate(), header.encode())


@pytest.mark.parametrize("offset", [16, 24, 56, 87, 88, 119])
def test_a_changed_header_is_refused_before_any_record(offset):
    raw = bytearray(make_header(KEY, total_bytes=64, record_bytes=64).encode())
    raw[offset] ^= 1
    with pytest.raises(AuthenticationError):
        StreamOpener(KEY, bytes(raw))


def test_without_the_key_commitment_only_the_first_record_would_tell():
    # The control for the two tests above: these keys do derive for a foreign header.
    header = make_header(KEY, total_bytes=64, record_bytes=64)
    RecordKeys(SecretKey.generate(), header)
    with pytest.raises(AuthenticationError):
        verify_header_key(SecretKey.generate(), header)


def test_suite_is_part_of_the_key():
    header = make_header(KEY, total_bytes=64, record_bytes=64)
    other = replace(header, suite=Suite.CHACHA20_POLY1305)
    nonces = {RecordKeys(KEY, h).nonce(0, 0) for h in (header, other)}
    assert len(nonces) == 2


def test_each_segment_has_its_own_key_and_mask():
    options = StreamOptions(segment_bytes=128)
    header = make_header(KEY, total_bytes=64 * 6, record_bytes=64, options=options)
    keys = RecordKeys(KEY, header, options=options)
    masks = [int.from_bytes(keys.nonce(i, 0), "big") for i in range(6)]
    assert [masks.index(mask) for mask in masks] == [0, 0, 2, 2, 4, 4]


def test_a_stream_over_several_segments_opens_in_order_and_at_random():
    options = StreamOptions(segment_bytes=128)
    plaintext = os.urandom(64 * 5 + 10)
    sealer = StreamSealer(
        KEY, total_bytes=len(plaintext), record_bytes=64, options=options
    )
    records = [sealer.seal(plaintext[i : i + 64]) for i in range(0, 330, 64)]
    opener = StreamOpener(KEY, sealer.header_bytes, options=options)
    assert b"".join(opener.open(record) for record in records) == plaintext
    opener.finish(sealer.trailer())


def test_another_segment_size_is_another_format():
    # Mutant: one key for the whole stream. It must not open what the format sealed.
    sealer = StreamSealer(
        KEY,
        total_bytes=64 * 4,
        record_bytes=64,
        options=StreamOptions(segment_bytes=128),
    )
    records = [sealer.seal(bytes(64)) for _ in range(4)]
    mutant = StreamOpener(KEY, sealer.header_bytes)
    assert mutant.open(records[0]) == bytes(64)
    assert mutant.open(records[1]) == bytes(64)
    with pytest.raises(AuthenticationError):
        mutant.open(records[2])


def test_nonces_differ_by_sequence():
    keys = RecordKeys(KEY, make_header(KEY, total_bytes=None))
    nonces = {keys.nonce(0, sequence) for sequence in (0, 1, 9, 2**64 - 1)}
    assert len(nonces) == 4


def test_associated_data_binds_index_final_bit_and_context():
    header = make_header(KEY, total_bytes=None)
    one, two = (RecordKeys(KEY, header, context=c) for c in (b"", b"x"))
    seen = {
        keys.associated_data(index, final=final)
        for keys in (one, two)
        for index in (0, 1)
        for final in (False, True)
    }
    assert len(seen) == 8
    assert {len(ad) for ad in seen} == {73}


def test_record_sizes_are_checked_when_sealing():
    for record_bytes in (32, 63, 65, MAX_RECORD_BYTES + 32):
        with pytest.raises(MalformedError):
            make_header(KEY, total_bytes=1, record_bytes=record_bytes)


def test_the_keys_of_a_closed_opener_are_gone():
    opener = RecordOpener(KEY, make_header(KEY, total_bytes=64).encode())
    assert len(opener.keys.trailer_key()) == 32
    opener.close()
    with pytest.raises(UsageError, match="wiped"):
        opener.keys.trailer_key()


def test_a_forked_child_can_neither_seal_nor_open():
    sealer = StreamSealer(KEY, total_bytes=128, record_bytes=64)
    opener = StreamOpener(KEY, sealer.header_bytes)
    opener.open(sealer.seal(bytes(64)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests' threads may still be ending
        child = os.fork()
    if child == 0:
        os._exit(_attempts_in_child(sealer, opener))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert opener.open(sealer.seal(bytes(64))) == bytes(64)  # the parent goes on


def _attempts_in_child(sealer: StreamSealer, opener: StreamOpener) -> int:
    for attempt in (lambda: sealer.seal(bytes(64)), lambda: opener.open(bytes(80))):
        try:
            attempt()
        except UsageError as error:
            if error.code != "forked-stream":
                return 2
        else:
            return 3
    return 0
