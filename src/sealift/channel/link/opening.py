"""How a device opens the units of a transfer: where they lie, or after copying them over.

On the host's stand-in a unit that the sender sealed is opened where it lies in the memory
that the two ends share; one that its owner sealed at home is copied first, since whoever
forwards it could change it meanwhile (rule H3). Other engines have memory of their own:
units are copied over and opened there, as many at once as have come (``staged.py``).
"""

from __future__ import annotations

from typing import Protocol

from sealift.channel.device import DeviceEngine
from sealift.channel.frame import PREFIX_BYTES
from sealift.channel.hostdevice import HostDevice
from sealift.channel.link.arriving import Arriving, PlainOpener, UnitOpener, by_key
from sealift.channel.link.crossing import ends_of
from sealift.channel.link.homerecords import HomeOpener
from sealift.channel.link.keys import FRAME_EXTRA_BYTES, wrong_length
from sealift.channel.link.mode import ModeShape
from sealift.channel.link.staged import AnyOpener, Staged
from sealift.channel.transports.memfd import MemfdTransport


class Opening(Protocol):
    """One of the ways below."""

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open every unit of a transfer."""

    def close(self) -> None:
        """Give memory back."""


def opening_for(
    transport: MemfdTransport, engine: DeviceEngine, shape: ModeShape
) -> Opening:
    """The way for an engine and a mode, for units that the sender itself sealed."""
    if not isinstance(engine, HostDevice):
        return Staged(transport, engine, shape)
    if not shape.sealed:
        return PlainCopy(transport, engine)
    return InPlace(transport, engine, shape)


def forwarded_opening(
    transport: MemfdTransport, engine: DeviceEngine, own: Opening
) -> Opening:
    """The way for units that somebody else sealed; ``own`` is that for the sender's."""
    if isinstance(own, Staged):
        return own
    assert isinstance(engine, HostDevice)  # or ``own`` would be staged
    return CopiedFirst(transport, engine)


class PlainCopy:
    """Mode ``plain``: each unit is copied into the device's memory."""

    def __init__(self, transport: MemfdTransport, engine: DeviceEngine) -> None:
        self._transport = transport
        self._engine = engine

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
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

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open every unit, as the mode says."""
        assert not isinstance(opener, PlainOpener | HomeOpener)
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
        units = arriving.units_at_once(self._transport.incoming_slots)
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
        for batch in by_key(found, at_once=self._shape.parallel):
            places = [place for _, place in batch]
            key = batch[0][0]
            self._engine.open(key, self._shared, arriving.into, places).wait()
        self._transport.skip(len(units))
        for start, length in units:
            arriving.verified(start, length)


class CopiedFirst:
    """Copied to private memory and opened there: the sender is not who sealed them."""

    def __init__(self, transport: MemfdTransport, engine: HostDevice) -> None:
        self._transport = transport
        self._engine = engine
        self._private = engine.allocate(transport.max_frame_bytes)

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Copy, check and open every unit; its slot is free as soon as it was copied."""
        assert isinstance(opener, HomeOpener)
        transport, engine, private = self._transport, self._engine, self._private
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            engine.upload(transport.memory[at : at + frame_bytes], private).wait()
            transport.skip(1)
            ends = ends_of(private.view[:frame_bytes], length)
            key, place = opener.admit(ends, PREFIX_BYTES, start, length)
            engine.open(key, private, arriving.into, (place,)).wait()
            arriving.verified(start, length)

    def close(self) -> None:
        """Scrub the private memory and give it back."""
        self._private.close()
