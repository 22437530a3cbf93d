"""A visit's cargo buffer: an anonymous memory file that a worker can only read.

The accelerator maps it for writing once, then seals it: its size is fixed, and nobody
can map it for writing again. Whoever is handed the descriptor reads exactly the bytes
that the accelerator placed, and nothing else of its memory.
Source: memfd_create(2), fcntl(2) F_ADD_SEALS.
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
from typing import Final, Self

from sealift.channel.record.quarantine import scrub
from sealift.data.schedule.capacity import free_memory_bytes
from sealift.errors import no_room
from sealift.ids import Buffer

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
            what = f"a visit's buffer of {length} bytes"
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
