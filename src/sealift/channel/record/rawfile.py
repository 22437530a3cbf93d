"""A sealed file as those see it who do not have the key: structure and sealed bytes.

Guarantees: the file has exactly the length that its header says, and every byte handed
out was copied to private memory (rule H3: never a mapping; ``bytesource``).

Where the bytes of a sealed file are read from: a file here, or anything like one.

A source is read at any offset, into memory of the reader, from several threads at once.
It vouches for nothing: what it says is checked by whoever opens the records.
"""

from __future__ import annotations

import os
import stat
import threading
from io import FileIO
from pathlib import Path
from typing import Protocol, Self

from sealift.channel.record.layout import (
    HEADER_BYTES,
    TRAILER_BYTES,
    StreamHeader,
    Trailer,
    sealed_bytes,
)
from sealift.errors import MalformedError, UnavailableError, unreadable


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


class RawSealedFile:
    """An open sealed file, without a key.

    Args:
        source: A path, or a source of bytes, which this object owns from now on.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file; with the offset.
    """

    def __init__(self, source: str | Path | ByteSource) -> None:
        if isinstance(source, (str, Path)):
            source = FileSource(Path(source))
        self._source = source
        self.name = source.name
        self.path = source.path if isinstance(source, FileSource) else Path(self.name)
        try:
            self._state = source.state()
            self.header_bytes = self._read(0, HEADER_BYTES)
            self.header = StreamHeader.parse(self.header_bytes)
            self._check_size()
            self.trailer = self._read(self._trailer_offset, TRAILER_BYTES)
            self._check_trailer()
        except BaseException:
            self.close()
            raise

    @property
    def record_count(self) -> int:
        """Records in the file; at least one."""
        return self.header.record_count

    @property
    def total_bytes(self) -> int:
        """Plaintext bytes."""
        return self.header.total_bytes

    @property
    def sealed_file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self._trailer_offset + TRAILER_BYTES

    def record_length(self, index: int) -> int:
        """Bytes of sealed record ``index``, tag included."""
        return sealed_bytes(self.header.plaintext_bytes(index))

    def record(self, index: int) -> bytes:
        """Sealed record ``index``: ciphertext and tag.

        Raises:
            MalformedError: if the file was cut since it was opened.
        """
        return self._read(self._offset(index), self.record_length(index))

    def record_into(self, index: int, out: bytearray | memoryview) -> int:
        """Read sealed record ``index`` into private memory; return its bytes."""
        length = self.record_length(index)
        self._read_into(self._offset(index), memoryview(out)[:length])
        return length

    def check_unchanged(self) -> None:
        """The file is the one that was opened: as long, and not written to since.

        It catches mistakes early and says so plainly; what is wrong on purpose is
        caught where the records are opened.

        Raises:
            MalformedError: code ``file-changed``.
        """
        size, *_ = now = self._source.state()
        if now != self._state:
            more = size - self._state[0]
            raise MalformedError(
                f"{self.name} was changed while it was in use",
                why=f"it is {abs(more):,} bytes {'longer' if more > 0 else 'shorter'}"
                if more
                else "it was written to",
                code="file-changed",
            )

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _trailer_offset(self) -> int:
        return HEADER_BYTES + sealed_bytes(0) * self.record_count + self.total_bytes

    def _offset(self, index: int) -> int:
        return HEADER_BYTES + index * sealed_bytes(self.header.record_bytes)

    def _read(self, offset: int, length: int) -> bytes:
        out = bytearray(length)
        self._read_into(offset, memoryview(out))
        return bytes(out)

    def _read_into(self, offset: int, out: memoryview) -> None:
        filled = 0
        while filled < len(out):
            count = self._source.read_into(offset + filled, out[filled:])
            if count == 0:
                raise self._malformed("the file ends too early", offset + filled)
            filled += count

    def _check_size(self) -> None:
        if self.header.carries_messages:
            raise self._malformed("a stream of messages cannot be a file", 9)
        actual = self._state[0]
        if actual != self.sealed_file_bytes:
            raise self._malformed(
                f"it has {actual:,} bytes, and its header says {self.sealed_file_bytes:,}",
                min(actual, self.sealed_file_bytes),
            )

    def _check_trailer(self) -> None:
        trailer = Trailer.parse(self.trailer)
        counts = (trailer.record_count, trailer.total_bytes)
        if counts != (self.record_count, self.total_bytes):
            raise self._malformed(
                "its header and trailer contradict each other", self._trailer_offset + 8
            )

    def _malformed(self, why: str, offset: int) -> MalformedError:
        return MalformedError(
            f"{self.name} is not a complete sealed file",
            offset=offset,
            why=why,
            code="bad-sealed-file",
        )
