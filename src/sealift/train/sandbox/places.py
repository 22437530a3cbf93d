"""Where Python, its libraries and this package live: all that a recipe may read.

Of this package's parent folder nothing but the package is shown: in a working copy it
stands among keys, tables and other people's files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import sealift

LIBRARIES: Final = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib",
    "/etc/ld.so.cache",
)  # fmt: skip
MACHINE_FACTS: Final = ("/proc/cpuinfo", "/sys/devices/system/cpu")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
SCRATCH: Final = "/scratch"  # a name that hides no place: Python may live in /tmp
# What a compiler leaves behind is code that nobody measured: private, and empty.
CACHES: Final = {
    "XDG_CACHE_HOME": f"{SCRATCH}/cache",
    "TRITON_CACHE_DIR": f"{SCRATCH}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/inductor",
    "CUDA_CACHE_PATH": f"{SCRATCH}/cuda",
}


def readable() -> tuple[str, ...]:
    """Files and folders, none within another, as they are named and where they are."""
    package = Path(sealift.__file__).parent
    paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(package), *LIBRARIES]
    paths += [path for path in sys.path if path and not _holds(path, package)]
    paths += _mapped()
    real = [os.path.realpath(path) for path in paths]
    return _outermost(path for path in (*paths, *real) if Path(path).exists())


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
