"""Keep the libraries that are in use in memory, so that reading them shows nothing.

Which pages of a file are in memory is state that all processes share: whoever reads a
page brings it there, and whoever times a read afterwards learns that. The process that
forks workers has all pages of its libraries read before the first, and locked where it
may lock them; what a worker reads of them later changes nothing. Other files that a
recipe may read are not covered (SECURITY.md).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from typing import Any, Final

from sealift.train.sandbox.kernel import call

_POPULATE_READ: Final = 22  # since Linux 5.14


class _Library(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


_Visit: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p
)


def pin_libraries() -> int:
    """Have every page of every library of this process in memory; how many bytes."""
    return sum(map(_pin, loaded_libraries()))


def loaded_libraries() -> list[str]:
    """Files of the shared libraries; without ``/proc``, which a sandbox has none of."""
    found: list[str] = []

    def note(library: Any, _size: int, _none: object) -> int:
        found.append(os.fsdecode(library.contents.name or b""))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_Visit(note), None)
    return sorted({path for path in found if path.startswith("/")})


def _pin(path: str) -> int:
    """Left mapped for as long as this process lives, and in no worker."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # the kernel's own, which is no file
        return 0
    try:
        length = os.fstat(file).st_size
        kind = mmap.MAP_SHARED
        place = call("mmap", None, length, mmap.PROT_READ, kind, file, 0)
    finally:
        os.close(file)
    call("madvise", place, length, mmap.MADV_DONTFORK)
    with suppress(OSError):  # an older kernel: locking reads, too
        call("madvise", place, length, _POPULATE_READ)
    with suppress(OSError):  # more than this user may lock
        call("mlock", place, length)
    return length
