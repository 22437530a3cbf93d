"""Host memory that copies to and from a GPU are made of: blocks, rings of slots, tables.

Where pinned memory is proven, a copy goes on by itself while the next slot
is filled. Where it is not, every copy is waited for, from ordinary memory, so that nothing
depends on what pinned memory promised. A copy by another context lands in that context
and is moved over on the device. A table is what one batch tells the kernels, in one copy.
Addresses of host memory, and copies into it that leave the interpreter free, are here.

Under confidential computing (CC), memory that was asked for as pinned may not be, and
copies that should return at once return when they are done; programs that trusted the
request read stale bytes. So pinned memory is believed only when it was proven: the driver
is asked where it lies, bytes are sent there and back, and it is measured whether calls
return before what they ask for is done.

Every copy is encrypted by the driver then, in messages of at most 1 MiB, by the thread
that asks for it, which waits for its stream meanwhile. So copies get threads of their
own, transfers are cut into few, and several contexts (a protected channel each) work at
once. The GPU's mode is asked of NVML, never guessed.

Sources: NVIDIA's open kernel modules (conf_compute, uvm_conf_computing.h); NVML API
reference, confidential compute; reports of synchronous copies under CC.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.bindings import nvml
from sealift.channel.cuda.driver import CudaError, Driver, PreparedCall, Residence
from sealift.channel.cuda.plan import RECORD_BYTES
from sealift.channel.record.opener import scrub
from sealift.errors import SealiftError, UnavailableError, require_value
from sealift.ids import Buffer

_FIRST_BYTES: Final = 32 << 10
_LEAST_ROOM: Final = 1 << 16


def writable_address(view: bytearray | memoryview) -> int:
    """Where a writable, contiguous buffer begins; it must live as long as it is used."""
    flat = memoryview(view).cast("B")
    if not flat.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(flat))


def view_at(address: int, nbytes: int) -> memoryview:
    """Memory that somebody else owns, as bytes."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def _copy_in(address: int, source: Buffer) -> None:
    """Copy a buffer to ``address``; what is large does not hold up other threads."""
    flat = memoryview(source).cast("B")
    if flat.readonly or not flat.nbytes:
        view_at(address, flat.nbytes)[:] = flat
    else:
        ctypes.memmove(address, writable_address(flat), flat.nbytes)


def _copy_out(out: bytearray | memoryview, address: int) -> None:
    """Copy from ``address`` into a buffer."""
    flat = memoryview(out).cast("B")
    if flat.nbytes:
        ctypes.memmove(writable_address(flat), address, flat.nbytes)


class HostBlock:
    """Host memory at an address; overwritten before it is given back.

    Args:
        driver: Gives it, if it is pinned.
        nbytes: How long it is.
        pinned: Whether the driver is asked for it; else nobody pinned it.
    """

    def __init__(self, driver: Driver, nbytes: int, *, pinned: bool) -> None:
        self.nbytes = nbytes
        self._from = driver if pinned else None
        if pinned:
            self.address = driver.allocate_host(nbytes)
            self.view = view_at(self.address, nbytes)
        else:
            self.view = memoryview(bytearray(nbytes))
            self.address = writable_address(self.view)
        self.closed = False

    def close(self) -> None:
        """Overwrite and give back. Idempotent."""
        if self.closed:
            return
        self.closed = True
        scrub(self.view)
        self.view.release()
        if self._from is not None:
            with suppress(CudaError):  # a lost GPU keeps it until the process ends
                self._from.free_host(self.address)


class Pinning:
    """Somebody else's memory, pinned as long as this is; it is kept alive meanwhile."""

    def __init__(self, driver: Driver, memory: memoryview) -> None:
        self._driver = driver
        self._memory = memory[:]
        self.nbytes = memory.nbytes
        self.address = writable_address(memory)
        driver.pin_host(self.address, self.nbytes)
        self.closed = False

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self.closed:
            return
        self.closed = True
        with suppress(CudaError):  # a lost GPU reads nothing any more
            self._driver.unpin_host(self.address)
        self._memory.release()


@dataclass(frozen=True, slots=True)
class _Slot:
    """A block on the host, one in a foreign context if need be, and when it is free."""

    host: HostBlock
    landing: int
    free: Any


class Ring:
    """A few slots of one context, used in turn; one lane uses it.

    Args:
        driver: The context that copies.
        home: The context whose memory is written; the same, or another of that GPU.
        slots: How many.
        slot_bytes: The longest single copy.
        pinned: Whether pinned memory was proven here.
    """

    def __init__(
        self, driver: Driver, home: Driver, slots: int, slot_bytes: int, *, pinned: bool
    ) -> None:
        self._driver = driver
        self._home = home
        self._pinned = pinned
        self.slot_bytes = slot_bytes
        self._next = 0
        with ExitStack() as made:  # all of them, or nothing is left
            self._slots = [self._slot(made) for _ in range(slots)]
            self._made = made.pop_all()

    def _slot(self, made: ExitStack) -> _Slot:
        driver, landing = self._driver, 0
        if driver is not self._home:
            landing = driver.allocate(self.slot_bytes)
            made.callback(driver.free, landing)
        host = HostBlock(driver, self.slot_bytes, pinned=self._pinned)
        made.callback(host.close)
        free = driver.event()
        made.callback(driver.release, free)
        return _Slot(host, landing, free)

    def send(self, to: int, source: memoryview, stream: Any) -> None:
        """Queue copies of a buffer; it may change once this has returned."""
        for start in range(0, source.nbytes, self.slot_bytes):
            piece = source[start : start + self.slot_bytes]
            slot = self._take()
            _copy_in(slot.host.address, piece)
            self._cross(to + start, slot, piece.nbytes, stream)

    def fetch(self, out: memoryview, origin: int, stream: Any) -> None:
        """Copy to a buffer; returns when it is there."""
        waiting: list[tuple[_Slot, memoryview]] = []
        for start in range(0, out.nbytes, self.slot_bytes):
            if len(waiting) == len(self._slots):
                self._deliver(*waiting.pop(0))
            piece = out[start : start + self.slot_bytes]
            slot = self._take()
            self._driver.copy_to_host(
                slot.host.address, origin + start, piece.nbytes, stream
            )
            self._driver.record(slot.free, stream)
            waiting.append((slot, piece))
        for each in waiting:
            self._deliver(*each)

    def close(self) -> None:
        """Overwrite the slots and give them back."""
        self._made.close()

    def _take(self) -> _Slot:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        self._driver.synchronize(slot.free)
        return slot

    def _cross(self, to: int, slot: _Slot, nbytes: int, stream: Any) -> None:
        driver = self._driver
        driver.copy_to_device(slot.landing or to, slot.host.address, nbytes, stream)
        if slot.landing:
            driver.copy_to_context(self._home, to, slot.landing, nbytes, stream)
        driver.record(slot.free, stream)
        if not self._pinned:
            driver.synchronize(slot.free)

    def _deliver(self, slot: _Slot, out: memoryview) -> None:
        self._driver.synchronize(slot.free)
        _copy_out(out, slot.host.address)
        scrub(view_at(slot.host.address, out.nbytes))


class Room:
    """Device memory that one lane's work shares. It only grows; old room stays."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._blocks: list[tuple[int, int]] = []

    def of(self, nbytes: int) -> int:
        """Room for ``nbytes``."""
        if not nbytes:
            return 0
        if not self._blocks or self._blocks[-1][1] < nbytes:
            size = max(_LEAST_ROOM, 1 << (nbytes - 1).bit_length())
            self._blocks.append((self._driver.allocate(size), size))
        return self._blocks[-1][0]

    def zero(self, stream: Any) -> None:
        """Queue overwriting all of it."""
        for address, nbytes in self._blocks:
            self._driver.zero(address, nbytes, stream)

    def free(self) -> None:
        """Give it back."""
        for address, _ in self._blocks:
            self._driver.free(address)
        self._blocks = []


class BatchTable:
    """Room for one batch's records, associated data and verdicts.

    On the host it is a block to copy from, on the GPU the same layout.

    Attributes:
        settle: Waits for the batch that uses it, and keeps what that needs of it.
    """

    def __init__(self, driver: Driver, *, pinned: bool) -> None:
        self._driver = driver
        self._pinned = pinned
        self._block: HostBlock | None = None
        self._device = 0
        self._text_bytes = 0
        self._num_records = 0
        self.settle: Callable[[], object] | None = None

    def fill(self, text: bytes, num_records: int) -> None:
        """Write the table of a batch; no verdict is genuine yet."""
        block = self._room(len(text) + num_records)
        block.view[: len(text)] = text
        block.view[len(text) : len(text) + num_records] = bytes(num_records)
        self._text_bytes, self._num_records = len(text), num_records

    def places(self) -> dict[str, int]:
        """Addresses on the GPU."""
        return {
            "records": self._device,
            "aad": self._device + RECORD_BYTES * self._num_records,
            "verdicts": self._device + self._text_bytes,
        }

    def send(self, stream: Any) -> None:
        """Queue the one crossing: the table, and verdicts that say no."""
        self._driver.copy_to_device(*self._there(), stream)

    def send_call(self, stream: Any) -> PreparedCall:
        """The same, made ready; its block is pinned."""
        return self._driver.copy_call(*self._there(), stream)

    def fetch_verdicts(self, stream: Any) -> None:
        """Queue the way back of the verdicts."""
        self._driver.copy_to_host(*self._back(), stream)

    def fetch_call(self, stream: Any) -> PreparedCall:
        """The same, made ready; its block is pinned."""
        return self._driver.copy_back_call(*self._back(), stream)

    def _there(self) -> tuple[int, int, int]:
        nbytes = self._text_bytes + self._num_records
        return self._device, require_value(self._block).address, nbytes

    def _back(self) -> tuple[int, int, int]:
        to = require_value(self._block).address + self._text_bytes
        return to, self._device + self._text_bytes, self._num_records

    def verdicts(self) -> bytes:
        """One byte a record, once they were fetched."""
        end = self._text_bytes + self._num_records
        return bytes(require_value(self._block).view[self._text_bytes : end])

    def close(self) -> None:
        """Give the room back."""
        if self._block is not None:
            self._block.close()
            self._driver.free(self._device)
            self._block = None

    def _room(self, nbytes: int) -> HostBlock:
        if self._block is None or self._block.nbytes < nbytes:
            self.close()
            size = max(_FIRST_BYTES, 1 << (nbytes - 1).bit_length())
            self._device = self._driver.allocate(size)
            self._block = HostBlock(self._driver, size, pinned=self._pinned)
        return self._block


class TableRing:
    """Tables in turn; the one that was used longest ago is waited for."""

    def __init__(self, driver: Driver, count: int, *, pinned: bool) -> None:
        self._tables = [BatchTable(driver, pinned=pinned) for _ in range(count)]
        self._next = 0

    def take(self) -> BatchTable:
        """A table that nobody uses now."""
        table = self._tables[self._next]
        self._next = (self._next + 1) % len(self._tables)
        if table.settle is not None:
            with suppress(SealiftError):  # its own user is told when it asks
                table.settle()
            table.settle = None
        return table

    def close(self) -> None:
        """Give all back."""
        for table in self._tables:
            table.close()


MESSAGE_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 4 << 20
CONTEXTS: Final = 3
_ON: Final = 1
_MULTI_GPU: Final = {0: "none", 1: "ppcie", 2: "nvle"}


Clock = Callable[[], float]
PROOF_BYTES: Final = 4 << 20
_BURST: Final = 16
_TRIES: Final = 5
_ECHO: Final = 4096
_SMALLEST: Final = 64
QUEUED_TOLL_S: Final = 3.3e-6
"""What a copy costs behind another, from pinned memory: measured on an H100, 2026-11-27."""


@dataclass(frozen=True, slots=True)
class PinnedTruth:
    """What is known of pinned memory on this machine.

    Attributes:
        proven: Whether copies from it may be relied on to be asynchronous.
        why: What it was concluded from.
    """

    proven: bool
    why: str


@dataclass(frozen=True, slots=True)
class GpuProtection:
    """What NVML says of confidential computing.

    Attributes:
        confidential: Whether it is on; None if NVML could not be asked.
        devtools: Whether debug tools are let in, which protects nothing.
        multi_gpu: How several GPUs are joined: none, ppcie, nvle, or unknown.
        accepts_work: Whether the GPUs were told to accept work.
        why: Where this is from, or why nothing is known.
    """

    confidential: bool | None
    devtools: bool = False
    multi_gpu: str = "unknown"
    accepts_work: bool | None = None
    why: str = "NVML"


@dataclass(frozen=True, slots=True)
class CopySettings:
    """How copies between host and GPU are made.

    Attributes:
        threads: Whether each lane has a thread of its own.
        contexts: How many contexts copy to the GPU at once.
        piece_bytes: The longest single copy through a slot.
        pinned: Whether slots are pinned memory.
        why: For events and `sealift doctor`.
        toll_s: What one more crossing costs.
    """

    threads: bool
    contexts: int
    piece_bytes: int
    pinned: bool
    why: str
    toll_s: float


def read_protection(open_nvml: Callable[[], Any] = nvml) -> GpuProtection:
    """The state of the machine's GPUs. That it cannot be read is an answer."""
    try:
        asked = open_nvml()
    except UnavailableError as error:
        return GpuProtection(None, why=str(error))
    settings = asked.c_nvmlSystemConfComputeSettings_v1_t()
    try:
        # The binding hands its argument to C as it is, and returns an error's code.
        refused = asked.nvmlSystemGetConfComputeSettings(ctypes.byref(settings))
        ready = None if refused else asked.nvmlSystemGetConfComputeGpusReadyState()
    except asked.NVMLError as error:
        return _unknown(str(error))
    if refused:
        return _unknown(f"NVML error {refused}")
    return GpuProtection(
        confidential=settings.ccFeature == _ON,
        devtools=settings.devToolsMode == _ON,
        multi_gpu=_MULTI_GPU.get(settings.multiGpuMode, "unknown"),
        accepts_work=ready == _ON,
    )


def choose_copies(
    protection: GpuProtection, truth: PinnedTruth, toll_s: float
) -> CopySettings:
    """What fits this GPU.

    Args:
        protection: Its mode.
        truth: What is known of pinned memory.
        toll_s: What a crossing costs that is waited for (``measure_toll``).
    """
    if protection.confidential:
        why = f"CC is on: {CONTEXTS} contexts with a thread each; pinned: {truth.why}"
        return CopySettings(True, CONTEXTS, MESSAGE_BYTES, truth.proven, why, toll_s)
    if not truth.proven:
        why = f"staged copies: {truth.why}"
        return CopySettings(True, 1, PIECE_BYTES, False, why, toll_s)
    why = f"pinned slots: {truth.why}"
    return CopySettings(False, 1, PIECE_BYTES, True, why, QUEUED_TOLL_S)


def _unknown(why: str) -> GpuProtection:
    return GpuProtection(
        None, why=f"the driver does not say how GPUs are protected ({why})"
    )


def prove_pinned(driver: Driver, clock: Clock = time.perf_counter) -> PinnedTruth:
    """Allocate, ask, send and look; takes milliseconds on a GPU.

    Raises:
        CudaError: if the GPU fails at it. That pinned memory cannot be had is no error.
    """
    try:
        block = HostBlock(driver, PROOF_BYTES, pinned=True)
    except CudaError as fault:
        if fault.ends_context:
            raise
        return PinnedTruth(False, f"the driver gives none ({fault})")
    try:
        return _prove(driver, block, clock)
    finally:
        block.close()


def _prove(driver: Driver, block: HostBlock, clock: Clock) -> PinnedTruth:
    residence = driver.residence(block.address)
    if residence is not Residence.PINNED:
        return PinnedTruth(False, f"the driver calls it {residence.value} memory")
    stream, device = driver.stream(), driver.allocate(PROOF_BYTES)
    try:
        if not _comes_back(driver, block, device, stream):
            return PinnedTruth(False, "bytes that came back were not those sent")
        goes_on = any(
            _returns_early(driver, block, device, stream, clock) for _ in range(_TRIES)
        )
    finally:
        driver.free(device)
        driver.release(stream)
    if not goes_on:
        return PinnedTruth(False, "copies from it return only when they are done")
    return PinnedTruth(
        True, "the driver says so, and copies from it go on by themselves"
    )


def _comes_back(driver: Driver, block: HostBlock, device: int, stream: Any) -> bool:
    sent = secrets.token_bytes(_ECHO)
    block.view[:_ECHO] = sent
    back = PROOF_BYTES - _ECHO
    driver.copy_to_device(device, block.address, _ECHO, stream)
    driver.copy_to_host(block.address + back, device, _ECHO, stream)
    _finish(driver, stream)
    return bytes(block.view[back:]) == sent


def _returns_early(
    driver: Driver, block: HostBlock, device: int, stream: Any, clock: Clock
) -> bool:
    """Whether asking for 64 MiB takes less than half as long as having them there.

    An event alone says little: behind a copy that was waited for, it may still need a
    moment. An interruption can only make an early return look late, so one early one
    is enough.
    """
    start = clock()
    for _ in range(_BURST):
        driver.copy_to_device(device, block.address, PROOF_BYTES, stream)
    asked = clock()
    _finish(driver, stream)
    return asked - start < (clock() - start) / 2


def measure_toll(
    driver: Driver, truth: PinnedTruth, clock: Clock = time.perf_counter
) -> float:
    """Seconds of a small copy that is waited for, as all are in confidential mode."""
    block = HostBlock(driver, _SMALLEST, pinned=truth.proven)
    stream, device = driver.stream(), driver.allocate(_SMALLEST)
    took = []
    try:
        for _ in range(_TRIES):
            start = clock()
            driver.copy_to_device(device, block.address, _SMALLEST, stream)
            _finish(driver, stream)
            took.append(clock() - start)
    finally:
        driver.free(device)
        driver.release(stream)
        block.close()
    return min(took)


def _finish(driver: Driver, stream: Any) -> None:
    event = driver.event()
    driver.record(event, stream)
    driver.synchronize(event)
    driver.release(event)
