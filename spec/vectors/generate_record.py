"""Make spec/vectors/record.json: python spec/vectors/generate_record.py [--check].

Keys and "random" bytes are counted, so that the file can be made again bit by bit.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from sealift.channel.record.commitment import CommitmentBuilder, key_commitment
from sealift.channel.record.record import RecordKeys, StreamOptions, make_header
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey

TARGET = Path(__file__).with_name("record.json")
KEY = bytes(range(32))
PLAINTEXT = bytes(n * 7 % 251 for n in range(150))


def counted_options() -> StreamOptions:
    """Stream id and salt from a counter; for vectors only."""
    numbers = count(0x40)
    return StreamOptions(random_bytes=lambda n: bytes(next(numbers) for _ in range(n)))


def stream(suite: Suite, plaintext: bytes, context: bytes = b"") -> dict[str, Any]:
    """A stream at rest: every byte of it, and the content commitment."""
    key = SecretKey(KEY)
    sealer = StreamSealer(
        key, total_bytes=len(plaintext), record_bytes=64, suite=suite, key_epoch=3,
        context=context, options=counted_options(),
    )  # fmt: skip
    content = CommitmentBuilder(key, total_bytes=len(plaintext), record_bytes=64)
    records = []
    for start in range(0, max(1, len(plaintext)), 64):
        piece = plaintext[start : start + 64]
        content.add(piece)
        records.append(sealer.seal(piece).hex())
    return {
        "suite": int(suite),
        "base_key": KEY.hex(),
        "context": context.hex(),
        "plaintext": plaintext.hex(),
        "header": sealer.header_bytes.hex(),
        "records": records,
        "trailer": sealer.trailer().hex(),
        "leaves": [leaf.hex() for leaf in content.leaves],
        "commitment": content.commitment().digest.to_text(),
        "key_commitment": {"north-train": key_commitment(key, "north-train").to_text()},
    }


def messages() -> dict[str, Any]:
    """Messages in frames; the second was sealed ahead, discarded and sealed again."""
    sealer = StreamSealer(
        SecretKey(KEY), total_bytes=None, record_bytes=64, options=counted_options()
    )
    plaintexts = [b"", b"hello", b"bye"]
    frames = [sealer.seal_frame(plaintexts[0])]
    sealer.discard(bytearray(sealer.seal_frame(b"a wrong guess")))
    frames.append(sealer.seal_frame(plaintexts[1]))
    frames.append(sealer.seal_frame(plaintexts[2], final=True))
    return {
        "base_key": KEY.hex(),
        "header": sealer.header_bytes.hex(),
        "plaintexts": [p.hex() for p in plaintexts],
        "frames": [frame.hex() for frame in frames],
        "trailer": sealer.trailer().hex(),
    }


def segments() -> dict[str, Any]:
    """Nonces beside the borders of 64 GiB segments, at 1 MiB records."""
    key = SecretKey(KEY)
    header = make_header(key, total_bytes=200 << 30, options=counted_options())
    keys = RecordKeys(key, header)
    indices = [0, 65535, 65536, 131071, 131072, 204799]
    return {
        "base_key": KEY.hex(),
        "header": header.encode().hex(),
        "nonces": {str(index): keys.nonce(index, index).hex() for index in indices},
        "sequence_9_of_record_0": keys.nonce(0, 9).hex(),
    }


def described() -> dict[str, Any]:
    """A header that commits to what its content is said to be."""
    columns = b'[["x","float32",[3]],["label","uint8",[]]]'
    header = make_header(
        SecretKey(KEY),
        total_bytes=150,
        record_bytes=64,
        description=columns,
        options=counted_options(),
    )
    return {
        "base_key": KEY.hex(),
        "description": columns.hex(),
        "header": header.encode().hex(),
    }


def generate() -> str:
    """The whole file."""
    vectors = {
        "spec": "spec/record.md, version 1",
        "streams": [
            stream(Suite.AES_256_GCM, PLAINTEXT),
            stream(Suite.CHACHA20_POLY1305, PLAINTEXT, b"a context"),
            stream(Suite.AES_256_GCM, b""),
            stream(Suite.AES_256_GCM, PLAINTEXT[:128]),
        ],
        "messages": messages(),
        "segments": segments(),
        "described": described(),
    }
    return json.dumps(vectors, indent=1) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        raise SystemExit(
            0 if TARGET.read_text() == generate() else "record.json differs"
        )
    TARGET.write_text(generate())
