"""Windows of rows in a device's memory: sealed records go there and are opened there.

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
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

import numpy as np

from sealift.channel.device.device import (
    DeviceEngine,
    DeviceKey,
    DeviceMemory,
    RecordPlace,
    Verdicts,
)
from sealift.channel.record.layout import sealed_bytes
from sealift.channel.record.opener import scrub
from sealift.crypto.hash import keyed_hash
from sealift.crypto.keys import SecretKey
from sealift.data.loader.opening import OPEN_SHARDS, AllOf
from sealift.data.loader.windows import Pending
from sealift.data.schedule.order import Indices, Window
from sealift.data.shards.shard import OpenShards
from sealift.data.shards.shardset import ShardSet
from sealift.errors import AuthenticationError, SealiftError, UsageError

SLOTS: Final = 2


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
