"""Sealed files and parsers under random content and random damage."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sealift.channel.record.commitment import verify_leaves
from sealift.channel.record.layout import FramePrefix, StreamHeader, Trailer
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError
from tests.sim.examples import examples

KEY = SecretKey.from_bytes(b"k" * 32)
RECORD_BYTES = st.sampled_from([64, 96, 128, 1024])


@examples(60)
@given(pieces=st.lists(st.binary(max_size=300), max_size=8), record_bytes=RECORD_BYTES)
def test_any_pieces_read_back(pieces, record_bytes):
    plaintext = b"".join(pieces)
    with tempfile.TemporaryDirectory() as folder:
        card = write_sealed_file(
            Path(folder) / "x", pieces, key=KEY,
            total_bytes=len(plaintext), record_bytes=record_bytes,
        )  # fmt: skip
        with SealedFileReader(card.path, KEY) as reader:
            assert reader.read(0, len(plaintext)) == plaintext
            reader.verify(verify_leaves(card.leaves, card.content, data_key=KEY))


@examples(150)
@given(plaintext=st.binary(max_size=400), damage=st.data())
def test_any_change_to_a_file_is_caught(plaintext, damage):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        write_sealed_file(
            path, [plaintext], key=KEY, total_bytes=len(plaintext), record_bytes=64
        )
        raw = bytearray(path.read_bytes())
        start = damage.draw(st.integers(0, len(raw)))
        end = damage.draw(st.integers(start, min(len(raw), start + 100)))
        patch = damage.draw(st.binary(max_size=100))
        changed = bytes(raw[:start]) + patch + bytes(raw[end:])
        if changed == bytes(raw):
            return
        path.write_bytes(changed)
        try:
            with SealedFileReader(path, KEY) as reader:
                reader.verify()
        except (AuthenticationError, MalformedError):
            return
        raise AssertionError("a changed file verified")


@given(st.binary(max_size=200))
def test_parsers_return_an_object_or_malformed(raw):
    for parse in (
        StreamHeader.parse,
        Trailer.parse,
        lambda b: FramePrefix.parse(b[:16], len(b)),
    ):
        try:
            parsed = parse(raw)
        except MalformedError:
            continue
        assert raw.startswith(parsed.encode())


@given(st.binary(min_size=112, max_size=112))
def test_a_header_that_parses_encodes_to_the_same_bytes(tail):
    raw = b"SEALIFT\x01" + tail
    try:
        header = StreamHeader.parse(raw)
    except MalformedError:
        return
    assert header.encode() == raw
