"""Which memory a loader's windows are in: this host's, or a device's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.device.device import DeviceEngine, DeviceMemory, Verdicts
from sealift.channel.device.host import HostDevice, HostMemory
from sealift.channel.device.verdict import not_deferred
from sealift.channel.select import select_device
from sealift.data.loader.batches import Columns
from sealift.data.loader.devicewindows import DeviceWindows
from sealift.data.loader.opening import Opener, OpenerPool, ShardOpener
from sealift.data.loader.rowtensors import column_views
from sealift.data.loader.windows import (
    HostWindows,
    WindowArena,
    WindowMemory,
    record_window_bytes,
    window_bytes,
)
from sealift.data.loader.worker import SpawnedOpener
from sealift.data.schedule.order import OrderOptions
from sealift.data.shards.shardset import ShardSet
from sealift.errors import (
    AuthenticationError,
    UnavailableError,
    UsageError,
    require_value,
)

WorkerKind = Literal["thread", "process"]
Engine = DeviceEngine | Literal["auto", "host"]
SLOTS: Final = 2  # one is read while the next is opened


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Who opens records, and where; see ``SealedDataLoader``.

    ``device`` is None where the engine that is found decides it.
    """

    num_workers: int = 1
    workers: WorkerKind = "thread"
    device: torch.device | None = None
    engine: Engine = "auto"
    defers: bool = False


@dataclass(frozen=True)
class WindowRows:
    """Memory for windows, and how a slot of it is seen as columns.

    Attributes:
        opened_by: Who opens records, and why.
        device: Where batches go.
        engine: To be closed with this.
        gpu: The GPU that has the memory, if one has.
        verdicts: What is still out about a slot's window, if that is deferred.
        until_written: Lets torch's reading wait for that window's opening.
    """

    memory: WindowMemory
    columns: Callable[[int], Columns]
    opened_by: str
    device: torch.device
    engine: DeviceEngine | None = None
    gpu: torch.device | None = None
    verdicts: Callable[[int], Verdicts | None] = lambda _: None
    until_written: Callable[[int], None] = lambda _: None

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
    shards: ShardSet, order: OrderOptions, options: MemoryOptions
) -> WindowRows:
    """Make the memory and start the workers.

    Raises:
        UsageError: for a kind of worker that there is not.
        UnavailableError: without memory, if a worker does not start, or if there is a
            GPU that cannot be used.
    """
    if options.workers not in ("thread", "process"):
        raise UsageError(f"workers={options.workers!r} is not thread or process")
    if not isinstance(options.engine, str):
        return _device_rows(shards, order, options.engine, options)
    if options.engine not in ("auto", "host"):
        raise UsageError(f"engine={options.engine!r} is not auto, host or an engine")
    if options.engine == "host" and options.device is None:
        raise UsageError(
            "device='auto' chooses the engine", fix="Name the device, or no engine"
        )
    if options.defers and options.engine == "host":
        raise not_deferred("engine='host' verifies every batch before it returns it")
    elsewhere = options.device is not None and options.device.type != "cuda"
    if not options.defers and (options.engine == "host" or elsewhere):
        return _host_rows(shards, order, options)
    return _selected_rows(shards, order, options)


def _selected_rows(
    shards: ShardSet, order: OrderOptions, options: MemoryOptions
) -> WindowRows:
    """On the GPU that was named, or on the one there is; else, for ``auto``, here."""
    # No silent way back to the host: who wants that says engine="host".
    named = options.device
    kind = None if named is None else "cuda" if named.type == "cuda" else "host"
    ordinal = 0 if named is None else named.index or 0
    chosen = select_device(prefer=kind, ordinal=ordinal)
    if isinstance(chosen.engine, HostDevice) and not options.defers:
        chosen.engine.close()  # the openers of the host need no copy
        cpu = replace(options, device=torch.device("cpu"))
        return replace(_host_rows(shards, order, cpu), opened_by=chosen.reason)
    try:
        rows = _device_rows(shards, order, chosen.engine, options, selected=True)
    except BaseException:
        chosen.engine.close()
        raise
    return replace(rows, engine=chosen.engine, opened_by=chosen.reason)


def _device_rows(
    shards: ShardSet,
    order: OrderOptions,
    engine: DeviceEngine,
    options: MemoryOptions,
    *,
    selected: bool = False,
) -> WindowRows:
    """Batches stay where a selected engine is; from one that was given they may go."""
    schema = shards.schema
    largest = record_window_bytes(shards, order)
    memory = DeviceWindows(shards, engine, largest, defers=options.defers)
    lies_on = options.device or torch.device("cuda")

    def columns(slot: int) -> Columns:
        plain = device_tensor(memory.plain(slot), lies_on)
        whole = plain[: len(plain) // schema.row_bytes * schema.row_bytes]
        return column_views(whole.view(-1, schema.row_bytes), schema)

    try:
        found = device_tensor(memory.plain(0), lies_on).device
        device = found if selected or options.device is None else options.device
        if options.defers and device.type != found.type:
            raise not_deferred(f"a copy to {device} leaves {found}, where batches are")
        device = found if options.defers else device
    except BaseException:
        memory.close()
        raise
    return WindowRows(
        memory,
        columns,
        opened_by=f"{engine.name}: given by the caller",
        device=device,
        gpu=found if found.type == "cuda" else None,
        verdicts=memory.verdicts,
        until_written=lambda slot: _until_written(engine, memory.verdicts(slot), found),
    )


def _until_written(
    engine: DeviceEngine, verdicts: Verdicts | None, device: torch.device
) -> None:
    """Let what torch is told next see a window whole, or zeroes if it was refused."""
    if verdicts is None:
        return
    if device.type == "cuda" and isinstance(engine, CudaEngine):
        engine.lead(torch.cuda.current_stream(device).cuda_stream)
        return
    with contextlib.suppress(AuthenticationError):  # told by whoever asks the gate
        verdicts.wait()


def device_tensor(memory: DeviceMemory, device: torch.device) -> Tensor:
    """The bytes of a device's memory as a tensor, not a copy; ``device``: which GPU.

    Raises:
        UnavailableError: code ``torch-without-gpu``.
    """
    if isinstance(memory, HostMemory):
        # By way of numpy, which (other than torch) keeps the memory from being unmapped.
        return torch.from_numpy(np.frombuffer(memory.view, dtype=np.uint8))
    if not torch.cuda.is_available():
        raise UnavailableError(
            "torch cannot use the GPU that opens the records",
            why="this build of torch has no CUDA, or finds no GPU",
            code="torch-without-gpu",
        )
    gpu = device if device.type == "cuda" else torch.device("cuda")
    return torch.as_tensor(memory, device=gpu)


def _host_rows(
    shards: ShardSet, order: OrderOptions, options: MemoryOptions
) -> WindowRows:
    schema = shards.schema
    threaded = options.num_workers > 0
    slot_bytes = window_bytes(shards, order)
    shared = threaded and options.workers == "process"
    arena = WindowArena(SLOTS if threaded else 1, slot_bytes, shared=shared)
    with contextlib.ExitStack() as undo:
        undo.callback(arena.close)
        openers: list[Opener] = []
        for _ in range(options.num_workers):
            openers.append(_opener(shards, arena))
            undo.callback(openers[-1].close)
        undo.pop_all()
    # Who asks for processes wants nothing opened here; and hears when one is gone.
    own = None if shared else ShardOpener(shards.shards, shards.leaves, arena.part)
    pool = OpenerPool(openers, own)
    memory = HostWindows(arena, pool, schema.row_bytes)

    def columns(slot: int) -> Columns:
        view = memory.view(slot, slot_bytes // schema.row_bytes)
        rows = torch.frombuffer(view, dtype=torch.uint8).view(-1, schema.row_bytes)
        return column_views(rows, schema)

    device = require_value(options.device)
    why = (
        "asked for by name" if options.engine == "host" else f"for batches on {device}"
    )
    return WindowRows(memory, columns, f"host: {why}", device)


def _opener(shards: ShardSet, arena: WindowArena) -> Opener:
    if arena.descriptor < 0:
        return ShardOpener(shards.shards, shards.leaves, arena.part)
    return SpawnedOpener(shards.shards, arena)
