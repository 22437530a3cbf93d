"""Which memory a loader's windows are in: this host's, or a device's.

Windows of rows in a device's memory: sealed records go there and are opened there.

Sealed bytes are read into private memory, copied to the device and opened by its engine;
the host never has the plaintext, but for one case: where shards have cards, a record is
copied back once, when it is first seen, to be compared with what the card commits to
(rule C5); from then on a keyed hash of its sealed bytes says that it is the same.
Guarantees: as ``windows.HostWindows``; a window's verdicts are waited for before it is
handed out, unless they are deferred: then ``verdicts`` says what is still out. Records
hold whole rows here; others are opened on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.device.device import (
    DeviceEngine,
    DeviceKey,
    DeviceMemory,
    RecordPlace,
    Verdicts,
)
from sealift.channel.device.host import HostDevice, HostMemory
from sealift.channel.device.verdict import not_deferred
from sealift.channel.record.layout import sealed_bytes
from sealift.channel.record.opener import scrub
from sealift.channel.select import select_device
from sealift.crypto.hash import keyed_hash
from sealift.crypto.keys import SecretKey
from sealift.data.loader.batches import Columns
from sealift.data.loader.opening import (
    OPEN_SHARDS,
    AllOf,
    Opener,
    OpenerPool,
    ShardOpener,
)
from sealift.data.loader.rowtensors import column_views
from sealift.data.loader.windows import (
    HostWindows,
    Pending,
    WindowArena,
    WindowMemory,
    record_window_bytes,
    window_bytes,
)
from sealift.data.loader.worker import SpawnedOpener
from sealift.data.schedule.order import Indices, OrderOptions, Window
from sealift.data.shards.shard import OpenShards
from sealift.data.shards.shardset import ShardSet
from sealift.errors import (
    AuthenticationError,
    SealiftError,
    UnavailableError,
    UsageError,
    require_value,
)

WorkerKind = Literal["thread", "process"]
Engine = DeviceEngine | Literal["auto", "host"]
SLOTS: Final = 2  # one is read while the next is opened


@dataclass(frozen=True, slots=True)
class _Record:
    """A record of a window: which, and where its bytes lie in the slot's memories."""

    shard: int
    index: int
    plain: int
    plaintext_bytes: int
    sealed: int


class DeviceWindows:
    """Windows in memories of ``engine``.

    Args:
        shards: What to read.
        engine: Opens; the caller closes it.
        window_bytes: Bytes of the largest window's records.
        defers: Hand windows out before their verdicts, but for those that the processor
            must compare with a card: that is a copy to the host.

    Raises:
        UsageError: code ``rows-cross-records``.
        UnavailableError: if the device has no room.
    """

    num_slots = SLOTS

    def __init__(
        self,
        shards: ShardSet,
        engine: DeviceEngine,
        window_bytes: int,
        *,
        defers: bool = False,
    ) -> None:
        _demand_whole_rows(shards)
        self._shards = shards
        self._engine = engine
        self._defers = defers
        self._out: list[AllOf | None] = [None] * SLOTS
        self._readers = OpenShards(shards.shards, shards.leaves, OPEN_SHARDS)
        self._seen: dict[tuple[int, int], bytes] = {}
        self._seen_key = SecretKey.generate()
        records = -(-window_bytes // min(s.record_bytes for s in shards.layout.shards))
        staging_bytes = window_bytes + sealed_bytes(0) * (records + 1)
        self._pinned = engine.pinned(staging_bytes)
        own = memoryview(bytearray(0 if self._pinned else staging_bytes))
        self._staging = self._pinned.view if self._pinned else own
        self._memories: list[tuple[DeviceMemory, DeviceMemory]] = []
        try:
            for _ in range(SLOTS):
                sealed = engine.allocate(staging_bytes)
                self._memories.append((sealed, engine.allocate(window_bytes)))
        except BaseException:
            self._close_memories()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sealift-device")

    def begin(self, window: Window, slot: int) -> Pending:
        """See ``WindowMemory``: done by a thread, one window after another."""
        return _Loading(self._thread.submit(self._load, window, slot))

    def plain(self, slot: int) -> DeviceMemory:
        """The opened rows of a slot."""
        return self._memories[slot][1]

    def verdicts(self, slot: int) -> Verdicts | None:
        """What is still out about a slot's window; None where all of it verified."""
        return self._out[slot]

    def scrub(self) -> None:
        """See ``WindowMemory``."""
        for _, plain in self._memories:
            plain.scrub()

    def close(self) -> None:
        """See ``WindowMemory``."""
        self._thread.shutdown(cancel_futures=True)
        for out in self._out:
            if out is not None:  # told already, or to whoever asks later
                with contextlib.suppress(SealiftError):
                    out.wait()
        self._readers.close()
        self._close_memories()
        self._seen_key.wipe()

    def _load(self, window: Window, slot: int) -> Indices:
        sealed, plain = self._memories[slot]
        former, self._out[slot] = self._out[slot], None
        if former is not None:
            former.wait()
        records, places = self._placed(window)
        staging, used = self._staging, 0
        for record in records:
            reader = self._readers[record.shard]
            used += reader.read_sealed(record.index, staging[record.sealed :])
        parts, groups = [(staging[:used], 0)], list(self._keyed(records))
        crossing = self._engine.transfer(parts, sealed, plain, groups)
        opened = AllOf([crossing], plain.scrub)
        if self._defers and all(self._is_known(record) for record in records):
            crossing.wait_copied()  # the staging memory is the next window's
            self._out[slot] = opened
            return places
        try:
            opened.wait()
        except AuthenticationError:
            self._name_the_record(records)
            raise
        for record in records:
            self._demand_content(record, plain)
        return places

    def _placed(self, window: Window) -> tuple[list[_Record], Indices]:
        """The window's records one after another, and its rows among theirs."""
        row_bytes = self._shards.layout.row_bytes
        records: list[_Record] = []
        rows: list[Indices] = []
        plain = sealed = 0
        for run in window.runs:
            layout = self._shards.layout.shards[run.shard]
            per_record = layout.record_bytes // row_bytes
            first, last = run.first // per_record, (run.end - 1) // per_record
            begins = plain // row_bytes - first * per_record
            rows.append(np.arange(run.first, run.end, dtype=np.int64) + begins)
            for index in range(first, last + 1):
                left = (layout.rows - index * per_record) * row_bytes
                size = min(layout.record_bytes, left)
                records.append(_Record(run.shard, index, plain, size, sealed))
                plain, sealed = plain + size, sealed + sealed_bytes(size)
        return records, np.concatenate(rows)[window.order]

    def _keyed(
        self, records: Sequence[_Record]
    ) -> Iterator[tuple[DeviceKey, list[RecordPlace]]]:
        """Places in calls of one key each, in the order of the records."""
        key, group = None, list[RecordPlace]()
        for record in records:
            reader = self._readers[record.shard]
            found, place = reader.device_keys(self._engine).place(
                record.index,
                record.index,
                final=reader.header.is_final(record.index),
                sealed_offset=record.sealed,
                plain_offset=record.plain,
                plaintext_bytes=record.plaintext_bytes,
            )
            if key is not None and found is not key:
                yield key, group
                group = []
            key = found
            group.append(place)
        if key is not None:
            yield key, group

    def _demand_content(self, record: _Record, plain: DeviceMemory) -> None:
        if self._is_known(record):
            return
        reader = self._readers[record.shard]
        copy = bytearray(record.plaintext_bytes)
        try:
            self._engine.download(plain, record.plain, copy).wait()
            reader.demand_content(record.index, memoryview(copy))
        finally:
            scrub(copy)
        self._seen[record.shard, record.index] = self._digest(record)

    def _is_known(self, record: _Record) -> bool:
        """No card says what it is, or its very bytes were compared with the card."""
        if self._readers[record.shard].leaves is None:
            return True
        seen = self._seen.get((record.shard, record.index))
        return seen is not None and seen == self._digest(record)

    def _digest(self, record: _Record) -> bytes:
        end = record.sealed + sealed_bytes(record.plaintext_bytes)
        return keyed_hash(self._seen_key, self._staging[record.sealed : end])

    def _name_the_record(self, records: Sequence[_Record]) -> None:
        """A device tells no record; the processor finds it, and raises with its name."""
        for record in records:
            reader = self._readers[record.shard]
            start = record.index * reader.header.record_bytes
            out = bytearray(record.plaintext_bytes)
            try:
                reader.open_range(start, start + len(out), memoryview(out))
            finally:
                scrub(out)

    def _close_memories(self) -> None:
        while self._memories:
            for memory in self._memories.pop():
                memory.close()
        if self._pinned is not None:
            self._pinned.close()


class _Loading:
    """A window that the thread loads."""

    def __init__(self, future: Future[Indices]) -> None:
        self._future = future

    def wait(self) -> Indices:
        """See ``Pending``."""
        return self._future.result()

    def abandon(self) -> None:
        """See ``Pending``."""
        if not self._future.cancel():
            wait([self._future])


def _demand_whole_rows(shards: ShardSet) -> None:
    row_bytes = shards.layout.row_bytes
    for shard, layout in zip(shards.shards, shards.layout.shards, strict=True):
        if layout.record_bytes % row_bytes:
            raise UsageError(
                f"{shard.name} has rows that cross records",
                why="a device can open only whole records",
                code="rows-cross-records",
            )


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
            raise not_deferred(f"batches would be copied from {found} to {device}")
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
