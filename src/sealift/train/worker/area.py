"""A memory file that a worker writes states into and its parent copies them out of.

Its size is sealed, so that it cannot shrink under the parent's eyes. It is made for one
task and never used again: what one worker wrote, the next does not find. Pages exist
once they are written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from io import FileIO
from typing import Final

from sealift.errors import MalformedError, UnavailableError
from sealift.train.tensors import parse_tensors

_ZEROES: Final = bytes(1 << 20)
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
            self._file = _make(length)
        except OSError as error:
            raise UnavailableError(
                f"no memory for states of {length} bytes",
                why=error.strerror or "",
                code="no-memory",
            ) from None

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``."""
        return self._file.fileno()

    def copy(self, start: int, length: int) -> bytes:
        """Bytes of it, in memory of our own: nobody changes them while they are read.

        Raises:
            MalformedError: if they lie outside.
        """
        if not 0 <= start <= start + length <= self.length:
            raise MalformedError("outside of the area", code="bad-message")
        return _copy(self.descriptor, start, length)

    def overwrite(self) -> None:
        """Write zeroes over all that was handed over, where there was anything."""
        for start in range(0, self.length, len(_ZEROES)):
            length = min(len(_ZEROES), self.length - start)
            os.pwrite(self.descriptor, _ZEROES[:length], start)

    def close(self) -> None:
        """Give it back. Idempotent."""
        self._file.close()


def _make(length: int) -> FileIO:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    descriptor = os.memfd_create("sealift-states", flags)
    try:
        os.ftruncate(descriptor, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "r+")


def _copy(descriptor: int, start: int, length: int) -> bytes:
    if length == 0:
        return b""
    first = start - start % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(
        descriptor, start - first + length, prot=mmap.PROT_READ, offset=first
    ) as mapped:
        return mapped[start - first :]


def read_bundle_blob(blob: memoryview) -> dict[str, bytes]:
    """The files of a bundle that ``workshop.pack_bundle`` packed."""
    return {name: bytes(each.content) for name, each in parse_tensors(blob).items()}


def map_shared(descriptor: int, length: int) -> memoryview:
    """Bytes of a memory file, to read; what its owner writes is seen here."""
    return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_READ))


def map_copy(descriptor: int, length: int) -> memoryview:
    """Bytes of a memory file; what is written into them stays here."""
    return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY))
