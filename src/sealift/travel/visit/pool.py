"""The memory of one visit: buffer, staging and quarantine slot (rule H2).

On a CPU the buffer is an anonymous memory file that the recipe's process can map to
read, the quarantine slot a private mapping; both are kept out of core dumps and forked
children and locked into memory where the machine allows that. A device pool implements
the same protocol with device memory.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from typing import Protocol

from sealift.channel.record.quarantine import scrub as overwrite
from sealift.data.schedule.memory import SharedBuffer, lock_memory
from sealift.errors import UnavailableError
from sealift.ids import Handle

_LIVE: weakref.WeakSet[CPUPool] = weakref.WeakSet()


class Pool(Protocol):
    """Memory that belongs to one visit and is scrubbed as a whole."""

    handle: Handle

    @property
    def buffer(self) -> memoryview:
        """Where the cargo is placed."""
        ...

    @property
    def descriptor(self) -> int:
        """What another process maps the buffer by, to read; -1 if none can."""
        ...

    @property
    def quarantine(self) -> memoryview:
        """Where a record is opened before its tag and leaf have verified."""
        ...

    def regions(self) -> Mapping[str, memoryview]:
        """Every region by name, for the scrub and its read-back."""
        ...

    def close(self) -> None:
        """Give the memory back; only after a scrub."""
        ...


class CPUPool:
    """A pool in this process's memory; a worker may map the buffer, to read.

    Args:
        buffer_bytes: Length of the cargo buffer.
        record_bytes: Length of the quarantine slot, which nobody else can map.

    Raises:
        UnavailableError: if the memory cannot be had.
    """

    def __init__(self, buffer_bytes: int, record_bytes: int) -> None:
        self.handle = Handle.generate()
        self.shared = SharedBuffer(buffer_bytes)
        try:
            self._map = _private(record_bytes)
        except BaseException:
            self.shared.close()
            raise
        self.locked = lock_memory(self._map) and self.shared.locked
        quarantine = memoryview(self._map)[:record_bytes]
        self._views = {"buffer": self.shared.view, "quarantine": quarantine}
        _LIVE.add(self)

    @property
    def descriptor(self) -> int:
        """What a worker maps the buffer by, to read."""
        return self.shared.descriptor

    @property
    def buffer(self) -> memoryview:
        """Where the cargo is placed."""
        return self._views["buffer"]

    @property
    def quarantine(self) -> memoryview:
        """Where a record is opened first."""
        return self._views["quarantine"]

    def regions(self) -> Mapping[str, memoryview]:
        """Every region by name."""
        return self._views

    def close(self) -> None:
        """Give the memory back; only after a scrub."""
        _LIVE.discard(self)
        self.shared.close()
        try:
            self._views["quarantine"].release()
            self._map.close()
        except BufferError:
            overwrite(memoryview(self._map))


def overwrite_live_pools() -> None:
    """Overwrite every pool of this process: the last act of a second signal."""
    for pool in list(_LIVE):
        for region in pool.regions().values():
            overwrite(region)


def _private(length: int) -> mmap.mmap:
    try:
        mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise UnavailableError(
            f"no memory for a quarantine slot of {length} bytes",
            why=error,
            code="no-memory",
        ) from None
    mapped.madvise(mmap.MADV_DONTDUMP)
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped
