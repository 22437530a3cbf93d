"""The memory of one visit, and its scrub (rule H2).

The buffer is an anonymous memory file that the recipe's process can map to read, the
quarantine slot a private mapping; both are kept out of core dumps and forked children
and locked into memory where the machine allows that.

What a scrub reports was read after the overwrite; a "done" flag is never believed (the
vendor's own scrub semaphores are unprotected). The report is a statement of the
attested accelerator, not a proof. Freed memory of libraries cannot be listed on a CPU;
the allocator overwrites it if the process was started so, and the report says whether
it was.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from sealift.channel.record.opener import scrub as overwrite
from sealift.data.schedule.memory import SharedBuffer, lock_memory
from sealift.errors import IntegrityError, UnavailableError
from sealift.ids import Handle
from sealift.release.receipt import ScrubbedPart, ScrubSummary

_LIVE: weakref.WeakSet[CPUPool] = weakref.WeakSet()


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
            f"there is no memory for a quarantine slot of {length} bytes",
            why=error,
            code="no-memory",
        ) from None
    mapped.madvise(mmap.MADV_DONTDUMP)
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped


CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(CHUNK_BYTES)
_LIBC: Final = ctypes.CDLL(None)
_PYTHON: Final = ctypes.pythonapi
_MARK: Final = 0x3C
_TRIED_BYTES: Final = (
    96,
    480,
    4000,
)  # a cached chunk, Python's largest own, an ordinary one
_OWN_BYTES: Final = 32
_memcmp = _LIBC.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
# Any non-zero byte makes glibc overwrite what is freed; 165 is 0xA5. Chunks that go to
# the per-thread cache (up to 1 KiB) are not overwritten, so there is none; and MKL keeps
# packed copies of activations in buffers of its own unless told to free them.
ALLOCATOR_ENVIRONMENT: Final = {
    "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0",
    "PYTHONMALLOC": "malloc",
    "MKL_DISABLE_FAST_MM": "1",
}


def count_nonzero(region: memoryview) -> int:
    """How many bytes of a region are not zero."""
    found = 0
    for start in range(0, len(region), CHUNK_BYTES):
        chunk = region[start : start + CHUNK_BYTES]
        # memcmp in place first: counting makes a copy, which only a failure deserves.
        address = ctypes.addressof(ctypes.c_char.from_buffer(chunk))
        if _memcmp(address, _ZEROS, len(chunk)):
            found += len(chunk) - bytes(chunk).count(0)
    return found


def scrub(
    regions: Mapping[str, memoryview],
    *,
    write: Callable[[memoryview], None] = overwrite,
) -> ScrubSummary:
    """Overwrite every region, read it back, and report.

    Raises:
        IntegrityError: if anything but zeros was read back.
    """
    for region in regions.values():
        write(region)
    found = tuple(
        ScrubbedPart(name, len(region), count_nonzero(region))
        for name, region in regions.items()
    )
    left = sum(region.nonzero_bytes for region in found)
    if left:
        raise IntegrityError(
            "the memory was not overwritten completely",
            why=f"{left} bytes were not zero",
            code="scrub",
        )
    return ScrubSummary(found, freed_is_overwritten(), verified=True)


def asks_to_overwrite(environment: Mapping[str, str]) -> bool:
    """Whether a process that is started with it overwrites freed memory."""
    return all(environment.get(k) == v for k, v in ALLOCATOR_ENVIRONMENT.items())


def restart_overwriting(module: str) -> None:
    """The allocator reads its settings when a process starts, so start again with them."""
    if not asks_to_overwrite(os.environ):
        os.environ.update(ALLOCATOR_ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *sys.argv[1:]])  # noqa: S606 - ourselves


@cache
def freed_is_overwritten() -> bool:
    """Whether the allocators of this very process do, tried on memory that is freed.

    An environment can be changed long after they read it. For MKL there is no such
    trial: what its setting was at the start counts.
    """
    kept = os.environ.get("MKL_DISABLE_FAST_MM") == "1"
    pairs = (
        (_LIBC.malloc, _LIBC.free),
        (_PYTHON.PyObject_Malloc, _PYTHON.PyObject_Free),
    )
    return kept and all(
        _overwrites(take, give, size) for take, give in pairs for size in _TRIED_BYTES
    )


def _overwrites(take: Any, give: Any, size: int) -> bool:
    take.restype, give.restype = ctypes.c_void_p, None
    left = ctypes.create_string_buffer(size)  # before: else it might be this very place
    place, behind = (ctypes.c_void_p(take(ctypes.c_size_t(size))) for _ in range(2))
    ctypes.memset(place, _MARK, size)
    give(place)
    ctypes.memmove(left, place, size)  # still mapped: what lies behind is in use
    give(behind)
    # Its first words are the allocator's own now; behind them a row would lie.
    return _MARK not in left.raw[_OWN_BYTES:]
