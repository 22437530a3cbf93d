"""Which batches an epoch has: of which rows, of how many, and of which fields.

All that is decided before a record is opened, and checked: what means nothing is
refused when a loader is made.

Memory of batches, used again once nothing refers to a batch any more.

A batch of 38 MB whose pages are new each time costs more than opening it does: the system
clears 9,000 pages. So large fields lie in mappings of huge pages, which come back when
the last tensor, view, numpy array or storage over them is gone, and not before.
Guarantees: a tensor's memory belongs to it alone for as long as anything refers to it;
what is idle is bounded, and overwritten when its loader does not iterate; no two loaders
share memory, so no two owners' datasets do.
Not promised: raw addresses (``data_ptr``) of a tensor that is gone, and numpy arrays of
one whose storage torch replaced under them (``share_memory_``), as with any tensor.

Batches by columns: one gather per field, no Python per row.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sealift.channel.device.device import Verdicts
from sealift.data.loader.arguments import demand_count
from sealift.data.loader.windows import overwrite_memory, use_huge_pages
from sealift.data.schedule.order import EpochOrder, Layout, OrderOptions
from sealift.data.schema.schema import Field, Schema
from sealift.errors import UsageError


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one rank.

    Attributes:
        schema: Of the rows.
        layout: Where they are.
        order: In which order this rank reads them.
        batch_size: Rows of a batch; the last one may be shorter.
        drop_last: Whether it is left out then.
        fields: Those of a batch, in its order; all of them, and by name, if None.

    Raises:
        UsageError: for a size of nothing, a field that there is not, or more ranks than
            rows.
    """

    schema: Schema
    layout: Layout
    order: OrderOptions
    batch_size: int
    drop_last: bool
    fields: Sequence[str] | None

    def __post_init__(self) -> None:
        demand_count(self.batch_size, "a batch must have at least one row", least=1)
        # With more ranks than rows an epoch would be empty.
        demand_count(self.rows, "an epoch must have rows")
        if isinstance(self.fields, str):
            raise UsageError("fields= must be a list", fix=f"Use [{self.fields!r}]")
        known = [field.name for field in self.schema.fields]
        for name in self.fields or ():
            if name not in known:
                raise UsageError(
                    f"the schema has no field {name!r}", fix=f"Use {', '.join(known)}"
                )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields of a batch, in its order."""
        every = tuple(field.name for field in self.schema.fields)
        return every if self.fields is None else tuple(self.fields)

    @property
    def chosen(self) -> list[Field]:
        """What the fields of a batch are."""
        every = {field.name: field for field in self.schema.fields}
        return [every[name] for name in self.names]

    @cached_property
    def rows(self) -> int:
        """Rows of an epoch, those of a last batch that is left out among them."""
        return EpochOrder(self.layout, self.order, 0).rows

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.rows, self.batch_size)
        return full + bool(rest and not self.drop_last)

    @property
    def end(self) -> int:
        """Where an epoch ends: without the last batch, if it is left out."""
        return self.rows - (self.rows % self.batch_size if self.drop_last else 0)

    @property
    def has_one_shape(self) -> bool:
        """Whether every batch has as many rows."""
        return self.drop_last or self.rows % self.batch_size == 0


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


Columns = Mapping[str, Tensor]


class PartialBatch:
    """A batch that is being filled, from one window or at the seam of several.

    Args:
        columns: Of a window: per field, a view of its rows.
        fields: Which of them, in this order.
        rows: How many rows it will have.
        memory: Where it is, if columns are on the CPU.
        most_rows: Of any batch of this loader.
    """

    def __init__(
        self,
        columns: Columns,
        fields: Sequence[str],
        rows: int,
        memory: BatchMemory,
        most_rows: int,
    ) -> None:
        self.rows = rows
        self.filled = 0
        self._fields = fields
        self.verdicts: list[Verdicts] = []  # of the windows it was filled from
        self.tensors = [
            _empty(columns[name], rows, memory, most_rows) for name in fields
        ]

    @property
    def missing(self) -> int:
        """Rows that are not filled yet."""
        return self.rows - self.filled

    def scrub(self) -> None:
        """Overwrite it: nobody will have it."""
        for tensor in self.tensors:
            tensor.zero_()

    def fill(
        self, columns: Columns, places: Tensor, verdicts: Verdicts | None = None
    ) -> None:
        """Copy the rows at ``places`` (``int64``) behind those that are there.

        ``verdicts``: what is still out about them.
        """
        if verdicts is not None:
            self.verdicts.append(verdicts)
        end = self.filled + len(places)
        for name, out in zip(self._fields, self.tensors, strict=True):
            column = columns[name]
            here = places.to(column.device)
            torch.index_select(column, 0, here, out=out[self.filled : end])
        self.filled = end


def _empty(column: Tensor, rows: int, memory: BatchMemory, most_rows: int) -> Tensor:
    shape = (rows, *column.shape[1:])
    if column.device.type == "cpu":
        return memory.empty(shape, column.dtype, most_rows=most_rows)
    return torch.empty(shape, dtype=column.dtype, device=column.device)
