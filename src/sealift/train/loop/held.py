"""Bytes of states in memory files that this process does not map: they are read in pieces.

A state is several times as long as its model. It lies in a memory file, often the one that
a worker wrote it into before it ended, and goes on from there by reference: whoever digests,
averages, seals or hands it on reads one piece after the other into memory of its own (rule
N10). What nobody refers to any more is overwritten and given back to the kernel.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from io import FileIO
from itertools import accumulate
from typing import Final

from sealift.data.schedule.memory import free_memory_bytes
from sealift.errors import no_room
from sealift.ids import Buffer

PIECE_BYTES: Final = 1 << 20
PAGE_BYTES: Final = mmap.PAGESIZE
_ZEROES: Final = bytes(PIECE_BYTES)


class MemoryFile:
    """An anonymous memory file; pages are taken when something is written.

    Whoever gets ``descriptor`` shares position and flags of an open file with us. So this
    process reads and writes through one of its own, which nothing done to that one changes.

    Args:
        length: In bytes.
        flags: Besides that no other program inherits it.

    Raises:
        OSError: if it cannot be had.
    """

    def __init__(self, length: int, flags: int = 0) -> None:
        self.length = length
        self._users = 0
        shown = os.memfd_create("sealift-area", os.MFD_CLOEXEC | flags)
        self._shown = FileIO(shown, "r+")
        try:
            os.ftruncate(shown, length)
            again = os.open(f"/proc/self/fd/{shown}", os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            self._shown.close()
            raise
        self._file = FileIO(again, "r+")

    @property
    def descriptor(self) -> int:
        """What is handed over, as long as somebody uses the file."""
        return self._shown.fileno()

    def open_to_read(self) -> FileIO:
        """Another open file of the same bytes, which nobody can map to write them."""
        shown = f"/proc/self/fd/{self.descriptor}"
        return FileIO(os.open(shown, os.O_RDONLY | os.O_CLOEXEC))

    @property
    def users(self) -> int:
        """How many stretches of it are in use."""
        return self._users

    def use(self) -> None:
        """One more user, which calls ``end_use`` once."""
        self._users += 1

    def end_use(self, start: int, end: int) -> None:
        """Clear what was used; the last one closes the file."""
        try:
            self.clear(start, end)
        finally:
            self._users -= 1
            if not self._users:
                self._shown.close()
                self._file.close()

    @property
    def _own(self) -> int:
        return self._file.fileno()

    def read(self, start: int, length: int) -> bytes:
        """A copy, each byte read once."""
        found = os.pread(self._own, length, start)
        while len(found) < length:  # the kernel may give less of what is long
            rest = os.pread(self._own, length - len(found), start + len(found))
            if not rest:
                raise OSError(errno.EIO, "a memory file is shorter than it was")
            found += rest
        return found

    def write(self, start: int, content: Buffer) -> None:
        """Put bytes there.

        Raises:
            UnavailableError: code ``no-memory``.
        """
        view = memoryview(content).cast("B")
        while view:
            try:
                done = os.pwrite(self._own, view, start)
            except OSError as error:
                raise no_room(f"a state of {len(view):,} bytes", error) from None
            view, start = view[done:], start + done

    def overwrite(self, start: int, end: int) -> None:
        """Write zeroes wherever anything was written."""
        for at, stop in self._written(start, end):
            for place in range(at, stop, PIECE_BYTES):
                part = memoryview(_ZEROES)[: min(PIECE_BYTES, stop - place)]
                os.pwrite(self._own, part, place)

    def clear(self, start: int, end: int) -> None:
        """Overwrite it, and give whole pages back."""
        self.overwrite(start, end)
        first = start + -start % PAGE_BYTES
        last = end - (end % PAGE_BYTES if end < self.length else 0)
        if first < last:
            with mmap.mmap(self._own, last - first, offset=first) as pages:
                pages.madvise(mmap.MADV_REMOVE)

    def _written(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where pages exist: most of an area has none, and is not to get them."""
        at = start
        while at < end:
            try:
                at = os.lseek(self._own, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing behind
                    return
                raise
            if at >= end:
                return
            stop = min(end, os.lseek(self._own, at, os.SEEK_HOLE))
            yield at, stop
            at = stop


class ByPieces(ABC):
    """Bytes that are not in this process's memory all at once."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, start: int, length: int) -> bytes:
        """A copy of some of it; less where it ends."""

    @abstractmethod
    def part(self, start: int, length: int) -> Content:
        """Some of it, by reference where that can be."""

    def pieces(self) -> Iterator[bytes]:
        """All of it, each piece in memory of our own."""
        for start in range(0, len(self), PIECE_BYTES):
            yield self.read(start, PIECE_BYTES)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByPieces | bytes):
            return NotImplemented
        starts = range(0, max(len(self), len(other)), PIECE_BYTES)
        pairs = (
            (self.read(s, PIECE_BYTES), read_of(other, s, PIECE_BYTES)) for s in starts
        )
        return all(mine == theirs for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]  # its bytes may change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} bytes)"  # no content on a screen


class Held(ByPieces):
    """A stretch of a memory file; overwritten once nobody has it or a part of it.

    Args:
        memory: The file.
        start: Where it begins.
        length: In bytes.
        whole: What this is a part of; None for what is overwritten at the end.
    """

    def __init__(
        self, memory: MemoryFile, start: int, length: int, whole: Held | None = None
    ) -> None:
        self._memory, self._start, self._length = memory, start, length
        self._whole = whole
        if whole is None:
            memory.use()
            ended = weakref.finalize(self, memory.end_use, start, start + length)
            ended.atexit = False  # the kernel clears what ends with this process

    @classmethod
    def room(cls, length: int) -> Held:
        """Room in a file of its own.

        Raises:
            UnavailableError: code ``no-memory``; said before anything is written.
        """
        free = free_memory_bytes()
        what = f"states of {length:,} bytes"
        if length > free:  # else the kernel would end a process to make room
            error = OSError(errno.ENOMEM, f"{free:,} bytes are free")
            raise no_room(what, error, "Use a smaller model, or end other programs")
        try:
            return cls(MemoryFile(max(1, length)), 0, length)
        except OSError as error:
            raise no_room(what, error) from None

    @classmethod
    def of(cls, content: Content) -> Held:
        """A copy of ``content`` in a file of its own; itself, if it lies in one.

        Raises:
            UnavailableError: code ``no-memory``.
        """
        if isinstance(content, Held):
            return content
        made, at = cls.room(len(content)), 0
        for piece in pieces_of(content):
            made.write(at, piece)
            at += len(piece)
        return made

    def __len__(self) -> int:
        return self._length

    def open_to_read(self) -> FileIO:
        """The file, to be handed over: its own open file, which writes nothing (rule N6)."""
        return self._memory.open_to_read()

    def by_itself(self) -> Held:
        """The same bytes in a file that has no other stretch; itself, if that is so already.

        Raises:
            UnavailableError: code ``no-memory``.
        """
        if self._memory.users == 1:
            return self
        made = self.room(self._length)
        for number, piece in enumerate(self.pieces()):
            made.write(number * PIECE_BYTES, piece)
        return made

    @property
    def start(self) -> int:
        """Where it begins in the file."""
        return self._start

    def read(self, start: int, length: int) -> bytes:
        """See ``ByPieces``."""
        length = max(0, min(length, self._length - start))
        return self._memory.read(self._start + start, length)

    def write(self, start: int, content: Buffer) -> None:
        """Put bytes into it."""
        if not 0 <= start <= start + len(content) <= self._length:
            raise ValueError("outside of what is held")
        self._memory.write(self._start + start, content)

    def clear(self) -> None:
        """Overwrite it, and give whole pages back."""
        self._memory.clear(self._start, self._start + self._length)

    def part(self, start: int, length: int) -> Held:
        """See ``ByPieces``; the whole is overwritten once its parts are gone, too."""
        if not 0 <= start <= start + length <= self._length:
            raise ValueError("outside of what is held")
        whole = self if self._whole is None else self._whole
        return Held(self._memory, self._start + start, length, whole)


class Chain(ByPieces):
    """Several contents end to end, by reference."""

    def __init__(self, *parts: Content) -> None:
        self._parts = parts
        self._starts = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, length: int) -> bytes:
        """See ``ByPieces``."""
        found, number = bytearray(), max(0, bisect_right(self._starts, start) - 1)
        while len(found) < length and number < len(self._parts):
            at = start + len(found) - self._starts[number]
            found += read_of(self._parts[number], at, length - len(found))
            number += 1
        return bytes(found)

    def part(self, start: int, length: int) -> Content:
        """See ``ByPieces``; of what lies in several of them a copy."""
        for part, first in zip(self._parts, self._starts, strict=False):
            if first <= start and start + length <= first + len(part):
                return part_of(part, start - first, length)
        return self.read(start, length)


Content = bytes | bytearray | memoryview | ByPieces


def pieces_of(content: Content) -> Iterator[Buffer]:
    """Its bytes in order."""
    return content.pieces() if isinstance(content, ByPieces) else iter((content,))


def read_of(content: Content, start: int, length: int) -> bytes:
    """A copy of some of its bytes; fewer where it ends."""
    if isinstance(content, ByPieces):
        return content.read(start, length)
    return bytes(content[start : start + length])


def part_of(content: Content, start: int, length: int) -> Content:
    """Some of its bytes, by reference where that can be."""
    if isinstance(content, ByPieces):
        return content.part(start, length)
    return content[start : start + length]
