"""The vectors of spec/record.md, checked without a line of sealift."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import blake3
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FOLDER = Path(__file__).parents[2] / "spec" / "vectors"
VECTORS = json.loads((FOLDER / "record.json").read_text())
UNHEX = bytes.fromhex


def kdf(key, label, context=b"", length=32):
    label = f"sealift v1 {label}".encode()
    info = bytes([len(label)]) + label + context
    return HKDF(SHA256(), length, None, info).derive(key)


def segment(base, header, index):
    """Key and mask of a record."""
    number = index * int.from_bytes(header[12:16], "big") // (64 << 30)
    material = kdf(kdf(base, "stream secret", header), "stream segment",
                   number.to_bytes(8, "big"), 44)  # fmt: skip
    return material[:32], int.from_bytes(material[32:], "big")


def nonce(mask, sequence):
    return (mask ^ sequence).to_bytes(12, "big")


def open_record(base, header, record, index, final, sequence, context=b""):
    key, mask = segment(base, header, index)
    cipher = {1: AESGCM, 2: ChaCha20Poly1305}[header[8]](key)
    bound = sha256(header).digest() + index.to_bytes(8, "big") + bytes([final])
    bound += sha256(context).digest()
    return cipher.decrypt(nonce(mask, sequence), record, bound)


def check_trailer(base, header, records, total, trailer):
    key = kdf(kdf(base, "stream secret", header), "stream trailer")
    counts = len(records).to_bytes(8, "big") + total.to_bytes(8, "big")
    tags = b"".join(record[-16:] for record in records)
    root = blake3.blake3(header + tags + counts, key=key).digest()
    assert trailer == b"SEALEND\x01" + counts + root


def labelled(label, *parts):
    parts = (label.encode(), *parts)
    return sha256(b"".join(len(p).to_bytes(8, "big") + p for p in parts)).digest()


def tree(hashes):
    """RFC 9162 section 2.1.1."""
    if len(hashes) == 1:
        return hashes[0]
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return sha256(b"\1" + tree(hashes[:split]) + tree(hashes[split:])).digest()


@pytest.mark.parametrize("vector", VECTORS["streams"])
def test_streams(vector):
    base, header = UNHEX(vector["base_key"]), UNHEX(vector["header"])
    records = [UNHEX(record) for record in vector["records"]]
    plaintext = UNHEX(vector["plaintext"])
    assert header[88:] == kdf(base, "stream key commitment", header[:88])
    opened = [
        open_record(base, header, record, index, index == len(records) - 1, index,
                    UNHEX(vector["context"]))
        for index, record in enumerate(records)
    ]  # fmt: skip
    assert b"".join(opened) == plaintext
    check_trailer(base, header, records, len(plaintext), UNHEX(vector["trailer"]))


def test_a_described_header():
    vector = VECTORS["described"]
    base, header = UNHEX(vector["base_key"]), UNHEX(vector["header"])
    said = sha256(UNHEX(vector["description"])).digest()
    context = b"description" + header[56:88] + said
    key = kdf(base, "content commitment")
    assert header[9] == 2
    assert header[24:40] == kdf(key, "content commitment", context, 16)
    assert header[88:] == kdf(base, "stream key commitment", header[:88])


@pytest.mark.parametrize("vector", VECTORS["streams"])
def test_content_commitments(vector):
    base, plaintext = UNHEX(vector["base_key"]), UNHEX(vector["plaintext"])
    key = kdf(base, "content commitment")
    pieces = [plaintext[i : i + 64] for i in range(0, max(1, len(plaintext)), 64)]
    leaves = [
        blake3.blake3(index.to_bytes(8, "big") + piece, key=key).digest()
        for index, piece in enumerate(pieces)
    ]
    assert [leaf.hex() for leaf in leaves] == vector["leaves"]
    digest = labelled(
        "sealift content commitment",
        kdf(key, "content commitment", b"check"),
        len(plaintext).to_bytes(8, "big"),
        (64).to_bytes(8, "big"),
        tree([sha256(b"\0" + leaf).digest() for leaf in leaves]),
    )
    assert vector["commitment"] == f"sha256:{digest.hex()}"
    for name, value in vector["key_commitment"].items():
        expected = kdf(base, "resource key commitment", name.encode()).hex()
        assert value == f"sha256:{expected}"


def test_messages():
    vector = VECTORS["messages"]
    base, header = UNHEX(vector["base_key"]), UNHEX(vector["header"])
    frames, sequences = [UNHEX(frame) for frame in vector["frames"]], []
    for index, frame in enumerate(frames):
        length, flags = (int.from_bytes(frame[i : i + 4], "big") for i in (0, 4))
        sequences.append(int.from_bytes(frame[8:16], "big"))
        assert length == len(frame) - 16
        assert flags in (0, 1 << 31)
        opened = open_record(
            base, header, frame[16:], index, flags >> 31, sequences[-1]
        )
        assert opened.hex() == vector["plaintexts"][index]
    assert sequences == [0, 2, 3], "a gap in the sequence, none in the index"
    records = [frame[16:] for frame in frames]
    check_trailer(base, header, records, 8, UNHEX(vector["trailer"]))


def test_segments():
    vector = VECTORS["segments"]
    base, header = UNHEX(vector["base_key"]), UNHEX(vector["header"])
    for index, expected in vector["nonces"].items():
        _, mask = segment(base, header, int(index))
        assert nonce(mask, int(index)).hex() == expected
    _, mask = segment(base, header, 0)
    assert nonce(mask, 9).hex() == vector["sequence_9_of_record_0"]


def test_the_generator_makes_the_same_file_again():
    command = [sys.executable, str(FOLDER / "generate_record.py"), "--check"]
    subprocess.run(command, check=True)
