"""Sealed files: whole or not at all, read at random, every change caught."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sealift.channel.record.commitment import verify_leaves
from sealift.channel.record.layout import HEADER_BYTES, TRAILER_BYTES
from sealift.channel.record.sealedfile import (
    RawSealedFile,
    SealedFileReader,
    write_sealed_file,
)
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    SealiftError,
    UnavailableError,
    UsageError,
)

KEY = SecretKey.from_bytes(b"k" * 32)
STRIDE = 64 + 16
PLAINTEXT = os.urandom(64 * 5 + 7)


def write(path, plaintext=PLAINTEXT, *, key=KEY, **options):
    return write_sealed_file(
        path,
        [plaintext],
        key=key,
        total_bytes=len(plaintext),
        record_bytes=64,
        **options,
    )


def read_all(path, key=KEY):
    with SealedFileReader(path, key) as reader:
        plaintext = reader.read(0, reader.total_bytes)
        reader.verify()
        return plaintext


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 1000])
def test_a_file_reads_back(tmp_path, suite, length):
    plaintext = os.urandom(length)
    card = write(tmp_path / "x.sealed", plaintext, suite=suite)
    assert read_all(card.path) == plaintext
    assert card.total_bytes == length


def test_pieces_of_any_size_give_the_same_content(tmp_path):
    pieces = [PLAINTEXT[:1], b"", PLAINTEXT[1:200], memoryview(PLAINTEXT)[200:]]
    card = write_sealed_file(
        tmp_path / "x", pieces, key=KEY, total_bytes=len(PLAINTEXT), record_bytes=64
    )
    assert read_all(card.path) == PLAINTEXT
    assert card.content == write(tmp_path / "y").content


def test_any_range_can_be_read_alone(tmp_path):
    card = write(tmp_path / "x")
    with SealedFileReader(card.path, KEY) as reader:
        for offset, length in [(0, 0), (0, 1), (63, 2), (64, 64), (1, 320), (326, 1)]:
            assert reader.read(offset, length) == PLAINTEXT[offset : offset + length]
        assert reader.open_record(5) == PLAINTEXT[320:]
        out = bytearray(64)
        assert reader.open_record_into(2, out) == 64
        assert bytes(out) == PLAINTEXT[128:192]


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 328), (327, 1), (0, -1)])
def test_a_range_outside_the_file_is_refused(tmp_path, offset, length):
    path = write(tmp_path / "x").path
    with SealedFileReader(path, KEY) as reader, pytest.raises(UsageError):
        reader.read(offset, length)


def test_the_raw_view_needs_no_key_and_fits_together(tmp_path):
    path = write(tmp_path / "x").path
    with RawSealedFile(path) as raw:
        parts = [
            raw.header_bytes,
            *map(raw.record, range(raw.record_count)),
            raw.trailer,
        ]
        assert b"".join(parts) == path.read_bytes()
        assert [raw.record_length(i) for i in (0, 5)] == [80, 23]
        out = bytearray(80)
        assert raw.record_into(1, out) == 80
        assert bytes(out) == raw.record(1)


# --------------------------------------------------------------------- bad files


def test_a_wrong_key_is_refused_at_once(tmp_path):
    path = write(tmp_path / "x").path
    with pytest.raises(AuthenticationError):
        SealedFileReader(path, SecretKey.generate())


@pytest.mark.parametrize("cut", [1, TRAILER_BYTES, TRAILER_BYTES + 23, STRIDE * 3, 400])
def test_a_truncated_file_is_malformed_and_says_where(tmp_path, cut):
    path = write(tmp_path / "x").path
    raw = path.read_bytes()
    path.write_bytes(raw[:-cut])
    with pytest.raises(MalformedError) as caught:
        SealedFileReader(path, KEY)
    assert caught.value.offset == len(raw) - cut
    assert caught.value.code == "bad-sealed-file"


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_a_file_without_a_header_is_malformed(tmp_path, length):
    path = write(tmp_path / "x").path
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(MalformedError):
        RawSealedFile(path)


def test_a_longer_file_is_malformed(tmp_path):
    path = write(tmp_path / "x").path
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(MalformedError):
        SealedFileReader(path, KEY)


def test_a_file_cut_while_it_is_read_is_malformed(tmp_path):
    path = write(tmp_path / "x").path
    with SealedFileReader(path, KEY) as reader:
        os.truncate(path, HEADER_BYTES + STRIDE)
        with pytest.raises(MalformedError) as caught:
            reader.open_record(1)
        assert caught.value.offset == HEADER_BYTES + STRIDE


def record_slice(index):
    start = HEADER_BYTES + index * STRIDE
    return slice(start, start + STRIDE)


def swap_records(raw, other):
    raw[record_slice(0)], raw[record_slice(1)] = (
        raw[record_slice(1)],
        raw[record_slice(0)],
    )


def splice_a_record(raw, other):
    raw[record_slice(2)] = other[record_slice(2)]


def repeat_a_record(raw, other):
    raw[record_slice(3)] = raw[record_slice(2)]


def splice_the_header(raw, other):
    raw[:HEADER_BYTES] = other[:HEADER_BYTES]


def splice_the_trailer(raw, other):
    raw[-TRAILER_BYTES:] = other[-TRAILER_BYTES:]


def flip_the_last_tag(raw, other):
    raw[-TRAILER_BYTES - 1] ^= 1


@pytest.mark.parametrize(
    "spoil",
    [
        swap_records, splice_a_record, repeat_a_record, splice_the_header,
        splice_the_trailer, flip_the_last_tag,
    ],
)  # fmt: skip
def test_a_rearranged_file_is_refused(tmp_path, spoil):
    path, other = write(tmp_path / "x").path, write(tmp_path / "y").path
    raw = bytearray(path.read_bytes())
    spoil(raw, other.read_bytes())
    path.write_bytes(raw)
    with pytest.raises(AuthenticationError):
        read_all(path)


def test_a_swapped_file_of_the_same_key_is_caught_by_the_commitment(tmp_path):
    # Every tag of the other file is right: only what was committed to tells.
    card = write(tmp_path / "x")
    other = write(tmp_path / "y", os.urandom(len(PLAINTEXT)))
    other.path.replace(card.path)
    leaves = verify_leaves(card.leaves, card.content, data_key=KEY)
    with SealedFileReader(card.path, KEY) as reader:
        reader.verify()
        with pytest.raises(IntegrityError):
            reader.verify(leaves)


def test_header_and_trailer_must_agree(tmp_path):
    path = write(tmp_path / "x").path
    raw = bytearray(path.read_bytes())
    raw[-TRAILER_BYTES + 15] ^= 1
    path.write_bytes(raw)
    with pytest.raises(MalformedError):
        RawSealedFile(path)


def test_what_is_not_a_file_is_unavailable(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "missing"):
        with pytest.raises(UnavailableError):
            RawSealedFile(path)


# ------------------------------------------------------- whole or not at all


@pytest.mark.parametrize("said", [0, len(PLAINTEXT) - 1, len(PLAINTEXT) + 1, 64, 1000])
def test_a_source_of_another_length_leaves_nothing(tmp_path, said):
    with pytest.raises(MalformedError) as caught:
        write_sealed_file(
            tmp_path / "x", [PLAINTEXT], key=KEY, total_bytes=said, record_bytes=64
        )
    assert caught.value.code == "source-length"
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_leaves_nothing(tmp_path):
    def source():
        yield bytes(100)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sealed_file(
            tmp_path / "x", source(), key=KEY, total_bytes=1000, record_bytes=64
        )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_unless_told(tmp_path):
    path = write(tmp_path / "x").path
    before = path.read_bytes()
    with pytest.raises(UsageError) as caught:
        write(path)
    assert caught.value.code == "output-exists"
    assert path.read_bytes() == before
    write(path, replace=True)
    assert path.read_bytes() != before, "sealed again under a fresh header"
    assert read_all(path) == PLAINTEXT


def test_a_failing_replacement_keeps_what_was_there(tmp_path):
    path = write(tmp_path / "x").path
    before = path.read_bytes()
    with pytest.raises(MalformedError):
        write_sealed_file(
            path, [b"1"], key=KEY, total_bytes=2, record_bytes=64, replace=True
        )
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


FULL_DISK = """
import resource, sys
from sealift.channel.record.sealedfile import write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_sealed_file(sys.argv[1], [bytes(1 << 20)], key=SecretKey.generate(),
                      total_bytes=1 << 20, record_bytes=1 << 16)
except SealiftError as error:
    print(error.exit_code, error.code, error)
"""


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path):
    # The file size limit makes write(2) fail in the middle, as a full disk does.
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "x")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("3 disk-full cannot write")
    assert "the disk is full" in done.stdout
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_enospc_has_the_same_words(tmp_path):
    from sealift.channel.record.outputfile import OutputFile

    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(UnavailableError) as caught:
        OutputFile(descriptor, tmp_path / "x").write(b"x")
    os.close(descriptor)
    assert caught.value.code == "disk-full"


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    with pytest.raises(SealiftError) as caught:
        write(tmp_path / "missing" / "x")
    assert caught.value.exit_code == 3


def test_sealed_files_are_not_readable_by_others(tmp_path):
    assert write(tmp_path / "x").path.stat().st_mode & 0o077 == 0


# ------------------------------------------------------------ constant memory

MEMORY = """
import sys
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey

def high_water_kib():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith("VmHWM")).split()[1])

path, total = sys.argv[1], int(sys.argv[2])
piece = bytes(range(256)) * 4096
key = SecretKey.generate()
baseline = high_water_kib()
write_sealed_file(path, (piece for _ in range(total >> 20)), key=key, total_bytes=total)
with SealedFileReader(path, key) as reader:
    reader.verify()
    assert reader.read(total - 5, 5) == piece[-5:]
print(high_water_kib() - baseline)
"""


def memory_above_baseline_mib(path, total_bytes):
    """Peak of a process that seals and opens a file, above what it had before."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path), str(total_bytes)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    path.unlink()
    return int(done.stdout) / 1024


def test_memory_is_constant_in_file_size(tmp_path):
    small = memory_above_baseline_mib(tmp_path / "small", 16 << 20)
    large = memory_above_baseline_mib(tmp_path / "large", 256 << 20)
    assert small < 32
    assert abs(large - small) < 8, "sixteen times the file, the same memory"


@pytest.mark.soak
def test_two_gib_stay_under_100_mib(tmp_path):
    assert memory_above_baseline_mib(tmp_path / "large", 2 << 30) < 100
