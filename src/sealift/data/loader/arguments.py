"""What a loader is called with, in the words of ``torch.utils.data``.

Which rows of which sealed tables: a ``SealedDataset``, or what ``random_split``,
``Subset`` and ``ConcatDataset`` make of some. Which of ``DataLoader``'s arguments mean
something here, and what stands for those that do not. Numbers and ranks.
Not supported: other data sets over sealed ones, which run code per row; torch's own
``DataLoader`` takes them, with ``num_workers=0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from sealift.data.schedule.order import Indices
from sealift.data.shards.dataset import SealedDataset
from sealift.data.shards.shardset import ShardSet, join_shards
from sealift.errors import UsageError

SealedRows: TypeAlias = SealedDataset | Subset[Any] | ConcatDataset[Any]

_INSTEAD: Final = {
    "batch_sampler": "use shuffle= and seed= for the order, and a Subset for a choice of rows",
    "collate_fn": "batches already consist of columns; use transform= to change a whole batch",
    "generator": "use seed= for the order",
    "multiprocessing_context": "workers='process' always starts new processes",
    "pin_memory": "use device= for the place of batches",
    "pin_memory_device": "use device= for the place of batches",
    "prefetch_factor": "use window_bytes= for the amount that is opened ahead",
    "sampler": "use shuffle= and seed= for the order, and a Subset for a choice of rows",
    "timeout": "the loader notices a lost worker immediately",
    "worker_init_fn": "workers only open records and run no code of yours",
}
_ALWAYS_SO: Final = ("in_order", "persistent_workers")


@dataclass(frozen=True)
class LoaderSource:
    """What a loader reads.

    Attributes:
        datasets: Those that must stay open.
        shards: All of theirs, with the rows that were chosen.
    """

    datasets: tuple[SealedDataset, ...]
    shards: ShardSet

    def demand_usable(self) -> None:
        """See ``SealedDataset``."""
        for dataset in self.datasets:
            dataset.demand_usable()


def source_of(data: SealedRows) -> LoaderSource:
    """What is read of ``data``.

    Raises:
        UsageError: if it is something else, has no rows, or names rows it has not.
        MalformedError: code ``schema-mismatch``, if tables have different columns.
    """
    datasets, chosen = _rows_of(data)
    if not len(chosen):
        raise UsageError("the dataset has no rows")
    shards = join_shards([each.shards for each in datasets])
    if not np.array_equal(chosen, np.arange(shards.layout.rows)):
        shards = replace(shards, layout=replace(shards.layout, chosen=np.sort(chosen)))
    return LoaderSource(datasets, shards)


def _rows_of(data: Any) -> tuple[tuple[SealedDataset, ...], Indices]:
    """Tables, and which of their rows, counted through all of them."""
    # Whose class was derived from one of these may change rows: not passed over here.
    if isinstance(data, SealedDataset):
        return (data,), np.arange(len(data))
    if type(data) is Subset:
        datasets, rows = _rows_of(data.dataset)
        return datasets, rows[_indices(data.indices, len(rows))]
    if type(data) is ConcatDataset:
        datasets, chosen, before = (), [], 0
        for part in data.datasets:
            tables, rows = _rows_of(part)
            datasets += tables
            chosen.append(rows + before)
            before += sum(map(len, tables))
        return datasets, np.concatenate(chosen)
    raise UsageError(
        f"a sealed loader cannot read a {type(data).__name__}",
        fix="Use a SealedDataset, a Subset or ConcatDataset of some, or torch's DataLoader with num_workers=0",
    )


def _indices(indices: object, rows: int) -> Indices:
    found = np.asarray(indices)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UsageError("the indices of a Subset must be a list of whole numbers")
    if found.min() < -rows or found.max() >= rows:
        raise UsageError(
            f"a Subset names a row outside the {rows:,} rows of the dataset"
        )
    return found.astype(np.int64) % rows


def refuse_torchs(given: Mapping[str, object]) -> None:
    """Refuse what ``DataLoader`` takes and a sealed loader cannot.

    Raises:
        UsageError: with what stands for it here.
        TypeError: Python's, for any other name.
    """
    for name, value in given.items():
        if name in _INSTEAD and value:
            raise UsageError(
                f"a sealed loader does not support {name}=", why=_INSTEAD[name]
            )
        if name not in _INSTEAD and name not in _ALWAYS_SO:
            raise TypeError(f"SealedDataLoader() has no argument {name!r}")


def demand_count(number: object, what: str, *, least: int = 0) -> None:
    """Demand a whole number of at least ``least``.

    Raises:
        UsageError: which says ``what``.
    """
    if type(number) is not int or number < least:
        raise UsageError(what, fix=f"Use {least} or more")


def place_among_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process's rank, and how many there are; what is None, torch says."""
    distributed = torch.distributed
    here, ranks = 0, 1
    if distributed.is_available() and distributed.is_initialized():
        here, ranks = distributed.get_rank(), distributed.get_world_size()
    return here if rank is None else rank, ranks if world_size is None else world_size
