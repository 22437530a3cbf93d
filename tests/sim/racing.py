"""A second process that writes to a shared mapping while this one opens from it.

    python tests/sim/racing.py FOLDER copied|in-place SECONDS

prints {"accepted", "wrong", "refused"}: opens whose tag passed, those among them whose
plaintext is not what was sealed, and opens that were refused. It runs as a process of
its own because OpenSSL chooses its code path at start (``OPENSSL_ia32cap``).
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from pathlib import Path

from sealift.channel.record.opener import RecordOpener, RecordPosition
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError

RECORD_BYTES = 1 << 20
STOP = RECORD_BYTES + 16  # this byte of the mapping tells the writer to end
PLACE = RECORD_BYTES // 2 + 5

WRITER = """
import mmap, os, sys
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
place, stop = int(sys.argv[2]), int(sys.argv[3])
original = shared[place]
parent = os.getppid()
while not shared[stop] and os.getppid() == parent:
    for _ in range(2000):
        shared[place] = original ^ 0xFF
        shared[place] = original
"""


def main() -> None:
    folder, mode, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    key = SecretKey.generate()
    plaintext = bytes(range(256)) * (RECORD_BYTES // 256)
    sealer = StreamSealer(key, total_bytes=RECORD_BYTES, record_bytes=RECORD_BYTES)
    path = folder / f"shared-{mode}"
    path.write_bytes(sealer.seal(plaintext) + b"\0")
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    command = [sys.executable, "-c", WRITER, str(path), str(PLACE), str(STOP)]
    with subprocess.Popen(command) as writer:
        try:
            opener = RecordOpener(key, sealer.header_bytes)
            print(json.dumps(race(opener, shared, plaintext, mode, seconds)))
        finally:
            shared[STOP] = 1
            writer.wait()


def race(
    opener: RecordOpener, shared: mmap.mmap, plaintext: bytes, mode: str, seconds: float
) -> dict[str, int]:
    """Open again and again; the mutant opens where the writer writes."""
    record = memoryview(shared)[: RECORD_BYTES + 16]
    out = bytearray(RECORD_BYTES)
    counts = {"accepted": 0, "wrong": 0, "refused": 0}
    place = RecordPosition(0, 0, final=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (mode == "in-place" and counts["wrong"]):
        try:
            opener.open_at(place, record, out, private=mode == "in-place")
        except AuthenticationError:
            counts["refused"] += 1
            continue
        counts["accepted"] += 1
        counts["wrong"] += out != plaintext
    record.release()
    return counts


if __name__ == "__main__":
    main()
