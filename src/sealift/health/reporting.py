"""The role's side: counts what happens, and writes its status about every second."""

from __future__ import annotations

import atexit
import resource
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from sealift.channel.record.outputfile import write_failed
from sealift.errors import SealiftError, UnavailableError
from sealift.events import Event, Sink, wall_clock
from sealift.health.status import (
    EVERY_S,
    MAX_COUNTS,
    Count,
    Status,
    remove_status,
    write_status,
)
from sealift.train.job.service import READY

BY_RULE: Final = frozenset(
    {"release.granted", "release.refused", "lease.revoked", "broker.failed"}
)
# Of these how often they happened is no secret: no name, no row, no measure.
COUNTED: Final = BY_RULE | {
    "accelerator.lost",
    "checkpoint.committed",
    "checkpoint.sealed",
    "group.met",
    "holder.receipt",
    "job.complete",
    "lease.lost",
    "receipt.kept",
    "relay.lost",
    "role.arrived",
    "role.refused",
    "round.ended",
    "shares.ended",
    "shares.refused",
    "slice.worked",
    "visit.again",
    "visit.ended",
}
OTHER: Final = "other"


class Counts:
    """Counts events on their way to a sink."""

    def __init__(self) -> None:
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._ready = False
        self._lock = threading.Lock()

    def sink(self, onwards: Sink) -> Sink:
        """A sink that counts what passes through it."""

        def count(event: Event) -> None:
            if event.kind in COUNTED:
                by_rule = event.kind in BY_RULE
                rule = str(event.fields.get("rule", "")) if by_rule else ""
                self._count(event.kind, rule)
            self._ready |= event.kind in READY
            onwards(event)

        return count

    def require_ready(self) -> None:
        """Raises UnavailableError ``role-starting`` before others can work with the role."""
        if not self._ready:
            raise UnavailableError("the role is not ready yet", code="role-starting")

    def known(self) -> tuple[Count, ...]:
        """What was counted so far."""
        with self._lock:
            numbers = sorted(self._numbers.items())
        return tuple(Count(kind, rule, number) for (kind, rule), number in numbers)

    def _count(self, kind: str, rule: str) -> None:
        with self._lock:
            room = MAX_COUNTS - len(COUNTED)  # one "other" of each kind has a place
            if (kind, rule) not in self._numbers and len(self._numbers) >= room:
                rule = OTHER
            self._numbers[kind, rule] += 1


def memory_and_disk() -> dict[str, int]:
    """Memory of this process, and room on the disk that it works on, in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    free = shutil.disk_usage(".").free
    return {"resident_bytes": pages * resource.getpagesize(), "disk_free_bytes": free}


def report_until_exit(folder: Path | None, role: str, sink: Sink) -> Sink:
    """A sink by which a role without a broker says how it is until its process ends.

    Args:
        folder: Of the status; None if nobody wants to know.
        role: Whose.
        sink: Gets the events.

    Raises:
        UnavailableError: ``cannot-write`` or ``disk-full``.
    """
    if folder is None:
        return sink
    counts = Counts()
    reporter = Reporter(
        folder,
        role,
        counts,
        require_ready=counts.require_ready,
        gauges=memory_and_disk,
        clock=wall_clock,
    )
    atexit.register(reporter.__enter__().__exit__)
    return counts.sink(sink)


class Reporter:
    """Writes the status until it is closed.

    What fails, a write on a full disk for one, is tried again: meanwhile the file grows
    old, and who shows it says so.

    Args:
        folder: Of the status alone; made if it is not there.
        role: Whose.
        counts: Of this role.
        require_ready: Raises if it can release nothing now.
        gauges: Reads what is now, by name.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        role: str,
        counts: Counts,
        *,
        require_ready: Callable[[], None],
        gauges: Callable[[], dict[str, int]],
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._role = role
        self._counts = counts
        self._require_ready = require_ready
        self._gauges = gauges
        self._clock = clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="status", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_status(self._folder, self.status())
        except OSError as error:
            raise write_failed(self._folder, error) from None
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        remove_status(self._folder)

    def status(self) -> Status:
        """How the role is now."""
        unready = ""
        gauges: dict[str, int] = {}
        try:
            self._require_ready()
            gauges = self._gauges()
        except SealiftError as error:
            unready = error.code
        return Status(
            role=self._role,
            at_s=self._clock(),
            unready=unready,
            counts=self._counts.known(),
            gauges=gauges,
        )

    def _report(self) -> None:
        while not self._ended.wait(EVERY_S):
            with suppress(Exception):  # it grows old then, and whoever shows it says so
                write_status(self._folder, self.status())
