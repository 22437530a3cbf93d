"""Addresses of host memory, and copies into it that leave the interpreter free."""

from __future__ import annotations

import ctypes

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
