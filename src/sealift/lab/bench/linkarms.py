"""What the link benchmark times: one object an arm, each with everything it needs made.

Every timed call goes from the owner's plaintext in private memory to the device's verdict
about the plaintext in its memory. Two exceptions, named in the output: ``reencrypt*``
begin with what the owner sealed before (that flatters them), and so does ``direct (sealed
at home)``, the way data at rest goes.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from typing import Final

from sealift.channel.link.ahead import SealAhead, SealedBatch
from sealift.channel.link.announcement import LinkMode
from sealift.channel.link.crossing import FORWARDED_EXTRA_BYTES
from sealift.channel.link.send import suggested_record_bytes
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.aead import TAG_BYTES, Aead, Suite
from sealift.data.loader.windows import use_huge_pages
from sealift.lab.bench.linkdevice import (
    NAIVE,
    NAIVE_NONCE,
    TIMEOUT_S,
    DevicePeer,
    home_key,
    link_keys,
)
from sealift.lab.bench.linkshapes import (
    REENCRYPTS,
    Reencrypter,
    comes_whole,
    has_records,
)

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
