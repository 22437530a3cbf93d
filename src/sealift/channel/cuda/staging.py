"""Host memory that copies to and from a GPU are made of: blocks, rings of slots, tables.

Where pinned memory is proven (``copies.py``), a copy goes on by itself while the next slot
is filled. Where it is not, every copy is waited for, from ordinary memory, so that nothing
depends on what pinned memory promised. A copy by another context lands in that context
and is moved over on the device. A table is what one batch tells the kernels, in one copy.
Addresses of host memory, and copies into it that leave the interpreter free, are here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.driver import CudaError, Driver, PreparedCall
from sealift.channel.cuda.plan import RECORD_BYTES
from sealift.channel.record.opener import scrub
from sealift.errors import SealiftError, require_value
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
