"""Memory of batches, used again once nothing refers to a batch any more.

A batch of 38 MB whose pages are new each time costs more than opening it does: the system
clears 9,000 pages. So large fields lie in mappings of huge pages, which come back when
the last tensor, view, numpy array or storage over them is gone, and not before.
Guarantees: a tensor's memory belongs to it alone for as long as anything refers to it;
what is idle is bounded, and overwritten when its loader does not iterate; no two loaders
share memory, so no two owners' datasets do.
Not promised: raw addresses (``data_ptr``) of a tensor that is gone, and numpy arrays of
one whose storage torch replaced under them (``share_memory_``), as with any tensor.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sealift.data.loader.arena import overwrite_memory, use_huge_pages

SMALL_BYTES: Final = 1 << 20  # below, malloc uses its own again without new pages
IDLE_BYTES: Final = 256 << 20  # of all sizes together


class BatchMemory:
    """Where the fields of one loader's batches lie.

    Tensors die in any thread and in the midst of anything, so nothing here takes a lock.

    Args:
        most_idle_bytes: How much is kept that nothing refers to.
    """

    def __init__(self, most_idle_bytes: int = IDLE_BYTES) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._idle: deque[mmap.mmap] = deque()
        self._resting = True  # nobody iterates: what comes back is overwritten

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept and that nothing refers to."""
        return sum(map(len, tuple(self._idle)))

    def work(self) -> None:
        """Let the rows of one batch take the place of another's as they are."""
        self._resting = False

    def rest(self) -> None:
        """Overwrite what is idle, and from now on whatever comes back."""
        self._resting = True
        with contextlib.suppress(IndexError):  # another thread overwrites the rest
            for _ in range(len(self._idle)):
                memory = self._idle.popleft()
                overwrite_memory(memory)
                self._idle.append(memory)

    def close(self) -> None:
        """As ``rest``, and keep nothing any more. Idempotent."""
        self._most_idle_bytes = 0
        self.rest()
        self._idle.clear()

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, *, most_rows: int = 0
    ) -> Tensor:
        """A tensor on the CPU, contiguous, its content anything, its size for good.

        Args:
            shape: The first number is that of rows.
            dtype: Of an element; one that numpy has.
            most_rows: Of the largest such tensor, whose memory does for this one, too.

        Raises:
            RuntimeError: torch's, without memory.
        """
        rows, *row_shape = shape
        if rows < most_rows <= 2 * rows:  # else a short batch would hold a long one's
            rows = most_rows
        nbytes = rows * math.prod(row_shape) * dtype.itemsize
        memory = self._taken(nbytes) if nbytes >= SMALL_BYTES else None
        if memory is None:
            return torch.empty(tuple(shape), dtype=dtype)
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        # torch's storage holds this very array, and all that views it holds the storage.
        array: NDArray[Any] = np.ndarray(tuple(shape), kind, buffer=memory)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return torch.from_numpy(array)

    def _taken(self, nbytes: int) -> mmap.mmap | None:
        size_bytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with contextlib.suppress(IndexError):  # another thread has the last ones
            for _ in range(len(self._idle)):
                memory = self._idle.pop()  # the last is likeliest in the cache
                if len(memory) == size_bytes:
                    return memory
                self._idle.appendleft(memory)
        with contextlib.suppress(OSError, ValueError):  # torch says it better
            # Private: a forked child has a copy of what it was handed out.
            memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE)
            use_huge_pages(memory)
            return memory
        return None

    def _give_back(self, memory: mmap.mmap) -> None:
        rested = self._resting
        if rested:
            overwrite_memory(memory)
        if self.idle_bytes + len(memory) <= self._most_idle_bytes:
            self._idle.append(memory)
        if self._resting and not rested:  # it began meanwhile, in another thread
            self.rest()
