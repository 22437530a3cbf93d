"""Look for bytes in the whole address space of another process (Linux)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

CHUNK_BYTES = 4 << 20


def family(process: int) -> list[int]:
    """A process and all that descend from it, in whatever namespaces they live."""
    found = [process]
    for each in found:
        tasks = Path(f"/proc/{each}/task").glob("*/children")
        found += [int(child) for task in tasks for child in task.read_text().split()]
    return found


def scan_family(process: int, needles: Mapping[str, bytes]) -> dict[str, list[str]]:
    """`scan` of a process and all that descend from it."""
    found: dict[str, list[str]] = {name: [] for name in needles}
    for each in family(process):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for name, hits in scan(each, needles).items():
                found[name] += [f"{each} {hit}" for hit in hits]
    return found


def scan(process: int, needles: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Where each needle lies: the name of the mapping, once per hit.

    Every readable mapping is read through ``/proc/<pid>/mem``, so nothing has to run in
    the process, and memory that its allocator thinks is free is seen as well. Left out
    are read-only mappings of files: what they hold is in the file.
    """
    found: dict[str, list[str]] = {name: [] for name in needles}
    longest = max(len(needle) for needle in needles.values())
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for start, end, label in _mappings(process):
            for at, chunk in _chunks(memory, start, end, longest - 1):
                for name, needle in needles.items():
                    hits = _count(chunk, needle)
                    found[name] += [f"{label} {at:x}"] * hits
    return found


def _mappings(process: int) -> Iterator[tuple[int, int, str]]:
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        label = fields[5] if len(fields) > 5 else "anonymous"
        from_file = fields[4] != "0" and "w" not in fields[1]
        if fields[1].startswith("r") and not from_file and not label.startswith("[v"):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            offset = int(fields[2], 16)
            file = Path(f"/proc/{process}/map_files/{fields[0]}")
            for first, last in _written(file, offset, end - start, label):
                yield start + first, start + last, label


def _written(
    file: Path, offset: int, length: int, label: str
) -> Iterator[tuple[int, int]]:
    """Where a mapped memory file has pages: reading elsewhere would make some."""
    try:
        descriptor = os.open(file, os.O_RDONLY) if label.startswith("/memfd:") else -1
    except OSError:  # not ours to open, or gone
        descriptor = -1
    if descriptor < 0:
        yield 0, length
        return
    end = offset
    try:
        while end < offset + length:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            if start >= offset + length:
                return
            yield start - offset, min(end - offset, length)
    except OSError as error:
        if error.errno != errno.ENXIO:  # nothing behind
            raise
    finally:
        os.close(descriptor)


def _chunks(
    memory: object, start: int, end: int, overlap: int
) -> Iterator[tuple[int, bytes]]:
    """Pieces that overlap, so that no needle falls between two of them."""
    tail, at = b"", start
    while at < end:
        try:
            memory.seek(at)  # type: ignore[attr-defined]
            piece = memory.read(min(CHUNK_BYTES, end - at))  # type: ignore[attr-defined]
        except OSError:  # unmapped meanwhile, or not to be read at all
            return
        if not piece:
            return
        yield at - len(tail), tail + piece
        tail, at = piece[len(piece) - overlap :], at + len(piece)


def _count(chunk: bytes, needle: bytes) -> int:
    hits, at = 0, chunk.find(needle)
    while at >= 0:
        hits, at = hits + 1, chunk.find(needle, at + 1)
    return hits
