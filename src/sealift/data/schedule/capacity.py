"""How much memory the accelerator can still give away. Linux only; read, never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")
_KIB: Final = 1024


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that this process may still allocate: the machine's, or its group's if less.

    Args:
        meminfo: The kernel's account; ``MemAvailable`` counts.
        cgroup: The control group's folder (version 2); without it the machine counts.
    """
    return max(0, min([_available(meminfo), *_left_in_group(cgroup)]))


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * _KIB
    return 0


def _left_in_group(cgroup: Path) -> Iterator[int]:
    try:
        limit = (cgroup / "memory.max").read_text("ascii").strip()
        used = int((cgroup / "memory.current").read_text("ascii"))
    except (OSError, ValueError):
        return
    if limit != "max":
        yield int(limit) - used
