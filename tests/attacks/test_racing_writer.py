"""H3: somebody writes to the memory that a record is opened from.

Some code paths of AES-GCM read the ciphertext twice, once for the tag and once for the
plaintext. A writer in between makes the tag pass and the plaintext another. Bytes that
others can write are therefore copied before they are opened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sealift.channel.record.opener import RecordOpener, RecordPosition
from sealift.channel.record.record import StreamOptions
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import SecretKey
from tests.sim.twicereading import TwiceReadingBackend, TwiceReadingCipher

RACING = Path(__file__).parents[1] / "sim" / "racing.py"
# What OpenSSL may use: everything; no AVX2, AVX-512, VAES; neither AES nor CLMUL.
CODE_PATHS = {
    "all": "",
    "plain-aes-ni": ":0",
    "no-aes-ni": "~0x200000200000000:0",
}
KEY = SecretKey.from_bytes(b"k" * 32)


def run_race(folder, mode, capabilities, seconds):
    environment = dict(os.environ, OPENSSL_ia32cap=capabilities)
    if not capabilities:
        del environment["OPENSSL_ia32cap"]
    done = subprocess.run(
        [sys.executable, str(RACING), str(folder), mode, str(seconds)],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.distributed
@pytest.mark.parametrize("code_path", list(CODE_PATHS))
def test_a_copied_record_is_never_another_than_the_tag_says(tmp_path, code_path):
    counts = run_race(tmp_path, "copied", CODE_PATHS[code_path], 1.5)
    assert counts["wrong"] == 0
    assert counts["accepted"] + counts["refused"] > 10


@pytest.mark.distributed
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="this machine lacks a second core to race on",
)
def test_opening_in_place_loses_the_race(tmp_path):
    """The positive control: the same race without the copy yields wrong plaintext."""
    seen = {}
    for name in ("no-aes-ni", "plain-aes-ni"):
        seen[name] = run_race(tmp_path, "in-place", CODE_PATHS[name], 20)
        if seen[name]["wrong"]:
            return
    pytest.fail(f"the writer never won, so this race proves nothing: {seen}")


@pytest.mark.parametrize(("private", "wrong"), [(False, False), (True, True)])
def test_a_writer_exactly_between_two_reads(private, wrong):
    """The same without luck: copied it is right, in place (the mutant) it is wrong."""
    sealer = StreamSealer(KEY, total_bytes=64, record_bytes=64)
    shared = bytearray(sealer.seal(b"p" * 64))

    def write_between():
        shared[7] ^= 0xFF

    options = StreamOptions(TwiceReadingBackend(write_between).cipher)
    opener = RecordOpener(KEY, sealer.header_bytes, options=options)
    out = bytearray(64)
    opener.open_at(
        RecordPosition(0, 0, final=True), memoryview(shared), out, private=private
    )
    assert (bytes(out) != b"p" * 64) == wrong


def test_a_sealed_file_is_read_not_mapped(tmp_path):
    """Its reader opens private bytes: a change after the read cannot be seen."""
    from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file

    card = write_sealed_file(
        tmp_path / "x", [b"p" * 64], key=KEY, total_bytes=64, record_bytes=64
    )

    def write_between():
        raw = bytearray(card.path.read_bytes())
        raw[127] ^= 0xFF
        card.path.write_bytes(raw)

    with SealedFileReader(card.path, KEY) as reader:
        keys = reader._opener.keys
        number, cipher, mask = keys._segment_of(0)
        keys._segment = (number, TwiceReadingCipher(cipher, write_between), mask)
        assert reader.open_record(0) == b"p" * 64
