"""Windows of verified rows, one after another, the next ones opened meanwhile.

Guarantees: a window is handed out when every record in it verified (strict, rule M3);
after an error, and at ``close``, nothing is left of any window.

Private memory for windows of opened rows: a few slots of one size.

Anonymous memory that is left out of core dumps; a forked child sees zeroes or nothing.
Shared with opening processes it is a memory file without a name whose size cannot
change (rule H3), mapped by this process and by those that it started.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from io import FileIO
from typing import Final, Protocol

import numpy as np

from sealift.data.loader.opening import Extent, OpenerPool, extents_of, grouped
from sealift.data.schedule.order import EpochOrder, Indices, OrderOptions, Window
from sealift.data.shards.shardset import ShardSet
from sealift.errors import no_room

_ALIGNMENT_BYTES: Final = 4096
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_WIPE_ON_FORK: Final = 18  # linux/mman.h
_HUGE_BYTES: Final = 2 << 20


class WindowArena:
    """``num_slots`` slots of at least ``slot_bytes`` bytes.

    Args:
        num_slots: How many windows are in memory at once.
        slot_bytes: Bytes of the largest window.
        shared: Whether other processes get it.

    Raises:
        UnavailableError: if there is not as much memory.
    """

    def __init__(self, num_slots: int, slot_bytes: int, *, shared: bool) -> None:
        self.num_slots = num_slots
        self.slot_bytes = -(-slot_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._file: FileIO | None = None
        try:
            self._memory = self._map(num_slots * self.slot_bytes, shared)
        except OSError as error:
            self.close()
            what = f"{num_slots} windows of {slot_bytes} bytes"
            raise no_room(what, error, "Use a smaller window_bytes") from error

    @property
    def descriptor(self) -> int:
        """What other processes map; -1 where it is not shared, or was closed."""
        return -1 if self._file is None else self._file.fileno()

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots."""
        return self.num_slots * self.slot_bytes

    def slot(self, index: int, length: int) -> memoryview:
        """The first ``length`` bytes of a slot, writable."""
        return self.part(index * self.slot_bytes, length)

    def part(self, start: int, length: int) -> memoryview:
        """``length`` bytes from ``start`` on."""
        if not 0 <= start <= start + length <= self.total_bytes:
            raise ValueError("outside the arena")
        return memoryview(self._memory)[start : start + length]

    def scrub(self) -> None:
        """Overwrite everything."""
        overwrite_memory(self._memory)

    def close(self) -> None:
        """Overwrite everything and give the memory file back. Idempotent."""
        if hasattr(self, "_memory"):
            self.scrub()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _map(self, total_bytes: int, shared: bool) -> mmap.mmap:
        if not shared:
            memory = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE)
            memory.madvise(mmap.MADV_DONTDUMP)
            with contextlib.suppress(OSError):  # Linux before 4.14
                memory.madvise(_WIPE_ON_FORK)
            use_huge_pages(memory)
            return memory
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._file = FileIO(os.memfd_create("sealift-rows", flags), "r+")
        os.ftruncate(self.descriptor, total_bytes)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return map_arena(self.descriptor, total_bytes)


def map_arena(descriptor: int, total_bytes: int) -> mmap.mmap:
    """Map an arena's memory file, as its maker and its opening processes do."""
    memory = mmap.mmap(descriptor, total_bytes, flags=mmap.MAP_SHARED)
    memory.madvise(mmap.MADV_DONTDUMP)
    memory.madvise(mmap.MADV_DONTFORK)
    use_huge_pages(memory)
    return memory


def use_huge_pages(memory: mmap.mmap) -> None:
    """Ask for huge pages, where a page fits and the system has them.

    The first write to memory costs a fifth then: 0.07 s a GB instead of 0.4.
    """
    if len(memory) >= _HUGE_BYTES:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def overwrite_memory(memory: mmap.mmap) -> None:
    """Put zeroes over all of it, at twice the speed of ``quarantine.scrub``."""
    np.frombuffer(memory, dtype=np.uint8).fill(0)


class Pending(Protocol):
    """A window that is being opened."""

    def wait(self) -> Indices:
        """Where its rows lie in its memory, in reading order, once all verified.

        Raises what went wrong, when nothing writes to the memory any more.
        """

    def abandon(self) -> None:
        """Nobody wants it: returns when nothing writes to the memory any more."""


class WindowMemory(Protocol):
    """Memory for some windows, and who opens records into it."""

    num_slots: int

    def begin(self, window: Window, slot: int) -> Pending:
        """Begin to open a window into a slot that nobody reads any more."""

    def scrub(self) -> None:
        """Overwrite all windows."""

    def close(self) -> None:
        """Scrub, forget keys, end workers. Idempotent."""


@dataclass(frozen=True)
class LoadedWindow:
    """Verified rows: ``places`` are rows of the slot's memory, in reading order."""

    window: Window
    slot: int
    places: Indices


class WindowStream:
    """The windows of an epoch in turn.

    Args:
        windows: Which.
        memory: Where they go. While the window handed out last is read, others are
            opened into the remaining slots.
    """

    def __init__(self, windows: Iterator[Window], memory: WindowMemory) -> None:
        self._windows = windows
        self._memory = memory
        self._ahead: deque[tuple[Window, int, Pending]] = deque()
        self._free = list(range(memory.num_slots))
        self._read: int | None = None

    def __iter__(self) -> Iterator[LoadedWindow]:
        return self

    def __next__(self) -> LoadedWindow:
        """The next window; the one before must not be read any more."""
        if self._read is not None:
            self._free.append(self._read)
            self._read = None
        self._begin(until=1)
        if not self._ahead:
            raise StopIteration
        window, slot, pending = self._ahead[0]  # there, until nobody writes to it
        try:
            self._begin(until=self._memory.num_slots)  # nobody idles while we wait
            places = pending.wait()
        except BaseException:
            self.close()
            raise
        self._ahead.popleft()
        self._read = slot
        return LoadedWindow(window, slot, places)

    def close(self) -> None:
        """Wait for what was begun, then scrub. Idempotent; interrupted, it goes on."""
        while self._ahead:
            self._ahead[0][2].abandon()
            self._ahead.popleft()
        self._windows = iter(())
        self._memory.scrub()

    def _begin(self, *, until: int) -> None:
        while self._free and len(self._ahead) < until:
            window = next(self._windows, None)
            if window is None:
                return
            slot = self._free.pop()
            self._ahead.append((window, slot, self._memory.begin(window, slot)))


class HostWindows:
    """Windows in an arena of the host's memory.

    Args:
        arena: Its slots hold ``window_bytes`` of the order.
        pool: Who opens.
        row_bytes: Of a row.
    """

    def __init__(self, arena: WindowArena, pool: OpenerPool, row_bytes: int) -> None:
        self._arena = arena
        self._pool = pool
        self._row_bytes = row_bytes
        # What is opened in the caller's thread is opened when it is needed.
        self.num_slots = arena.num_slots if pool.works_ahead else 1

    def begin(self, window: Window, slot: int) -> Pending:
        """See ``WindowMemory``."""
        at = slot * self._arena.slot_bytes
        extents = extents_of(window.runs, self._row_bytes, at)
        groups = grouped(extents, self._pool.num_openers)
        return _Opening(window.order, self._pool, groups)

    def view(self, slot: int, rows: int) -> memoryview:
        """The first rows of a slot."""
        return self._arena.slot(slot, rows * self._row_bytes)

    def scrub(self) -> None:
        """See ``WindowMemory``."""
        self._arena.scrub()

    def close(self) -> None:
        """See ``WindowMemory``."""
        self._pool.close()
        self._arena.close()


class _Opening:
    """A window whose groups are with the pool."""

    def __init__(
        self, places: Indices, pool: OpenerPool, groups: Sequence[Sequence[Extent]]
    ) -> None:
        self._places = places
        self._pool = pool
        self._work: list[tuple[Future[None], Sequence[Extent]]] = []
        try:
            for group in groups:
                self._work.append((pool.submit(group), group))
        except BaseException:
            self.abandon()
            raise

    def wait(self) -> Indices:
        """See ``Pending``: all of them end before the first error is raised.

        Who waits opens what nobody has begun, from the end, where nobody will soon.
        """
        failed: dict[int, BaseException] = {}
        ours = list(enumerate(self._work)) if self._pool.caller_opens else []
        try:
            for index, (future, group) in reversed(ours):
                if future.cancel() and (error := self._opened_here(group)):
                    failed[index] = error
        finally:
            begun = self._settled()
        for index, each in begun:
            if others := each.exception():
                failed[index] = others
        if failed:
            raise failed[min(failed)]
        return self._places

    def abandon(self) -> None:
        """See ``Pending``."""
        for future, _ in self._work:
            future.cancel()
        self._settled()

    def _opened_here(self, group: Sequence[Extent]) -> Exception | None:
        try:
            self._pool.open_here(group)
        except Exception as error:
            return error
        return None

    def _settled(self) -> list[tuple[int, Future[None]]]:
        """The groups that others opened, by number, when they are done with them."""
        begun = [
            (index, future)
            for index, (future, _) in enumerate(self._work)
            if not future.cancelled()
        ]
        wait([future for _, future in begun])
        return begun


def window_bytes(shards: ShardSet, options: OrderOptions) -> int:
    """Bytes of the largest window of any epoch."""
    layout = shards.layout
    order = EpochOrder(layout, options, 0)
    rows = max(-(-each.record_bytes // layout.row_bytes) for each in layout.shards)
    if layout.chosen is None:
        return min(order.units_per_window * rows, order.rows) * layout.row_bytes
    # What lies between chosen rows of a record is opened with them.
    units = min(order.units_per_window, len(layout.unit_starts))
    return units * rows * layout.row_bytes


def record_window_bytes(shards: ShardSet, options: OrderOptions) -> int:
    """Bytes of all records that the largest window has rows of."""
    layout = shards.layout
    order = EpochOrder(layout, options, 0)
    largest = max(shard.record_bytes for shard in layout.shards)
    # A rank's first and last unit may be parts of the same records as others' are.
    most = min(order.units_per_window, len(layout.unit_starts))
    return most * largest
