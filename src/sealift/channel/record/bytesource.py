"""Where the bytes of a sealed file are read from: a file here, or anything like one.

A source is read at any offset, into memory of the reader, from several threads at once.
It vouches for nothing: what it says is checked by whoever opens the records.
"""

from __future__ import annotations

import os
import stat
import threading
from io import FileIO
from pathlib import Path
from typing import Protocol

from sealift.errors import UnavailableError, unreadable


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

    Dropped without ``close`` it closes its file, and Python's development mode says so.

    Raises:
        UnavailableError: if there is none, it cannot be read, or it was closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        self._calls = 0
        self._closed = False
        self._counting = threading.Lock()

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def state(self) -> tuple[int, str]:
        """Size, and when it was last written to."""
        descriptor = self._begin()
        try:
            status = os.fstat(descriptor)
        finally:
            self._end()
        return status.st_size, str(status.st_mtime_ns)

    def read_into(self, offset: int, out: memoryview) -> int:
        """See ``ByteSource``."""
        descriptor = self._begin()
        try:
            return os.preadv(descriptor, [out], offset)
        except OSError as error:
            raise unreadable(self.path, error) from error
        finally:
            self._end()

    def close(self) -> None:
        """Close the file, when no other thread reads it any more. Idempotent."""
        with self._counting:
            self._closed = True
            self._close_unless_read()

    def _begin(self) -> int:
        """Its descriptor, which means this file until ``_end``."""
        # Closed under a call, the number could be another file's before it is used.
        with self._counting:
            if self._closed:
                raise UnavailableError(
                    f"cannot read {self.path}", why="it was closed", code="cannot-read"
                )
            self._calls += 1
            return self._file.fileno()

    def _end(self) -> None:
        with self._counting:
            self._calls -= 1
            self._close_unless_read()

    def _close_unless_read(self) -> None:
        if self._closed and not self._calls:
            self._file.close()


def _open(path: Path) -> FileIO:
    try:
        file = FileIO(str(path), opener=_without_waiting)
    except IsADirectoryError:
        raise _no_file(path) from None
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _no_file(path)
    return file


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)  # a pipe would wait for its writer


def _no_file(path: Path) -> UnavailableError:
    return UnavailableError(
        f"cannot read {path}", why="it is not a regular file", code="cannot-read"
    )
