"""What the link benchmark times: one object an arm, each with everything it needs made.

Every timed call goes from the owner's plaintext in private memory to the device's verdict
about the plaintext in its memory. Two exceptions, named in the output: ``reencrypt*``
begin with what the owner sealed before (that flatters them), and so does ``direct (sealed
at home)``, the way data at rest goes.

And how long a flipped bit goes unnoticed: it is flipped in shared memory after the record
was sealed, in the middle of a transfer; the clock stops when the device has refused and
overwritten everything. Then its memory is read in two ways: the device counts what is not
zero, and this process looks for pieces of the plaintext in the whole address space of the
device's.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_bytes
from typing import Final

from benchmarks.link.device import (
    NAIVE,
    NAIVE_NONCE,
    TIMEOUT_S,
    DevicePeer,
    home_key,
    link_keys,
)
from benchmarks.link.shapes import (
    REENCRYPTS,
    Reencrypter,
    comes_whole,
    has_records,
)
from benchmarks.report import Row
from sealift.channel.link.announcement import LinkMode
from sealift.channel.link.openers import FORWARDED_EXTRA_BYTES
from sealift.channel.link.send import SealAhead, SealedBatch, suggested_record_bytes
from sealift.channel.record.frames import FRAME_EXTRA_BYTES
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import SLOT_HEAD_BYTES, MemfdTransport
from sealift.crypto.aead import TAG_BYTES, Aead, Suite
from sealift.data.loader.windows import use_huge_pages
from sealift.errors import SealiftError, require_kind

DEFAULT_SLOTS: Final = 4
APART_SLOTS: Final = 32  # a device with memory of its own takes half by one call
HOME: Final = "direct (sealed at home)"
MAX_SERIAL_BYTES: Final = 256 << 20  # modes that need the whole transfer in the link
_NAIVE_FRAME_BYTES: Final = 1 << 20
_RANDOM_BYTES: Final = 1 << 20


def nothing() -> None:
    """What most arms need to have done before a repeat."""


@dataclass(slots=True)
class LinkArm:
    """One way to move the same bytes.

    Attributes:
        link: Its name.
        run: What is timed.
        close: Ends it.
        prepare: Run before each repeat, not timed; nothing for most.
        cpu_s: Processor seconds of this process in ``prepare`` and ``run``, all repeats.
    """

    link: str
    run: Callable[[], None]
    close: Callable[[], None]
    prepare: Callable[[], None] = nothing
    cpu_s: float = 0.0

    def timed(self, peer: DevicePeer) -> float:
        """Seconds of one repeat."""
        cpu = time.process_time()  # what is done beforehand is done all the same
        self.prepare()
        peer.ask("receive", link=self.link)
        start = time.perf_counter()
        self.run()
        taken = time.perf_counter() - start
        self.cpu_s += time.process_time() - cpu
        peer.hear()
        return taken


def make_arm(
    peer: DevicePeer,
    name: str,
    source: memoryview,
    *,
    slots: int = DEFAULT_SLOTS,
    record_bytes: int = 0,
    label: str = "",
) -> LinkArm:
    """One arm: its link, and what it needs beforehand."""
    link, record = label or name, record_bytes or suggested_record_bytes(len(source))
    if name == NAIVE:
        return _naive(peer, link, source, slots)
    mode = LinkMode.DIRECT_OVERLAP if name == HOME else name
    # Serial ways keep all of a transfer in the link; the others a few records.
    unit = record if has_records(mode) else len(source)
    slots = -(-len(source) // unit) if comes_whole(mode) else slots
    # Forwarded frames are the longest; slots are rounded up to the same size.
    ring = max(unit, 256) + FORWARDED_EXTRA_BYTES, max(slots, 1)
    seed = token_bytes(32)
    sender = peer.sender(link, mode, ring=ring, record_bytes=record, seed=seed)
    run: Callable[[], None] = partial(sender.send, source)
    prepare = nothing
    if name == HOME:
        sealer = StreamSealer(
            home_key(seed), total_bytes=len(source), record_bytes=record
        )
        starts = range(0, len(source), record)
        sealed = [sealer.seal(source[start : start + record]) for start in starts]
        run = partial(sender.forward, sealer.header_bytes, sealed, len(source))
    elif mode in REENCRYPTS:
        run = Reencrypter(sender, source).send
    elif sender.mode is LinkMode.SEAL_AHEAD:
        run, prepare = _ahead(SealAhead(sender), source)
    return LinkArm(link, run, sender.close, prepare)


def _ahead(
    ahead: SealAhead, source: memoryview
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Sending a batch, and sealing it before."""
    batches: list[SealedBatch] = []
    ahead.seal(source)  # once before, so that pages exist
    ahead.discard()
    return (
        lambda: ahead.send(batches.pop()),
        lambda: batches.append(ahead.seal(source)),
    )


def _naive(peer: DevicePeer, link: str, source: memoryview, slots: int) -> LinkArm:
    """The library's one-shot call over everything, through the same memory."""
    seed = token_bytes(32)
    transport = peer.connect(link, NAIVE, seed, ring=(_NAIVE_FRAME_BYTES, slots))
    peer.hear()
    aead = Aead(Suite.AES_256_GCM, link_keys(seed).to_device)

    def run() -> None:
        sealed = memoryview(aead.seal(NAIVE_NONCE, source, b""))
        transport.send(len(sealed).to_bytes(8, "big"))
        for start in range(0, len(sealed), _NAIVE_FRAME_BYTES):
            transport.send(sealed[start : start + _NAIVE_FRAME_BYTES])
        transport.receive(TIMEOUT_S)

    return LinkArm(link, run, transport.close)


@contextmanager
def arms_over(
    peer: DevicePeer, names: Sequence[str], size: int, slots: int
) -> Iterator[list[LinkArm]]:
    """The named arms over fresh memory of a size; those that cannot take it are left out."""
    source = touched_memory(size)
    peer.ask("memory", nbytes=size)
    arms = [
        make_arm(peer, name, source, slots=slots) for name in names if _fits(name, size)
    ]
    yield arms
    close_all(peer, arms)


def close_all(peer: DevicePeer, arms: Sequence[LinkArm]) -> None:
    """Both ends of every arm."""
    for arm in arms:
        arm.close()
        peer.ask("drop", link=arm.link)


def touched_memory(nbytes: int) -> memoryview:
    """Random bytes in private memory of large pages, as NumPy takes for its arrays."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, nbytes, flags=flags)
    use_huge_pages(memory)
    view = memoryview(memory)
    for start in range(0, nbytes, _RANDOM_BYTES):
        part = view[start : start + _RANDOM_BYTES]
        part[:] = os.urandom(len(part))
    return view


def _fits(name: str, nbytes: int) -> bool:
    if name in (HOME, NAIVE):
        return nbytes + TAG_BYTES < 2**31 - 1
    return not comes_whole(name) or nbytes <= MAX_SERIAL_BYTES


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
    transport = require_kind(sender.transport, FlippingTransport)
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
