"""Where the bytes of a sealed file are read from: a file here, or anything like one.

A source is read at any offset, into memory of the reader, from several threads at once.
It vouches for nothing: what it says is checked by whoever opens the records.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from sealift.errors import UnavailableError


class ByteSource(Protocol):
    """Bytes at rest that somebody else may change at any time."""

    @property
    def name(self) -> str:
        """What errors call it: a file's name, without its folder."""

    def state(self) -> tuple[int, str]:
        """Its size in bytes now, and what tells this version from another.

        Raises:
            UnavailableError: if it is not there any more.
        """

    def read_into(self, offset: int, out: memoryview) -> int:
        """Copy bytes from ``offset`` on to ``out``; return how many, 0 at the end.

        Raises:
            UnavailableError: if it cannot be read.
        """

    def close(self) -> None:
        """Let go of it. Idempotent."""


class FileSource:
    """A regular file, read by ``pread``: never through a mapping (rule H3).

    Raises:
        UnavailableError: if there is none, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open(path)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def state(self) -> tuple[int, str]:
        """Size, and when it was last written to."""
        status = os.fstat(self._descriptor)
        return status.st_size, str(status.st_mtime_ns)

    def read_into(self, offset: int, out: memoryview) -> int:
        """See ``ByteSource``."""
        try:
            return os.preadv(self._descriptor, [out], offset)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnavailableError(f"cannot read {path}", why="it is not a regular file")
    return descriptor


def _unreadable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"cannot read {path}",
        why=error.strerror or type(error).__name__,
        fix="Check the path and its permissions",
        code="cannot-read",
    )
