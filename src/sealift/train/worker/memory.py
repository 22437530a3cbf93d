"""Memory that a parent and its worker share: made, mapped, copied out of, overwritten.

An area's size is sealed, so that it cannot shrink under the parent's eyes. It is made
for one task and never used again: what one worker wrote, the next does not find. Pages
exist once they are written. The parent reads and overwrites it through a mapping of its
own, which nothing that a worker does to a descriptor takes away.

A worker maps it without Python's own ``mmap``, which keeps a duplicate of the descriptor
for as long as the mapping lives; a recipe would find it, and with it what belongs to the
file that is open and not to this process: its offset and its flags (rule N6). Mappings
end with the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from io import FileIO
from typing import Final

from sealift.channel.record.opener import scrub
from sealift.errors import MalformedError, no_room
from sealift.train.loop.states import parse_tensors
from sealift.train.sandbox.kernel import call

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Area:
    """Room for states.

    Args:
        length: In bytes.

    Raises:
        UnavailableError: code ``no-memory``.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        try:
            self._file, self._map = _make(length)
        except OSError as error:
            raise no_room(f"states of {length} bytes", error) from None

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``."""
        return self._file.fileno()

    def copy(self, start: int, length: int) -> bytes:
        """Bytes of it, read once, into memory of our own (rule N10).

        Raises:
            MalformedError: if they lie outside.
        """
        if not 0 <= start <= start + length <= self.length:
            raise MalformedError("outside of the area", code="bad-message")
        return self._map[start : start + length]

    def overwrite(self) -> None:
        """Write zeroes wherever anything was written."""
        with memoryview(self._map) as whole:
            for start, end in self._written():
                with whole[start:end] as part:
                    scrub(part)

    def close(self) -> None:
        """Overwrite it and give it back; once the worker is gone. Idempotent."""
        if self._map.closed:
            return
        try:
            self.overwrite()
        finally:
            self._map.close()
            self._file.close()

    def _written(self) -> Iterator[tuple[int, int]]:
        """Where pages exist: most of an area has none, and is not to get them."""
        end = 0
        while end < self.length:
            try:
                start = os.lseek(self.descriptor, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing behind
                    return
                raise
            end = os.lseek(self.descriptor, start, os.SEEK_HOLE)
            yield start, end


def _make(length: int) -> tuple[FileIO, mmap.mmap]:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    descriptor = os.memfd_create("sealift-states", flags)
    try:
        os.ftruncate(descriptor, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        mapped = mmap.mmap(descriptor, length)
        mapped.madvise(mmap.MADV_DONTDUMP)
        mapped.madvise(mmap.MADV_DONTFORK)
    except BaseException:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "r+"), mapped


_READ, _WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE


def map_shared(descriptor: int, length: int) -> memoryview:
    """Bytes to read; what the parent writes later is seen here. A write is fatal."""
    return _map(descriptor, length, _READ, mmap.MAP_SHARED).toreadonly()


def map_copy(descriptor: int, length: int) -> memoryview:
    """Bytes to read and change; what is written into them stays here."""
    return _map(descriptor, length, _WRITE, mmap.MAP_PRIVATE)


def map_area(descriptor: int, length: int) -> memoryview:
    """Bytes that the parent reads once they are written."""
    return _map(descriptor, length, _WRITE, mmap.MAP_SHARED)


def read_bundle_blob(blob: memoryview) -> dict[str, bytes]:
    """The files of a bundle that ``workshop.pack_bundle`` packed."""
    return {name: bytes(each.content) for name, each in parse_tensors(blob).items()}


def _map(descriptor: int, length: int, rights: int, kind: int) -> memoryview:
    address = call("mmap", None, length, rights, kind, descriptor, 0)
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")
