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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sealift.channel.link.ahead import SealAhead
from sealift.channel.link.crossing import FORWARDED_EXTRA_BYTES
from sealift.channel.link.keys import LinkKeys
from sealift.channel.link.mode import LinkMode
from sealift.channel.link.send import LinkSender, suggested_record_bytes
from sealift.channel.sealer import StreamSealer
from sealift.crypto.aead import TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.data.loader.windows import use_huge_pages
from sealift.lab.bench.linkdevice import NAIVE_NONCE, TIMEOUT_S
from sealift.lab.bench.linkpeer import DevicePeer
from sealift.lab.bench.linkreencrypt import OwnersRecords, Reencrypter
from sealift.lab.bench.linkshapes import (
    ShapedSender,
    comes_whole,
    has_records,
    sender_of,
)

DEFAULT_SLOTS: Final = 4
APART_SLOTS: Final = (
    32  # a device with memory of its own takes half of them by one call
)
HOME: Final = "direct (sealed at home)"
NAIVE: Final = "naive"
MAX_SERIAL_BYTES: Final = 256 << 20  # modes that need the whole transfer in the link
_NAIVE_FRAME_BYTES: Final = 1 << 20
_RANDOM_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Arm:
    """One way to move the same bytes.

    Attributes:
        link: Its name.
        prepare: Run before each repeat, not timed; nothing for most.
        run: What is timed.
        close: Ends it.
        cpu_s: Processor seconds of this process in ``prepare`` and ``run``, all repeats.
    """

    link: str
    run: Callable[[], None]
    close: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    cpu_s: float = 0.0


def make_arms(
    peer: DevicePeer, names: list[str], source: memoryview, slots: int = DEFAULT_SLOTS
) -> list[Arm]:
    """The named arms for one size; those that cannot take it are left out."""
    fitting = [name for name in names if _fits(name, len(source))]
    return [make_arm(peer, name, source, slots=slots) for name in fitting]


def make_arm(
    peer: DevicePeer,
    name: str,
    source: memoryview,
    *,
    slots: int = DEFAULT_SLOTS,
    record_bytes: int | None = None,
    label: str | None = None,
) -> Arm:
    """One arm: its link, and what it needs beforehand."""
    record_bytes = record_bytes or suggested_record_bytes(len(source))
    maker = _Maker(peer, label or name, source, slots, record_bytes)
    if name == NAIVE:
        return maker.naive()
    if name == HOME:
        return maker.home()
    return maker.mode(name)


def timed(peer: DevicePeer, arm: Arm) -> float:
    """Seconds of one repeat."""
    cpu = time.process_time()  # what is done beforehand is done all the same
    arm.prepare()
    peer.ask("receive", link=arm.link)
    start = time.perf_counter()
    arm.run()
    taken = time.perf_counter() - start
    arm.cpu_s += time.process_time() - cpu
    peer.answer()
    return taken


class _Maker:
    def __init__(
        self,
        peer: DevicePeer,
        link: str,
        source: memoryview,
        slots: int,
        record_bytes: int,
    ) -> None:
        self._peer = peer
        self._link = link
        self._source = source
        self._slots = slots
        self._record_bytes = record_bytes
        self._keys = LinkKeys(SecretKey.generate(), SecretKey.generate())
        self._home = SecretKey.generate()

    def mode(self, name: str) -> Arm:
        """A mode of the link engine, or one of the weaker shapes."""
        sender = self._sender(name, name)
        if isinstance(sender, ShapedSender) and sender.layout.reencrypts:
            return self._reencrypting(sender)
        if sender.mode is LinkMode.SEAL_AHEAD:
            return self._ahead(sender)
        return self._arm(sender, lambda: sender.send(self._source))

    def home(self) -> Arm:
        """Forward what the owner sealed at rest."""
        sealer = StreamSealer(
            self._home, total_bytes=len(self._source), record_bytes=self._record_bytes
        )
        records = [sealer.seal(part) for part in self._parts()]
        sender = self._sender(LinkMode.DIRECT_OVERLAP, LinkMode.DIRECT_OVERLAP)
        total = len(self._source)
        return self._arm(
            sender, lambda: sender.forward(sealer.header_bytes, records, total)
        )

    def naive(self) -> Arm:
        """The library's one-shot call over everything, through the same memory."""
        ring = (_NAIVE_FRAME_BYTES, self._slots)
        transport = self._peer.connect(self._link, NAIVE, self._keys, ring=ring)
        self._peer.answer()
        aead = Aead(Suite.AES_256_GCM, self._keys.to_device)

        def run() -> None:
            sealed = memoryview(aead.seal(NAIVE_NONCE, self._source, b""))
            transport.send(len(sealed).to_bytes(8, "big"))
            for start in range(0, len(sealed), _NAIVE_FRAME_BYTES):
                transport.send(sealed[start : start + _NAIVE_FRAME_BYTES])
            transport.receive(TIMEOUT_S)

        return Arm(self._link, run, transport.close)

    def _reencrypting(self, sender: ShapedSender) -> Arm:
        unit = self._record_bytes if sender.layout.records else len(self._source)
        records = OwnersRecords(self._home, self._source, unit)
        host = Reencrypter(sender, unit)
        return self._arm(sender, lambda: host.send(records))

    def _ahead(self, sender: LinkSender) -> Arm:
        ahead = SealAhead(sender)
        batches = [ahead.seal(self._source)]  # once before, so that pages exist
        ahead.discard()
        batches.clear()
        return self._arm(
            sender,
            lambda: ahead.send(batches.pop()),
            lambda: batches.append(ahead.seal(self._source)),
        )

    def _sender(self, name: str, mode: str) -> LinkSender:
        transport = self._peer.connect(
            self._link, name, self._keys, ring=self._ring(mode), home=self._home
        )
        sender = sender_of(
            mode,
            transport,
            self._keys,
            record_bytes=self._record_bytes,
            timeout_s=TIMEOUT_S,
        )
        self._peer.answer()
        return sender

    def _arm(
        self,
        sender: LinkSender,
        run: Callable[[], None],
        prepare: Callable[[], None] = lambda: None,
    ) -> Arm:
        return Arm(self._link, run, sender.close, prepare)

    def _ring(self, mode: str) -> tuple[int, int]:
        """Serial ways keep all of a transfer in the link; the others a few records."""
        total = len(self._source)
        unit = self._record_bytes if has_records(mode) else total
        slots = -(-total // unit) if comes_whole(mode) else self._slots
        # Forwarded frames are the longest; slots are rounded up to the same size.
        return max(unit, 256) + FORWARDED_EXTRA_BYTES, max(slots, 1)

    def _parts(self) -> list[memoryview]:
        step = self._record_bytes
        starts = range(0, len(self._source), step)
        return [self._source[start : start + step] for start in starts]


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
