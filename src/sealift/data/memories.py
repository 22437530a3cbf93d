"""Which memory a loader's windows are in: this host's, or a device's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device import DeviceEngine, DeviceMemory
from sealift.channel.hostdevice import HostMemory
from sealift.data.arena import WindowArena
from sealift.data.collate import Columns, columns_of
from sealift.data.dataset import SealedDataset
from sealift.data.devicewindows import DeviceWindows
from sealift.data.opening import Opener, OpenerPool, ShardOpener
from sealift.data.order import OrderOptions
from sealift.data.shardset import ShardSet
from sealift.data.windows import (
    HostWindows,
    WindowMemory,
    record_window_bytes,
    window_bytes,
)
from sealift.data.worker.process import SpawnedOpener
from sealift.errors import UsageError

WorkerKind = Literal["thread", "process"]
Engine = DeviceEngine | Literal["auto", "host"]
SLOTS: Final = 2  # one is read while the next is opened


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Who opens records, and where; see ``SealedDataLoader``."""

    num_workers: int = 1
    workers: WorkerKind = "thread"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    engine: Engine = "auto"


@dataclass(frozen=True)
class Rows:
    """Memory for windows, and how a slot of it is seen as columns."""

    memory: WindowMemory
    columns: Callable[[int], Columns]
    engine: DeviceEngine | None = None
    gpu: torch.device | None = None

    def settle(self) -> None:
        """Wait until torch has read what it was told to read from a slot."""
        if self.gpu is not None:
            torch.cuda.current_stream(self.gpu).synchronize()

    def close(self) -> None:
        """Close the memory, and the engine if it was made for it."""
        self.memory.close()
        if self.engine is not None:
            self.engine.close()


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
    if options.engine == "host":
        return _host_rows(dataset, order, options)
    if options.engine != "auto":
        return _device_rows(dataset, order, options.engine, options.device)
    if options.device.type != "cuda":
        return _host_rows(dataset, order, options)
    # No silent way back to the host: who wants that says engine="host".
    engine = open_cuda(options.device.index or 0)
    try:
        rows = _device_rows(dataset, order, engine, options.device)
    except BaseException:
        engine.close()
        raise
    return Rows(rows.memory, rows.columns, engine, rows.gpu)


def _device_rows(
    dataset: SealedDataset,
    order: OrderOptions,
    engine: DeviceEngine,
    device: torch.device,
) -> Rows:
    shards, schema = dataset.shards, dataset.schema
    memory = DeviceWindows(shards, engine, record_window_bytes(shards, order))

    def columns(slot: int) -> Columns:
        plain = device_tensor(memory.plain(slot), device)
        whole = plain[: len(plain) // schema.row_bytes * schema.row_bytes]
        return columns_of(whole.view(-1, schema.row_bytes), schema)

    found = device_tensor(memory.plain(0), device).device
    return Rows(memory, columns, gpu=found if found.type == "cuda" else None)


def device_tensor(memory: DeviceMemory, device: torch.device) -> Tensor:
    """The bytes of a device's memory as a tensor, not a copy; ``device``: which GPU."""
    if isinstance(memory, HostMemory):
        # By way of numpy, which (other than torch) keeps the memory from being unmapped.
        return torch.from_numpy(np.frombuffer(memory.view, dtype=np.uint8))
    gpu = device if device.type == "cuda" else torch.device("cuda")
    return torch.as_tensor(memory, device=gpu)


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
