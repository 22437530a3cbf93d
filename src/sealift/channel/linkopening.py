"""How a device opens the units of a transfer: where they lie, or after copying them over.

On the host's stand-in a unit is opened where it lies in the memory that the two ends
share. Other engines have memory of their own: units are copied to a ring of staging
slots there, and opened behind the copy while the next one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from sealift.channel.announcement import Announcement
from sealift.channel.device import (
    DeviceEngine,
    DeviceKey,
    DeviceMemory,
    Event,
    RecordPlace,
    Verdicts,
)
from sealift.channel.frame import PREFIX_BYTES
from sealift.channel.hostdevice import HostDevice
from sealift.channel.linkkeys import FRAME_EXTRA_BYTES, wrong_length
from sealift.channel.memfd import MemfdTransport
from sealift.channel.mode import ModeShape
from sealift.crypto.aead import TAG_BYTES
from sealift.errors import UsageError
from sealift.ids import Buffer

MAX_STAGING_SLOTS = 8


class UnitOpener(Protocol):
    """Says where the next unit stands (``LinkOpener``, ``HomeOpener``)."""

    def expect(
        self, frame: memoryview, sealed_offset: int, plain_offset: int, unit_bytes: int
    ) -> tuple[DeviceKey, RecordPlace]:
        """Key and place, or an error if it cannot be the next one."""


class PlainOpener:
    """What stands in an opener's place in mode ``plain``."""

    def open_message(self, frame: Buffer) -> bytes:
        """The message, as it came."""
        return bytes(frame)[PREFIX_BYTES:-TAG_BYTES]

    def close(self) -> None:
        """Nothing to forget."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """A transfer that was announced, and where it goes."""

    announcement: Announcement
    into: DeviceMemory
    offset: int
    sink: Callable[[int, int], None] | None

    def units(self) -> Iterator[tuple[int, int]]:
        """Start (in device memory) and length of every unit."""
        total, unit = self.announcement.total_bytes, self.announcement.unit_bytes
        for start in range(0, total, unit):
            yield self.offset + start, min(unit, total - start)

    def verified(self, start: int, length: int) -> None:
        """Tell whoever waits."""
        if self.sink is not None:
            self.sink(start, length)


class Opening(Protocol):
    """One of the ways below."""

    def open_all(
        self, opener: UnitOpener | PlainOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        """Open every unit of a transfer."""

    def close(self) -> None:
        """Give memory back."""


def opening_for(
    transport: MemfdTransport, engine: DeviceEngine, shape: ModeShape
) -> Opening:
    """The way for an engine and a mode."""
    if not isinstance(engine, HostDevice):
        return Staged(transport, engine, shape)
    if not shape.sealed:
        return PlainCopy(transport, engine)
    return InPlace(transport, engine, shape)


class PlainCopy:
    """Mode ``plain``: each unit is copied into the device's memory."""

    def __init__(self, transport: MemfdTransport, engine: DeviceEngine) -> None:
        self._transport = transport
        self._engine = engine

    def open_all(
        self, opener: UnitOpener | PlainOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        """Copy every unit."""
        transport = self._transport
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            if frame_bytes != length + FRAME_EXTRA_BYTES:
                raise wrong_length(frame_bytes, length + FRAME_EXTRA_BYTES)
            at += PREFIX_BYTES
            copied = transport.memory[at : at + length]
            self._engine.upload(copied, arriving.into, start).wait()
            transport.skip(1)
            arriving.verified(start, length)

    def close(self) -> None:
        """Nothing to give back."""


class InPlace:
    """Opened where it lies in the memory that the sender alone shares (rule H3)."""

    def __init__(
        self, transport: MemfdTransport, engine: HostDevice, shape: ModeShape
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._shape = shape
        self._shared = engine.adopt(transport.memory)

    def open_all(
        self, opener: UnitOpener | PlainOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        """Open every unit, as the mode says."""
        assert not isinstance(opener, PlainOpener)
        if self._shape.overlaps:
            self._overlapped(opener, arriving, timeout_s)
        else:
            self._after_all_came(opener, arriving, timeout_s)

    def close(self) -> None:
        """The memory is the transport's."""

    def _overlapped(
        self, opener: UnitOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        transport, engine, shared = self._transport, self._engine, self._shared
        memory, into, sink = transport.memory, arriving.into, arriving.sink
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            frame = memory[at : at + frame_bytes]
            key, place = opener.expect(frame, at + PREFIX_BYTES, start, length)
            engine.open(key, shared, into, (place,)).wait()
            transport.skip(1)
            if sink is not None:
                sink(start, length)

    def _after_all_came(
        self, opener: UnitOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        units = list(arriving.units())
        if len(units) > self._transport.incoming_slots:
            raise UsageError(
                f"{len(units)} units do not fit the link's memory at once",
                code="transfer-too-long",
            )
        ranges = self._transport.ranges(len(units), timeout_s)
        found = [
            opener.expect(
                self._transport.memory[at : at + frame_bytes],
                at + PREFIX_BYTES,
                start,
                length,
            )
            for (at, frame_bytes), (start, length) in zip(ranges, units, strict=True)
        ]
        for batch in _batches(found, at_once=self._shape.parallel):
            places = [place for _, place in batch]
            key = batch[0][0]
            self._engine.open(key, self._shared, arriving.into, places).wait()
        self._transport.skip(len(units))
        for start, length in units:
            arriving.verified(start, length)


class Staged:
    """Copied to a ring of slots in the device's memory, and opened behind the copy."""

    def __init__(
        self, transport: MemfdTransport, engine: DeviceEngine, shape: ModeShape
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._shape = shape
        self._slots = min(transport.incoming_slots, MAX_STAGING_SLOTS)
        self._slot_bytes = transport.max_frame_bytes
        self._staging = engine.allocate(self._slots * self._slot_bytes)
        self._queued: deque[tuple[Event, Verdicts | None, int, int]] = deque()

    def open_all(
        self, opener: UnitOpener | PlainOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        """Copy and open every unit, as many at once as there are slots."""
        units = list(arriving.units())
        if not self._shape.overlaps:
            self._transport.ranges(len(units), timeout_s)
        depth = self._slots if self._shape.parallel else 1
        try:
            for number, (start, length) in enumerate(units):
                if len(self._queued) == depth:
                    self._settle(arriving)
                self._queue(opener, arriving, (number, start, length), timeout_s)
            while self._queued:
                self._settle(arriving)
        finally:
            self._queued.clear()

    def close(self) -> None:
        """Scrub the staging slots and give them back."""
        self._staging.close()

    def _queue(
        self,
        opener: UnitOpener | PlainOpener,
        arriving: Arriving,
        unit: tuple[int, int, int],
        timeout_s: float,
    ) -> None:
        number, start, length = unit
        at, frame_bytes = self._transport.ranges(len(self._queued) + 1, timeout_s)[-1]
        frame = self._transport.memory[at : at + frame_bytes]
        if isinstance(opener, PlainOpener):
            body = frame[PREFIX_BYTES : PREFIX_BYTES + length]
            copied = self._engine.upload(body, arriving.into, start)
            self._queued.append((copied, None, start, length))
            return
        slot = number % self._slots * self._slot_bytes
        key, place = opener.expect(frame, slot, start, length)
        copied = self._engine.upload(frame[PREFIX_BYTES:], self._staging, slot)
        opened = self._engine.open(
            key, self._staging, arriving.into, [place], after=[copied]
        )
        self._queued.append((copied, opened, start, length))

    def _settle(self, arriving: Arriving) -> None:
        copied, opened, start, length = self._queued.popleft()
        copied.wait()
        if opened is not None:
            opened.wait()
        self._transport.skip(1)
        arriving.verified(start, length)


def _batches(
    found: list[tuple[DeviceKey, RecordPlace]], *, at_once: bool
) -> list[list[tuple[DeviceKey, RecordPlace]]]:
    """Units opened by one call: all under one key, or one by one."""
    batches: list[list[tuple[DeviceKey, RecordPlace]]] = []
    for each in found:
        if batches and at_once and batches[-1][0][0] is each[0]:
            batches[-1].append(each)
        else:
            batches.append([each])
    return batches
