"""Memory files as a worker has them: mapped, and no descriptor kept.

Python's own ``mmap`` keeps a duplicate of the descriptor for as long as the mapping
lives; a recipe would find it, and with it what belongs to the file that is open and not
to this process: its offset and its flags (rule N6). Mappings end with the process.
"""

from __future__ import annotations

import ctypes
import mmap

from sealift.train.loop.tensors import parse_tensors
from sealift.train.sandbox.kernel import call

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
