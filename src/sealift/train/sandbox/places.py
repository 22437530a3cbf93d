"""Where Python, its libraries and this package live: what a recipe may read, and why.

Of this package's parent folder nothing but the package is shown: in a working copy it
stands among keys, tables and other people's files.

The libraries that are in use are kept in memory, so that reading them shows nothing:
which pages of a file are in memory is state that all processes share; whoever reads a
page brings it there, and whoever times a read afterwards learns that. The process that
forks workers has all pages of its libraries read before the first, and locked where it
may lock them; what a worker reads of them later changes nothing. Other files that a
recipe may read are not covered (SECURITY.md).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import sealift
from sealift.train.loop.imports import installed_places
from sealift.train.sandbox.inventory import LIBRARIES, SCRATCH
from sealift.train.sandbox.kernel import call

# What a compiler leaves behind is code that nobody measured: private, and empty.
CACHES: Final = {
    "XDG_CACHE_HOME": f"{SCRATCH}/cache",
    "TRITON_CACHE_DIR": f"{SCRATCH}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/inductor",
    "CUDA_CACHE_PATH": f"{SCRATCH}/cuda",
}


def readable() -> dict[str, str]:
    """Files and folders, none within another, as they are named and where they are.

    With the reason of each: a recipe can read nothing else but ``inventory``'s.
    """
    package = Path(sealift.__file__).parent
    found = dict(LIBRARIES)
    found |= dict.fromkeys(_mapped(), "shared libraries that this process runs on")
    found |= dict.fromkeys(_linked(), "shared libraries that came with Python")
    paths = [path for path in sys.path if path and not _holds(path, package)]
    found |= dict.fromkeys(paths, "where Python looks for modules")
    found |= dict.fromkeys(installed_places(), "modules that a recipe may import")
    found[str(package)] = "this package, which runs it"
    real = {os.path.realpath(path): why for path, why in found.items()}
    shown = _outermost(path for path in (*found, *real) if Path(path).exists())
    return {path: (found | real)[path] for path in shown}


def _linked() -> list[str]:
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    return [f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")]


def _holds(path: str, package: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(package.parent)


def _mapped() -> list[str]:
    """Folders of the shared libraries that this process runs on."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        files = {line.rstrip("\n").split(maxsplit=5)[-1] for line in lines}
    return sorted(
        {str(Path(file).parent) for file in files if file[:1] == "/" and ".so" in file}
    )


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    found = sorted({os.path.normpath(path) for path in paths})
    kept: list[str] = []
    for path in found:
        if path == "/":
            continue  # of no use as a place
        if not any(path.startswith(f"{each}/") for each in kept):
            kept.append(path)
    return tuple(kept)


_POPULATE_READ: Final = 22  # since Linux 5.14


class _Library(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


_Visit: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p
)


def pin_libraries() -> int:
    """Have every page of every library of this process in memory; how many bytes."""
    return sum(map(_pin, _loaded_libraries()))


def _loaded_libraries() -> list[str]:
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
