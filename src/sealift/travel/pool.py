"""The memory of one visit: buffer, staging and quarantine slot (rule H2).

On a CPU it is one private anonymous mapping, kept out of core dumps and forked
children and locked into memory where the machine allows that. A device pool
implements the same protocol with device memory.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Mapping
from typing import Final, Protocol

from sealift.channel.quarantine import scrub as overwrite
from sealift.errors import UnavailableError
from sealift.ids import Handle

PAGE_BYTES: Final = mmap.PAGESIZE
_LIVE: weakref.WeakSet[CPUPool] = weakref.WeakSet()


class Pool(Protocol):
    """Memory that belongs to one visit and is scrubbed as a whole."""

    handle: Handle

    @property
    def buffer(self) -> memoryview:
        """Where the cargo is placed."""
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
    """A pool in this process's private memory.

    Args:
        buffer_bytes: Length of the cargo buffer.
        record_bytes: Length of the quarantine slot.

    Raises:
        UnavailableError: if the memory cannot be had.
    """

    def __init__(self, buffer_bytes: int, record_bytes: int) -> None:
        self.handle = Handle.generate()
        self._sizes = {"buffer": buffer_bytes, "quarantine": record_bytes}
        total = sum(_page_up(size) for size in self._sizes.values())
        try:
            self._map = mmap.mmap(
                -1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, ValueError, OverflowError) as error:
            raise UnavailableError(
                f"no memory for a visit pool of {total} bytes",
                why=str(error),
                fix="Lower buffer_bytes in the job",
                code="no-memory",
            ) from None
        self._map.madvise(mmap.MADV_DONTDUMP)
        self._map.madvise(mmap.MADV_DONTFORK)
        self.locked = _lock(self._map)
        self._views = self._slice()
        _LIVE.add(self)

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
        """Unmap, or drop the pages where a tensor of the recipe still points here."""
        _LIVE.discard(self)
        try:
            for view in self._views.values():
                view.release()
            self._map.close()
        except BufferError:
            _unlock(self._map)  # locked pages are not dropped (EINVAL)
            self._map.madvise(mmap.MADV_DONTNEED)

    def _slice(self) -> dict[str, memoryview]:
        whole, start, views = memoryview(self._map), 0, {}
        for name, size in self._sizes.items():
            views[name] = whole[start : start + size]
            start += _page_up(size)
        return views


def overwrite_live_pools() -> None:
    """Overwrite every pool of this process: the last act of a second signal."""
    for pool in list(_LIVE):
        for region in pool.regions().values():
            overwrite(region)


def _page_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _lock(mapping: mmap.mmap) -> bool:
    """mlock, so that cargo never reaches swap; False where the limit forbids it."""
    return _call("mlock", mapping) == 0


def _unlock(mapping: mmap.mmap) -> None:
    """Undo it; harmless where it was never locked."""
    _call("munlock", mapping)


def _call(name: str, mapping: mmap.mmap) -> int:
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    return int(function(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping))))
