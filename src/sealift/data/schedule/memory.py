"""Memory for rows: how much there is, and a buffer that a worker can only read.

The buffer is an anonymous memory file. The accelerator maps it for writing once, then
seals it: its size is fixed, and nobody can map it for writing again. Whoever is handed
the descriptor reads exactly the bytes that the accelerator placed, and nothing else of
its memory. What is free is read, never guessed.
Source: memfd_create(2), fcntl(2) F_ADD_SEALS; Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final, Self

from sealift.channel.record.opener import scrub
from sealift.errors import no_room
from sealift.ids import Buffer

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


_F_SEAL_FUTURE_WRITE: Final = 0x10  # linux/fcntl.h, since Linux 5.1
_SEALS: Final = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
)


class SharedBuffer:
    """Bytes of this process that one other process may map, to read.

    Args:
        length: In bytes, at least 1.

    Raises:
        UnavailableError: code ``no-memory``, if the memory cannot be had.

    Attributes:
        view: The bytes, writable here.
        locked: Whether the pages are kept out of swap.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        try:
            self._file, self._map = _make(length)
        except (OSError, ValueError, OverflowError) as error:
            what = f"a visit's buffer of {length:,} bytes"
            raise no_room(what, error, "Lower buffer_bytes in the job") from None
        self._map.madvise(mmap.MADV_DONTDUMP)
        self._map.madvise(mmap.MADV_DONTFORK)
        self.locked = lock_memory(self._map)
        self.view = memoryview(self._map)[:length]

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``; a map of it for writing is refused."""
        return self._file.fileno()

    @classmethod
    def of(cls, content: Buffer) -> Self:
        """A buffer that holds a copy of ``content``."""
        view = memoryview(content).cast("B")
        made = cls(len(view))
        made.view[:] = view
        return made

    def close(self) -> None:
        """Give the memory back, or empty it where something of ours still points here.

        Idempotent.
        """
        self._file.close()
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            scrub(memoryview(self._map))


@contextmanager
def overwritten(shared: SharedBuffer) -> Iterator[SharedBuffer]:
    """Overwritten at the end, whatever happens in between, and closed."""
    try:
        yield shared
    finally:
        scrub(shared.view)
        shared.close()


def _make(length: int) -> tuple[FileIO, mmap.mmap]:
    # Else the kernel would first end somebody's process to make room.
    if length > free_memory_bytes():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    descriptor = os.memfd_create("sealift-cargo", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, length)
        mapped = mmap.mmap(descriptor, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "r+"), mapped


def lock_memory(mapping: mmap.mmap) -> bool:
    """mlock, so that cargo never reaches swap; False where the limit forbids it."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    size = ctypes.c_size_t(len(mapping))
    return bool(ctypes.CDLL(None).mlock(ctypes.c_void_p(address), size) == 0)
