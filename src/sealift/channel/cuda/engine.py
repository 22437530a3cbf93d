"""The CUDA engine: records are opened and sealed in a GPU's own memory.

Copies run on their lanes, kernels on another; events chain them, and ranges of memory
that are in use keep the order of the calls. ``opening.open_cuda`` makes one.

What it protects depends on the GPU. A confidential GPU keeps the host out. On any other
the host's memory sees ciphertext only, but the bus carries the keys and the GPU's memory
is open to whoever administers the machine.

Sums have the bits that a processor gets. Each queues one kernel, or one copy, behind what
uses the same ranges; sums of different order have different bits, so the caller fixes the
order of the calls.
"""

from __future__ import annotations

import atexit
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple, TypeVar

from sealift.channel.cuda.compilers import CudaKernels
from sealift.channel.cuda.core import Core
from sealift.channel.cuda.driver import (
    Driver,
    GpuFacts,
    Grid,
    Residence,
    faults_as_errors,
)
from sealift.channel.cuda.memory import (
    CudaMemory,
    SharedMemory,
    array_range,
    own_memory,
)
from sealift.channel.cuda.plan import (
    THREADS,
    BufferName,
    KernelPlan,
    Launch,
    Word32,
    Word64,
)
from sealift.channel.cuda.staging import (
    CopySettings,
    HostBlock,
    Pinning,
    writable_address,
)
from sealift.channel.cuda.streams import HoldsUp, Joined, Point, Ticket, on_device
from sealift.channel.cuda.transfer import (
    CudaKey,
    CudaVerdicts,
    RecordBatch,
    Transfer,
    expand_key,
    nothing,
    open_batch,
    open_staged,
    open_straight,
    own_key,
    seal_batch,
)
from sealift.channel.device.device import (
    DeviceEvent,
    DeviceKey,
    DeviceMemory,
    DeviceTensor,
    Group,
    Part,
    RecordPlace,
    check_places,
    check_range,
    check_transfer,
    device_lost,
)
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError, UsageError
from sealift.ids import Buffer

SLOTS: Final = 4


_Memory = TypeVar("_Memory", bound=CudaMemory)


def _scrubbed(memory: _Memory) -> _Memory:
    """Memory that is all zeroes; closed where that fails."""
    try:
        memory.scrub()
    except SealiftError:
        memory.close()
        raise
    return memory


class CudaEngine:
    """See ``channel.device.device.DeviceEngine``. Any thread may call it.

    Args:
        driver: The GPU's primary context; the engine closes it.
        kernels: What runs on it.
        copies: How copies are made.
        slots: Slots of each ring, and batches under way at once.
    """

    name = "cuda"

    def __init__(
        self,
        driver: Driver,
        kernels: CudaKernels,
        copies: CopySettings,
        *,
        slots: int = SLOTS,
    ) -> None:
        self.facts: GpuFacts = driver.facts
        self.copies = copies
        self._core = Core(driver, kernels, copies, slots)
        self._blocks: list[HostBlock | Pinning] = []
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
        return _scrubbed(self._core.allocate(nbytes))

    def share(self, nbytes: int) -> SharedMemory:
        """Fresh memory, all zeroes, that another process can map by its descriptor."""
        self._require_alive()
        return _scrubbed(self._core.allocate_shared(nbytes))

    @faults_as_errors()
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

    @faults_as_errors()
    def pinned(self, nbytes: int) -> HostBlock | None:
        """Host memory that ``upload`` needs not copy; None where none is proven."""
        core = self.core
        if not core.copies.pinned:
            return None
        block = HostBlock(core.driver, nbytes, pinned=True)
        self._keep(block)
        return block

    @faults_as_errors()
    def pin(self, memory: memoryview) -> Callable[[], None] | None:
        """Let ``upload`` and ``transfer`` not copy what lies there; see ``pinned``."""
        core = self.core
        if core.copies.threads or not core.copies.pinned:
            return None
        pinning = Pinning(core.driver, memory)
        if core.driver.residence(pinning.address) is not Residence.PINNED:
            pinning.close()
            return None
        self._keep(pinning)
        return pinning.close

    @faults_as_errors()
    def key(self, suite: Suite, key: SecretKey) -> CudaKey:
        """Put a key on the GPU; it crosses the bus as it is (see above)."""
        return expand_key(self.core, suite, key)

    @faults_as_errors()
    def upload(self, host: Buffer, to: DeviceMemory, offset: int = 0) -> Point:
        """Copy from the host; ``host`` must stay as it is until the event."""
        core, memory = self.core, own_memory(to)
        source = memoryview(host).cast("B")
        check_range(memory, offset, source.nbytes)
        end = offset + source.nbytes
        with core.lock:
            after = memory.hazards.before_write(offset, end)
            path = _straight if _lies_in(self._blocks, source) else _through_rings
            ticket = path(core, source, memory.address + offset, after)
            memory.hazards.writes(offset, end, ticket)
        return ticket

    @faults_as_errors()
    def download(
        self,
        source: DeviceMemory,
        offset: int,
        out: bytearray | memoryview,
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> Ticket:
        """Copy to the host; ``out`` is whole when the event is past."""
        core, memory = self.core, own_memory(source)
        target = memoryview(out).cast("B")
        check_range(memory, offset, target.nbytes)
        address, end = memory.address + offset, offset + target.nbytes
        first = on_device(after)
        with core.lock:
            waits = [*first, *memory.hazards.before_read(offset, end)]
            if _lies_in(self._blocks, target):
                fetch = partial(
                    core.driver.copy_to_host,
                    writable_address(target), address, target.nbytes,
                )  # fmt: skip
            else:
                fetch = partial(core.back_ring.fetch, target, address)
            ticket = core.back.submit(fetch, after=waits)
            memory.hazards.reads(offset, end, ticket)
        return ticket

    @faults_as_errors()
    def open(
        self,
        key: DeviceKey,
        sealed: DeviceMemory,
        plain: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> CudaVerdicts:
        """Open every record, once the events in ``after`` are past."""
        check_places(places, sealed, plain)
        batch = RecordBatch(own_key(key), own_memory(sealed), own_memory(plain), places)
        return open_batch(self.core, batch, after)

    @faults_as_errors()
    def transfer(
        self,
        parts: Sequence[Part],
        sealed: DeviceMemory,
        plain: DeviceMemory,
        groups: Sequence[Group],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> CudaVerdicts:
        """Copy sealed records and open them, piece beside piece."""
        memory, sources = own_memory(sealed), []
        for host, offset in parts:
            view = memoryview(host).cast("B")
            check_range(memory, offset, view.nbytes)
            if view.nbytes:
                sources.append((view, offset))
        keyed = [(own_key(key), places) for key, places in groups if places]
        if not keyed:
            check_transfer(parts, sealed, plain, groups)
            copies = [self.upload(host, memory, offset) for host, offset in sources]
            return CudaVerdicts(Joined(copies), bytes, nothing)
        found = Transfer(sources, memory, own_memory(plain), keyed)
        straight = all(_lies_in(self._blocks, host) for host, _ in sources)
        if self.copies.threads or not straight:
            return open_staged(self.core, found, after, self.upload)
        return open_straight(self.core, found, after)

    @faults_as_errors()
    def seal(
        self,
        key: DeviceKey,
        plain: DeviceMemory,
        sealed: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> Ticket:
        """Seal every record; nonces are the caller's, fresh for ever."""
        check_places(places, sealed, plain)
        batch = RecordBatch(own_key(key), own_memory(sealed), own_memory(plain), places)
        return seal_batch(self.core, batch, after)

    @faults_as_errors()
    def add(self, total: DeviceTensor, part: DeviceTensor) -> Ticket:
        """``total += part``."""
        plan = _plan(self.core, "add", total, "total", "part", Word64(total.size))
        return _write(self.core, plan, total, part)

    @faults_as_errors()
    def weigh(self, total: DeviceTensor, part: DeviceTensor, factor: float) -> Ticket:
        """``total = part * factor``; the factor is rounded to the elements' type first."""
        word: Word32 | Word64
        if total.dtype == "float32":
            word = Word32(*struct.unpack("<I", struct.pack("<f", factor)))
        else:
            word = Word64(*struct.unpack("<Q", struct.pack("<d", factor)))
        size = Word64(total.size)
        plan = _plan(self.core, "weigh", total, "total", "part", size, word)
        return _write(self.core, plan, total, part)

    @faults_as_errors()
    def copy(self, total: DeviceTensor, part: DeviceTensor) -> Ticket:
        """``total = part``."""
        return _write(self.core, None, total, part)

    @faults_as_errors()
    def first_odd(self, tensor: DeviceTensor) -> int | None:
        """Index of the first element that is infinite or no number; waits for it."""
        core, span = self.core, _Span.of(tensor)
        plan = _plan(core, "find_odd", tensor, "target", Word64(tensor.size), "count")
        with core.lock:
            after = span.memory.hazards.before_read(span.start, span.end)
            left = core.ask(plan, {"target": span.address}, after=after)
        return tensor.size - left if left else None

    @faults_as_errors()
    def follow(self, stream: int) -> None:
        """From now on, wait for what somebody else's stream (its pointer) was given."""
        core = self.core
        event = core.driver.event()
        core.driver.record(event, core.driver.foreign_stream(stream))
        with core.lock:
            for lane in (core.crypto, *(way.lane for way in core.up), core.back):
                lane.driver.wait(lane.stream, event)
        core.driver.release(event)

    @faults_as_errors()
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

    def _keep(self, block: HostBlock | Pinning) -> None:
        with self._core.lock:
            self._blocks = [each for each in self._blocks if not each.closed]
            self._blocks.append(block)

    def _require_alive(self) -> None:
        if os.getpid() != self._process:
            raise device_lost("a GPU cannot be used in a forked process")
        self._core.require_open()


def _straight(
    core: Core, source: memoryview, address: int, after: Sequence[HoldsUp]
) -> Point:
    copy, origin = core.driver.copy_to_device, writable_address(source)
    step = partial(copy, address, origin, source.nbytes)
    return core.up[0].lane.submit(step, after=after)


def _through_rings(
    core: Core, source: memoryview, address: int, after: Sequence[HoldsUp]
) -> Point:
    """One way takes all; several take a piece each in turn."""
    several, nbytes = len(core.up) > 1, source.nbytes
    size = core.copies.piece_bytes if several else max(nbytes, 1)
    tickets = []
    for way, at in zip(cycle(core.up), range(0, nbytes, size), strict=False):
        step = partial(way.ring.send, address + at, source[at : at + size])
        tickets.append(way.lane.submit(step, after=after))
    return Joined(tickets)


def _lies_in(blocks: Sequence[HostBlock | Pinning], source: memoryview) -> bool:
    if source.readonly or not source.nbytes:
        return False
    start = writable_address(source)
    return any(
        block.address <= start and start + source.nbytes <= block.address + block.nbytes
        for block in blocks
        if not block.closed
    )


_KINDS: Final[Mapping[str, str]] = {"float32": "f32", "float64": "f64"}
_BLOCKS: Final = 16  # per multiprocessor


class _Span(NamedTuple):
    """Bytes of a memory that a call uses."""

    memory: CudaMemory
    start: int
    end: int

    @classmethod
    def of(cls, tensor: DeviceTensor) -> _Span:
        check_range(tensor.memory, tensor.offset, tensor.nbytes)
        end = tensor.offset + tensor.nbytes
        return cls(own_memory(tensor.memory), tensor.offset, end)

    @property
    def address(self) -> int:
        return self.memory.address + self.start


def _plan(
    core: Core,
    name: str,
    tensor: DeviceTensor,
    *arguments: BufferName | Word32 | Word64,
) -> KernelPlan:
    """One kernel over the elements.

    Raises:
        UsageError: code ``bad-tensor``, for elements of another type.
    """
    kind = _KINDS.get(tensor.dtype)
    if kind is None or tensor.offset % tensor.itemsize:
        raise UsageError(
            "a tensor cannot be summed on a GPU",
            why=f"{tensor.dtype} at byte {tensor.offset}",
            code="bad-tensor",
        )
    wanted = -(-tensor.size // THREADS)
    blocks = max(1, min(wanted, _BLOCKS * core.driver.facts.multiprocessors))
    return KernelPlan(
        (Launch(f"sealift_{name}_{kind}", Grid(blocks, THREADS), arguments),)
    )


def _write(
    core: Core, plan: KernelPlan | None, total: DeviceTensor, part: DeviceTensor
) -> Ticket:
    """Queue kernels, or without any a copy, that read ``part`` and write ``total``."""
    if (total.size, total.dtype) != (part.size, part.dtype):
        raise UsageError("the tensors differ in length or type", code="bad-tensor")
    to, origin = _Span.of(total), _Span.of(part)
    places = {"total": to.address, "part": origin.address}

    def step(stream: Any) -> None:
        if plan is None:
            core.driver.copy_on_device(to.address, origin.address, total.nbytes, stream)
        else:
            core.run(plan, places, stream)

    with core.lock:
        waits: list[HoldsUp] = [
            *origin.memory.hazards.before_read(origin.start, origin.end),
            *to.memory.hazards.before_write(to.start, to.end),
        ]
        ticket = core.crypto.submit(step, after=waits)
        origin.memory.hazards.reads(origin.start, origin.end, ticket)
        to.memory.hazards.writes(to.start, to.end, ticket)
    return ticket
