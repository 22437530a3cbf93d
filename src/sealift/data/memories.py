"""Which memory a loader's windows are in: this host's, or a device's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch

from sealift.channel.device import DeviceEngine
from sealift.data.arena import WindowArena
from sealift.data.collate import Columns, columns_of
from sealift.data.dataset import SealedDataset
from sealift.data.opening import Opener, OpenerPool, ShardOpener
from sealift.data.order import OrderOptions
from sealift.data.shardset import ShardSet
from sealift.data.windows import HostWindows, WindowMemory, window_bytes
from sealift.data.worker.process import SpawnedOpener
from sealift.errors import UsageError

WorkerKind = Literal["thread", "process"]
SLOTS: Final = 2  # one is read while the next is opened


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Who opens records, and where; see ``SealedDataLoader``."""

    num_workers: int = 1
    workers: WorkerKind = "thread"
    engine: DeviceEngine | None = None


@dataclass(frozen=True)
class Rows:
    """Memory for windows, and how a slot of it is seen as columns."""

    memory: WindowMemory
    columns: Callable[[int], Columns]


def make_rows(
    dataset: SealedDataset, order: OrderOptions, options: MemoryOptions
) -> Rows:
    """Make the memory and start the workers.

    Raises:
        UsageError: for a kind of worker that there is not.
        UnavailableError: without memory, or if a worker does not start.
    """
    if options.workers not in ("thread", "process"):
        raise UsageError(f"workers are 'thread' or 'process', not {options.workers!r}")
    return _host_rows(dataset, order, options)


def _host_rows(
    dataset: SealedDataset, order: OrderOptions, options: MemoryOptions
) -> Rows:
    shards, schema = dataset.shards, dataset.schema
    threaded = options.num_workers > 0
    slot_bytes = window_bytes(shards, order)
    shared = threaded and options.workers == "process"
    arena = WindowArena(SLOTS if threaded else 1, slot_bytes, shared=shared)
    with contextlib.ExitStack() as undo:
        undo.callback(arena.close)
        openers: list[Opener] = []
        for _ in range(max(1, options.num_workers)):
            openers.append(_opener(shards, arena))
            undo.callback(openers[-1].close)
        undo.pop_all()
    pool = OpenerPool(openers, threaded=threaded)
    memory = HostWindows(arena, pool, schema.row_bytes)

    def columns(slot: int) -> Columns:
        view = memory.view(slot, slot_bytes // schema.row_bytes)
        rows = torch.frombuffer(view, dtype=torch.uint8).view(-1, schema.row_bytes)
        return columns_of(rows, schema)

    return Rows(memory, columns)


def _opener(shards: ShardSet, arena: WindowArena) -> Opener:
    if arena.descriptor < 0:
        return ShardOpener(shards.shards, shards.leaves, arena.part)
    return SpawnedOpener(shards.shards, arena)
