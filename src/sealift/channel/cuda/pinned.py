"""Pinned host memory, believed only when it was proven.

Under confidential computing, memory that was asked for as pinned may not be, and copies
that should return at once return when they are done; programs that trusted the request
read stale bytes. So the driver is asked where the memory lies, bytes are sent there and
back, and it is measured whether calls return before what they ask for is done.

Addresses of host memory, and copies into it that leave the interpreter free.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.driver import CudaError, Driver, Residence
from sealift.channel.record.opener import scrub
from sealift.ids import Buffer


def writable_address(view: bytearray | memoryview) -> int:
    """Where a writable, contiguous buffer begins; it must live as long as it is used."""
    flat = memoryview(view).cast("B")
    if not flat.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(flat))


def view_at(address: int, nbytes: int) -> memoryview:
    """Memory that somebody else owns, as bytes."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def copy_in(address: int, source: Buffer) -> None:
    """Copy a buffer to ``address``; what is large does not hold up other threads."""
    flat = memoryview(source).cast("B")
    if flat.readonly or not flat.nbytes:
        view_at(address, flat.nbytes)[:] = flat
    else:
        ctypes.memmove(address, writable_address(flat), flat.nbytes)


def copy_out(out: bytearray | memoryview, address: int) -> None:
    """Copy from ``address`` into a buffer."""
    flat = memoryview(out).cast("B")
    if flat.nbytes:
        ctypes.memmove(writable_address(flat), address, flat.nbytes)


Clock = Callable[[], float]
PROOF_BYTES: Final = 4 << 20
_BURST: Final = 16
_TRIES: Final = 5
_ECHO: Final = 4096


@dataclass(frozen=True, slots=True)
class PinnedTruth:
    """What is known of pinned memory on this machine.

    Attributes:
        proven: Whether copies from it may be relied on to be asynchronous.
        why: What it was concluded from.
    """

    proven: bool
    why: str


class PinnedBlock:
    """Host memory from the driver; overwritten before it is given back."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self._driver = driver
        self.nbytes = nbytes
        self.address = driver.allocate_host(nbytes)
        self.view = view_at(self.address, nbytes)
        self._closed = False

    def close(self) -> None:
        """Overwrite and give back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        scrub(self.view)
        self.view.release()
        with suppress(CudaError):  # a GPU that is lost keeps it until the process ends
            self._driver.free_host(self.address)


def prove_pinned(driver: Driver, clock: Clock = time.perf_counter) -> PinnedTruth:
    """Allocate, ask, send and look; takes milliseconds on a GPU.

    Raises:
        CudaError: if the GPU fails at it. That pinned memory cannot be had is no error.
    """
    try:
        block = PinnedBlock(driver, PROOF_BYTES)
    except CudaError as fault:
        if fault.ends_context:
            raise
        return PinnedTruth(False, f"the driver gives none ({fault})")
    try:
        return _prove(driver, block, clock)
    finally:
        block.close()


def _prove(driver: Driver, block: PinnedBlock, clock: Clock) -> PinnedTruth:
    residence = driver.residence(block.address)
    if residence is not Residence.PINNED:
        return PinnedTruth(False, f"the driver calls it {residence.value} memory")
    stream, device = driver.stream(), driver.allocate(PROOF_BYTES)
    try:
        if not _comes_back(driver, block, device, stream):
            return PinnedTruth(False, "bytes that came back were not those sent")
        goes_on = any(
            _returns_early(driver, block, device, stream, clock) for _ in range(_TRIES)
        )
    finally:
        driver.free(device)
        driver.release(stream)
    if not goes_on:
        return PinnedTruth(False, "copies from it return only when they are done")
    return PinnedTruth(
        True, "the driver says so, and copies from it go on by themselves"
    )


def _comes_back(driver: Driver, block: PinnedBlock, device: int, stream: Any) -> bool:
    sent = secrets.token_bytes(_ECHO)
    block.view[:_ECHO] = sent
    back = PROOF_BYTES - _ECHO
    driver.copy_to_device(device, block.address, _ECHO, stream)
    driver.copy_to_host(block.address + back, device, _ECHO, stream)
    _finish(driver, stream)
    return bytes(block.view[back:]) == sent


def _returns_early(
    driver: Driver, block: PinnedBlock, device: int, stream: Any, clock: Clock
) -> bool:
    """Whether asking for 64 MiB takes less than half as long as having them there.

    An event alone says little: behind a copy that was waited for, it may still need a
    moment. An interruption can only make an early return look late, so one early one
    is enough.
    """
    start = clock()
    for _ in range(_BURST):
        driver.copy_to_device(device, block.address, PROOF_BYTES, stream)
    asked = clock()
    _finish(driver, stream)
    return asked - start < (clock() - start) / 2


def _finish(driver: Driver, stream: Any) -> None:
    event = driver.event()
    driver.record(event, stream)
    driver.synchronize(event)
    driver.release(event)
