"""Where Python, its libraries and this package live: what a recipe may read, and why.

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
from sealift.train.loop.importgate import installed_places
from sealift.train.sandbox.inventory import LIBRARIES, SCRATCH

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
