"""How long a flipped bit goes unnoticed, and what plaintext it leaves behind.

The bit is flipped in shared memory after the record was sealed, in the middle of a
transfer; the clock stops when the device has refused and overwritten everything. Then
its memory is read in two ways: the device counts what is not zero, and this process looks
for pieces of the plaintext in the whole address space of the device's.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sealift.channel.link.keys import FRAME_EXTRA_BYTES
from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.ring import SLOT_HEAD_BYTES
from sealift.errors import SealiftError
from sealift.lab.bench.linkarms import DEFAULT_SLOTS
from sealift.lab.bench.linkdevice import DevicePeer
from sealift.lab.bench.linkshapes import comes_whole, has_records
from sealift.lab.bench.report import Row

NEEDLE_BYTES: Final = 32
_CHUNK_BYTES: Final = 8 << 20
_WRITABLE: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw")


class FlippingTransport(MemfdTransport):
    """The sender's end; it flips one bit of one frame after it was sealed."""

    flip_at: int = -1
    flipped_s: float = 0.0
    sent_so_far: int = 0

    def commit(self) -> None:
        """Let a frame go, or what is left of it."""
        if self.sent_so_far == self.flip_at:
            spoiled = self._outgoing.slot_start() + SLOT_HEAD_BYTES + 100
            self.memory[spoiled] ^= 1
            self.flipped_s = time.monotonic()
        self.sent_so_far += 1
        super().commit()


def failure_row(
    peer: DevicePeer, mode: str, source: memoryview, record_bytes: int
) -> Row:
    """Flip a bit in the middle; when was it refused, and what is left?"""
    total = len(source)
    unit = record_bytes if has_records(mode) else total
    units = -(-total // unit)
    name = f"flipped {mode}"
    ring = (unit + FRAME_EXTRA_BYTES, units if comes_whole(mode) else DEFAULT_SLOTS)
    sender = peer.sender(
        name, mode, ring=ring, record_bytes=record_bytes, kind=FlippingTransport
    )
    transport = sender.transport
    assert isinstance(transport, FlippingTransport)
    # The header has gone; then come the announcement and the units.
    transport.flip_at = transport.sent_so_far + 1 + units // 2
    peer.ask("receive", link=name)
    with contextlib.suppress(SealiftError):
        sender.send(source)
    refused_s = peer.hear().get("refused_s")
    sender.close()
    row: Row = {"failure": str(mode), "kib": total >> 10, "refused": bool(refused_s)}
    if refused_s:
        row["detected_us"] = round((refused_s - transport.flipped_s) * 1e6)
    return row | what_is_left(peer, source, record_bytes)


def what_is_left(peer: DevicePeer, source: memoryview, record_bytes: int) -> Row:
    """What the device counts in its memory, and what is found in all of its process's."""
    return {
        "bytes_not_zero": peer.ask("left")["nonzero"],
        "plaintext_found": _count_needles(peer.process, source, record_bytes),
    }


def _count_needles(process: int, source: memoryview, every_bytes: int) -> int:
    """How many pieces of the plaintext lie in the writable memory of a process.

    One piece of 32 bytes from each ``every_bytes``. -1 if its memory may not be read.
    """
    starts = range(0, len(source) - NEEDLE_BYTES, every_bytes)
    wanted = {bytes(source[at : at + NEEDLE_BYTES]) for at in starts}
    pattern = re.compile(b"|".join(re.escape(each) for each in sorted(wanted)))
    try:
        found = {
            hit.group()
            for piece in _writable_memory(process)
            for hit in pattern.finditer(piece)
        }
    except PermissionError:
        return -1
    return len(found)


def _writable_memory(process: int) -> Iterator[bytes]:
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    ranges = [found.groups() for line in maps if (found := _WRITABLE.match(line))]
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for start, end in ((int(first, 16), int(last, 16)) for first, last in ranges):
            # Pieces overlap, so that nothing falls between two of them.
            for at in range(start, end, _CHUNK_BYTES - NEEDLE_BYTES):
                with contextlib.suppress(OSError):  # unmapped meanwhile
                    yield os.pread(memory.fileno(), min(_CHUNK_BYTES, end - at), at)
