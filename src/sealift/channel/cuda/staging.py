"""Copies between the host and a GPU, through slots that are proven pinned or not.

Proven: a copy goes on by itself while the next slot is filled. Not proven: every copy is
waited for, from ordinary memory, so that nothing depends on what pinned memory promised.
A crossing of another context lands in that context and is moved over on the device.
"""

from __future__ import annotations

from typing import Any, Protocol

from sealift.channel.cuda.driver import Driver
from sealift.channel.cuda.pinned import (
    PinnedBlock,
    copy_in,
    copy_out,
    view_at,
    writable_address,
)
from sealift.channel.record.opener import scrub


class HostBlock(Protocol):
    """Host memory at an address."""

    address: int
    nbytes: int
    view: memoryview

    def close(self) -> None:
        """Overwrite and give back."""


class OrdinaryBlock:
    """Host memory that nobody pinned."""

    def __init__(self, nbytes: int) -> None:
        self._memory = bytearray(nbytes)
        self.nbytes = nbytes
        self.view = memoryview(self._memory)
        self.address = writable_address(self._memory) if nbytes else 0

    def close(self) -> None:
        """Overwrite it."""
        scrub(self._memory)


def host_block(driver: Driver, nbytes: int, *, pinned: bool) -> HostBlock:
    """Memory for staging."""
    return PinnedBlock(driver, nbytes) if pinned else OrdinaryBlock(nbytes)


class _Slot:
    """A block on the host, one in a foreign context if need be, and when it is free."""

    def __init__(self, driver: Driver, nbytes: int, *, pinned: bool, lands: bool):
        self.landing = driver.allocate(nbytes) if lands else 0
        try:
            self.host = host_block(driver, nbytes, pinned=pinned)
        except BaseException:
            if lands:
                driver.free(self.landing)
            raise
        self.free = driver.event()

    def close(self, driver: Driver) -> None:
        self.host.close()
        if self.landing:
            driver.free(self.landing)
        driver.release(self.free)


class Ring:
    """A few slots of one context, used in turn; one lane uses it.

    Args:
        driver: The context that copies.
        home: The context whose memory is written; the same, or another of that GPU.
        slots: How many.
        slot_bytes: The longest single copy.
        pinned: Whether pinned memory was proven here.
    """

    def __init__(
        self, driver: Driver, home: Driver, slots: int, slot_bytes: int, *, pinned: bool
    ) -> None:
        self._driver = driver
        self._home = home
        self._pinned = pinned
        self.slot_bytes = slot_bytes
        lands = driver is not home
        self._slots: list[_Slot] = []
        self._next = 0
        try:
            for _ in range(slots):
                slot = _Slot(driver, slot_bytes, pinned=pinned, lands=lands)
                self._slots.append(slot)
        except BaseException:
            self.close()
            raise

    def send(self, to: int, source: memoryview, stream: Any) -> None:
        """Queue copies of a buffer; it may change once this has returned."""
        for start in range(0, source.nbytes, self.slot_bytes):
            piece = source[start : start + self.slot_bytes]
            slot = self._take()
            copy_in(slot.host.address, piece)
            self._cross(to + start, slot, piece.nbytes, stream)

    def fetch(self, out: memoryview, origin: int, stream: Any) -> None:
        """Copy to a buffer; returns when it is there."""
        waiting: list[tuple[_Slot, memoryview]] = []
        for start in range(0, out.nbytes, self.slot_bytes):
            if len(waiting) == len(self._slots):
                self._deliver(*waiting.pop(0))
            piece = out[start : start + self.slot_bytes]
            slot = self._take()
            self._driver.copy_to_host(
                slot.host.address, origin + start, piece.nbytes, stream
            )
            self._driver.record(slot.free, stream)
            waiting.append((slot, piece))
        for each in waiting:
            self._deliver(*each)

    def close(self) -> None:
        """Overwrite the slots and give them back."""
        for slot in self._slots:
            slot.close(self._driver)
        self._slots = []

    def _take(self) -> _Slot:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        self._driver.synchronize(slot.free)
        return slot

    def _cross(self, to: int, slot: _Slot, nbytes: int, stream: Any) -> None:
        driver = self._driver
        driver.copy_to_device(slot.landing or to, slot.host.address, nbytes, stream)
        if slot.landing:
            driver.copy_to_context(self._home, to, slot.landing, nbytes, stream)
        driver.record(slot.free, stream)
        if not self._pinned:
            driver.synchronize(slot.free)

    def _deliver(self, slot: _Slot, out: memoryview) -> None:
        self._driver.synchronize(slot.free)
        copy_out(out, slot.host.address)
        scrub(view_at(slot.host.address, out.nbytes))
