"""How fast a recipe's worker asks its parent within a task: the bell, and a bucket.

The asking process is filtered as a worker is, and its parent replies with the very bytes
that it was sent. It is the asking process that looks at the clock: from its question to
the moment in which it may read the result. Copies are counted where they are made, by the
parent; the worker's tensors are views of the memory that both map, which cost none.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import closing
from statistics import median, quantiles
from typing import Final, NoReturn

from benchmarks.report import BenchReport
from sealift.errors import require_kind
from sealift.ids import Buffer
from sealift.train.sandbox.confine import Confinement, confine_worker
from sealift.train.sandboxed.parentpipe import WorkerEnd
from sealift.train.worker.messages import AddUp, ServeAnswer
from sealift.train.worker.requests import Area, ParentEnd

BELL_BAR_US: Final = 100.0
BUCKET_BYTES: Final = 25 << 20
_QUESTION: Final = AddUp(0)
_MEMORY_BYTES: Final = 1 << 40
_TIMEOUT_S: Final = 60.0


class CountingArea(Area):
    """Counts what is copied out of it and into it."""

    out_bytes = in_bytes = 0

    def copy(self, start: int, length: int) -> bytes:
        """As ever."""
        self.out_bytes += length
        return super().copy(start, length)

    def place(self, start: int, content: Buffer) -> None:
        """As ever."""
        self.in_bytes += len(content)
        super().place(start, content)


def measure(report: BenchReport, *, quick: bool = False) -> None:
    """A row of bells, and one of a bucket of gradients there and back."""
    took_us, _ = _asked(0, 2_000 if quick else 20_000)
    p50, p99 = median(took_us), quantiles(took_us, n=100)[-1]
    report.rows.append(
        {
            "where": "bell there and back",
            "p50_us": round(p50, 1),
            "p99_us": round(p99, 1),
            "bar_us": BELL_BAR_US,
        }
    )
    report.ratios["bell_p50_ms"] = round(p50 / 1000, 4)
    took_us, area = _asked(BUCKET_BYTES, repeats := 10 if quick else 50)
    report.rows.append(
        {
            "where": "bucket there and back",
            "mib": BUCKET_BYTES >> 20,
            "p50_ms": round(median(took_us) / 1000, 2),
            "copies_out": area.out_bytes / BUCKET_BYTES / repeats,
            "copies_in": area.in_bytes / BUCKET_BYTES / repeats,
        }
    )


def _asked(length: int, times: int) -> tuple[list[float], CountingArea]:
    """Microseconds of each question of so many bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(CountingArea(max(length, 8 * times))) as area:
        child = os.fork()
        if child == 0:
            _ask(theirs.fileno(), area.descriptor, length, times)
        theirs.close()
        ours.setblocking(False)
        until = time.monotonic() + _TIMEOUT_S
        parent = ParentEnd(area, ours.fileno(), lambda: until - time.monotonic())
        try:
            while (request := parent.hear(AddUp, ServeAnswer)).message == _QUESTION:
                parent.tell(buffer=require_kind(request.buffer, bytes))
        finally:
            ours.close()
            os.waitpid(child, 0)
        took_us = struct.unpack(f"{times}d", Area.copy(area, 0, 8 * times))
        return list(took_us), area


def _ask(stream: int, area: int, length: int, times: int) -> NoReturn:
    try:
        end, took_us = WorkerEnd(stream, area), []
        confine_worker(Confinement(["seccomp"]), (), _MEMORY_BYTES)
        end.buffers[:length] = os.urandom(length)
        for _ in range(times):
            started = time.perf_counter()
            end.ask(_QUESTION, length, room=length)
            took_us.append((time.perf_counter() - started) * 1e6)
        struct.pack_into(f"{times}d", end.buffers, 0, *took_us)
        end.answer(ServeAnswer(times))
    finally:
        os._exit(0)
