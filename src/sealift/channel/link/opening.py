"""How a device opens the units of a transfer: where they lie, or after copying them over.

On the host's stand-in a unit that the sender sealed is opened where it lies in the memory
that the two ends share; one that its owner sealed at home is copied first, since whoever
forwards it could change it meanwhile (rule H3). Other engines have memory of their own:
units are copied over and opened there, as many at once as have come (``staged.py``).
"""

from __future__ import annotations

from typing import Protocol

from sealift.channel.device.device import DeviceEngine
from sealift.channel.device.host import HostDevice
from sealift.channel.link.arriving import Arriving
from sealift.channel.link.crossing import ends_of
from sealift.channel.link.homerecords import HomeOpener
from sealift.channel.link.staged import AnyOpener, Staged
from sealift.channel.record.frame import PREFIX_BYTES
from sealift.channel.transport.memfd import MemfdTransport


class Opening(Protocol):
    """One of the ways below."""

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open every unit of a transfer."""

    def close(self) -> None:
        """Give memory back."""


def opening_for(transport: MemfdTransport, engine: DeviceEngine) -> Opening:
    """The way for an engine, for units that the sender itself sealed."""
    if not isinstance(engine, HostDevice):
        return Staged(transport, engine)
    return InPlace(transport, engine)


def forwarded_opening(
    transport: MemfdTransport, engine: DeviceEngine, own: Opening
) -> Opening:
    """The way for units that somebody else sealed; ``own`` is that for the sender's."""
    if isinstance(own, Staged):
        return own
    assert isinstance(engine, HostDevice)  # or ``own`` would be staged
    return CopiedFirst(transport, engine)


class InPlace:
    """Opened where it lies in the memory that the sender alone shares (rule H3)."""

    def __init__(self, transport: MemfdTransport, engine: HostDevice) -> None:
        self._transport = transport
        self._engine = engine
        self._shared = engine.adopt(transport.memory)

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open each unit while the next one comes."""
        assert not isinstance(opener, HomeOpener)
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

    def close(self) -> None:
        """The memory is the transport's."""


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
