"""The CUDA engine: records are opened and sealed in a GPU's own memory.

Copies run on their lanes, kernels on another; events chain them, and ranges of memory
that are in use keep the order of the calls. ``opening.open_cuda`` makes one.

What it protects depends on the GPU. A confidential GPU keeps the host out. On any other
the host's memory sees ciphertext only, but the bus carries the keys and the GPU's memory
is open to whoever administers the machine.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import Any, Final

from sealift.channel.cuda.batches import Batch, open_batch, seal_batch
from sealift.channel.cuda.confidential import Crossings
from sealift.channel.cuda.core import Core
from sealift.channel.cuda.crossing import is_small, send, send_packed
from sealift.channel.cuda.devicekey import CudaKey, expand_key, own_key
from sealift.channel.cuda.driver import Driver, GpuFacts, told
from sealift.channel.cuda.memory import CudaMemory, array_range, check_range, own_memory
from sealift.channel.cuda.pinned import PinnedBlock
from sealift.channel.cuda.plan import Kernels
from sealift.channel.cuda.streams import Joined, Ticket, on_device
from sealift.channel.cuda.tables import CudaVerdicts
from sealift.channel.device.device import (
    DeviceKey,
    DeviceMemory,
    Event,
    Part,
    RecordPlace,
    check_places,
    device_lost,
)
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError
from sealift.ids import Buffer

SLOTS: Final = 4


class CudaEngine:
    """See ``channel.device.device.DeviceEngine``. Any thread may call it.

    Args:
        driver: The GPU's primary context; the engine closes it.
        kernels: What runs on it.
        crossings: How copies are made.
        slots: Slots of each ring, and batches under way at once.
    """

    name = "cuda"

    def __init__(
        self,
        driver: Driver,
        kernels: Kernels,
        crossings: Crossings,
        *,
        slots: int = SLOTS,
    ) -> None:
        self.facts: GpuFacts = driver.facts
        self.crossings = crossings
        self._core = Core(driver, kernels, crossings, slots)
        self._blocks: list[PinnedBlock] = []
        self._process = os.getpid()
        atexit.register(self.close)

    @property
    def core(self) -> Core:
        """The parts, for what is built on this engine in this room."""
        self._require_alive()
        return self._core

    def suites(self) -> tuple[Suite, ...]:
        """What the kernels compute, fastest first."""
        return self._core.kernels.suites()

    def allocate(self, nbytes: int) -> CudaMemory:
        """Fresh memory, all zeroes."""
        self._require_alive()
        memory = self._core.allocate(nbytes)
        try:
            memory.scrub()
        except SealiftError:
            memory.close()
            raise
        return memory

    @told()
    def borrow(self, array: Any) -> CudaMemory:
        """The memory of a torch tensor or another ``__cuda_array_interface__``.

        It is kept alive until ``close``, which overwrites it. Call ``follow`` with its
        stream first if something is queued on it.

        Raises:
            UsageError: if it is no writable array without gaps on a GPU.
        """
        core = self.core
        address, nbytes = array_range(array, core.driver)
        return core.borrow(address, nbytes, array)

    @told()
    def pinned(self, nbytes: int) -> PinnedBlock | None:
        """Host memory that ``upload`` needs not copy; None where none is proven."""
        core = self.core
        if not core.crossings.pinned:
            return None
        block = PinnedBlock(core.driver, nbytes)
        self._blocks.append(block)
        return block

    @told()
    def key(self, suite: Suite, key: SecretKey) -> CudaKey:
        """Put a key on the GPU; it crosses the bus as it is (see above)."""
        return expand_key(self.core, suite, key)

    @told()
    def upload(
        self, host: Buffer, to: DeviceMemory, offset: int = 0
    ) -> Ticket | Joined:
        """Copy from the host; ``host`` must stay as it is until the event."""
        core, memory = self.core, own_memory(to)
        source = memoryview(host).cast("B")
        check_range(memory, offset, source.nbytes)
        return send(core, source, memory, offset, self._blocks)

    @told()
    def upload_packed(self, parts: Sequence[Part]) -> Joined:
        """Copy many small buffers in as few crossings as they fit into.

        Args:
            parts: Each a buffer, the memory it goes to, and the offset there.
        """
        small = [part for part in parts if is_small(part)]
        large = [self.upload(*part) for part in parts if not is_small(part)]
        return Joined([*large, *send_packed(self.core, small)])

    @told()
    def download(
        self,
        source: DeviceMemory,
        offset: int,
        out: bytearray | memoryview,
        *,
        after: Sequence[Event] = (),
    ) -> Ticket:
        """Copy to the host; ``out`` is whole when the event is past."""
        core, memory = self.core, own_memory(source)
        target = memoryview(out).cast("B")
        check_range(memory, offset, target.nbytes)
        address, end = memory.address + offset, offset + target.nbytes
        first = on_device(after)
        with core.lock:
            waits = [*first, *memory.hazards.before_read(offset, end)]
            ticket = core.back.submit(
                lambda stream: core.back_ring.fetch(target, address, stream),
                after=waits,
            )
            memory.hazards.reads(offset, end, ticket)
        return ticket

    @told()
    def open(
        self,
        key: DeviceKey,
        sealed: DeviceMemory,
        plain: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[Event] = (),
    ) -> CudaVerdicts:
        """Open every record, once the events in ``after`` are past."""
        check_places(places, sealed, plain)
        batch = Batch(own_key(key), own_memory(sealed), own_memory(plain), places)
        return open_batch(self.core, batch, after)

    @told()
    def seal(
        self,
        key: DeviceKey,
        plain: DeviceMemory,
        sealed: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[Event] = (),
    ) -> Ticket:
        """Seal every record; nonces are the caller's, fresh for ever."""
        check_places(places, sealed, plain)
        batch = Batch(own_key(key), own_memory(sealed), own_memory(plain), places)
        return seal_batch(self.core, batch, after)

    @told()
    def follow(self, stream: int) -> None:
        """From now on, wait for what somebody else's stream (its pointer) was given."""
        core = self.core
        event = core.driver.event()
        core.driver.record(event, core.driver.foreign_stream(stream))
        with core.lock:
            for lane in (core.crypto, *(way.lane for way in core.up), core.back):
                lane.driver.wait(lane.stream, event)
        core.driver.release(event)

    @told()
    def lead(self, stream: int) -> None:
        """Let somebody else's stream wait for all that was queued for kernels here."""
        core = self.core
        foreign = core.driver.foreign_stream(stream)
        core.crypto.submit(lambda _: None).hold_up(core.driver, foreign)

    def close(self) -> None:
        """Scrub and give back everything, keys first of all. Idempotent.

        Raises:
            IntegrityError: if some of it was not zeroes; all is given back then, too.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._process:  # a forked child has no GPU to give back
            return
        self._core.quiesce()
        for block in self._blocks:
            block.close()
        self._blocks = []
        self._core.close()

    def _require_alive(self) -> None:
        if os.getpid() != self._process:
            raise device_lost("a GPU cannot be used in a forked process")
        self._core.require_open()
