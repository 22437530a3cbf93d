"""Frames: where records go, what the MAC covers, what does not parse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.crypto.keys import SecretKey
from sealift.demo.holders import build_frame
from sealift.errors import AuthenticationError, MalformedError
from sealift.travel.visit.lease import (
    HEADER_BYTES,
    parse_frame,
    placement,
    record_range,
)
from tests.unit.travel.leases import LEASE, ROW_BYTES, lease_for

KEY = SecretKey.generate()
RECORD = bytes(range(112))


@given(
    first=st.integers(0, 200),
    rows=st.integers(1, 200),
    record_bytes=st.sampled_from([64, 96, 128, 1024, 1 << 20]),
    offset=st.integers(0, 1000),
)
def test_placements_tile_the_cargo(
    first: int, rows: int, record_bytes: int, offset: int
) -> None:
    lease = lease_for(first, rows, offset=offset)
    plain, placed = first * ROW_BYTES, offset
    for sequence, record in enumerate(record_range(lease, record_bytes)):
        place = placement(lease, sequence, record_bytes)
        assert (place.sequence, place.record, place.offset) == (
            sequence,
            record,
            placed,
        )
        assert place.record * record_bytes + place.skip == plain
        assert 0 < place.length <= record_bytes - place.skip
        placed, plain = placed + place.length, plain + place.length
    assert placed == offset + lease.cargo_bytes
    assert plain == lease.start_byte + lease.cargo_bytes


def test_rows_that_cross_the_edges_of_records() -> None:
    lease = lease_for(2, 3)  # bytes 80 to 200 of records of 96
    places = [placement(lease, sequence, 96) for sequence in range(3)]
    told = [(p.record, p.offset, p.length, p.skip) for p in places]
    assert told == [(0, 0, 16, 80), (1, 16, 96, 0), (2, 112, 8, 0)]
    with pytest.raises(IndexError):
        placement(lease, 3, 96)


def test_a_frame_comes_apart_as_it_was_built() -> None:
    place = placement(LEASE, 1, 96)
    frame = parse_frame(build_frame(KEY, LEASE, place, RECORD))
    frame.authenticate(KEY, LEASE.digest)
    told = (
        frame.sequence,
        frame.record_index,
        frame.handle,
        frame.offset,
        frame.length,
    )
    assert told == (1, 1, LEASE.handle, 96, 96)
    assert bytes(frame.record) == RECORD


@given(position=st.integers(4, HEADER_BYTES - 1), bit=st.integers(0, 7))
def test_no_bit_of_the_header_can_change(position: int, bit: int) -> None:
    raw = bytearray(build_frame(KEY, LEASE, placement(LEASE, 0, 96), RECORD))
    raw[position] ^= 1 << bit
    with pytest.raises(AuthenticationError):
        parse_frame(raw).authenticate(KEY, LEASE.digest)


def test_the_mac_is_of_one_key_one_lease_one_tag() -> None:
    raw = build_frame(KEY, LEASE, placement(LEASE, 0, 96), RECORD)
    with pytest.raises(AuthenticationError):
        parse_frame(raw).authenticate(SecretKey.generate(), LEASE.digest)
    with pytest.raises(AuthenticationError):
        parse_frame(raw).authenticate(KEY, lease_for(1, 1).digest)
    with pytest.raises(AuthenticationError):
        parse_frame(raw[:-1] + bytes([raw[-1] ^ 1])).authenticate(KEY, LEASE.digest)
    # The ciphertext is the record's own tag's to protect, under the data key.
    parse_frame(raw[:80] + b"\xff" + raw[81:]).authenticate(KEY, LEASE.digest)


@pytest.mark.parametrize(
    "raw", [b"", bytes(95), b"\x02" + bytes(120), b"\x01\x01" + bytes(120)]
)
def test_what_is_no_frame(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_frame(raw)
