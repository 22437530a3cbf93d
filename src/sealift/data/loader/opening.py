"""Open parts of shards into memory: here, in threads, or in processes.

An ``Extent`` says which bytes of which shard go where in the arena. Whoever opens them
verifies every record before it says that it is done.

Several verdicts that are one: all are waited for, and if one failed, all did.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol

from sealift.channel.device.device import Verdicts
from sealift.channel.record.commitment import VerifiedLeaves
from sealift.data.schedule.order import RowRun
from sealift.data.shards.shard import OpenShards, Shard
from sealift.errors import AuthenticationError, SealiftError, require_value

OPEN_SHARDS: Final = 32  # open files per thread or process
GROUP_BYTES: Final = 2 << 20  # what one call opens, at least

PartOf = Callable[[int, int], memoryview]


@dataclass(frozen=True, slots=True)
class Extent:
    """Plaintext ``[start, end)`` of a shard, and where it goes in the arena."""

    shard: int
    start: int
    end: int
    at: int


class Opener(Protocol):
    """Opens extents, one call at a time."""

    def open(self, extents: Sequence[Extent]) -> None:
        """Open them all; what is not verified is zero when this raises."""

    def close(self) -> None:
        """Forget keys and plaintext. Idempotent."""


class ShardOpener:
    """Opens in this thread, with readers of its own.

    Args:
        shards: The dataset's shards.
        leaves: Per shard, its verified leaves, or None.
        part: The arena's memory: ``(start, length)`` to a writable view.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        leaves: Sequence[VerifiedLeaves | None],
        part: PartOf,
    ) -> None:
        self._readers = OpenShards(shards, leaves, OPEN_SHARDS)
        self._part = part

    def open(self, extents: Sequence[Extent]) -> None:
        """See ``Opener``."""
        for extent in extents:
            out = self._part(extent.at, extent.end - extent.start)
            self._readers[extent.shard].open_range(extent.start, extent.end, out)

    def close(self) -> None:
        """See ``Opener``."""
        self._readers.close()


class OpenerPool:
    """Openers at work beside the caller, one per thread, and one for the caller.

    Args:
        openers: One per thread; ``close`` closes them.
        own: The caller's, for when it would only wait; without ``openers``, ``submit``
            does the work itself. None: the caller opens nothing.
    """

    def __init__(self, openers: Sequence[Opener], own: Opener | None) -> None:
        self._own = own
        self._openers = list(openers)
        self._idle = SimpleQueue[Opener]()
        for opener in openers:
            self._idle.put(opener)
        self._threads = (
            ThreadPoolExecutor(len(self._openers), thread_name_prefix="sealift-open")
            if openers
            else None
        )

    @property
    def works_ahead(self) -> bool:
        """Whether work goes on while the caller does something else."""
        return self._threads is not None

    @property
    def caller_opens(self) -> bool:
        """Whether there is ``open_here``."""
        return self._own is not None

    @property
    def num_openers(self) -> int:
        """How many work at once, beside the caller."""
        return len(self._openers)

    def submit(self, extents: Sequence[Extent]) -> Future[None]:
        """Open them; the future raises what went wrong."""
        if self._threads is not None:
            return self._threads.submit(self._open, extents)
        done: Future[None] = Future()
        try:
            self.open_here(extents)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def open_here(self, extents: Sequence[Extent]) -> None:
        """Open them in the caller's thread; see ``Opener``."""
        require_value(self._own).open(extents)

    def close(self) -> None:
        """End the threads, then close every opener. Idempotent."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for opener in self._openers:
            opener.close()
        if self._own is not None:
            self._own.close()

    def _open(self, extents: Sequence[Extent]) -> None:
        # As many threads as openers; or more: an interrupt makes Python lose count.
        opener = self._idle.get()
        try:
            opener.open(extents)
        finally:
            self._idle.put(opener)


def extents_of(runs: Sequence[RowRun], row_bytes: int, at: int) -> list[Extent]:
    """Where the rows of a window lie, and where they go: one after another."""
    extents = []
    for run in runs:
        start, end = run.first * row_bytes, run.end * row_bytes
        extents.append(Extent(run.shard, start, end, at))
        at += end - start
    return extents


def grouped(extents: Sequence[Extent], num_openers: int) -> list[list[Extent]]:
    """Groups of about equal size, some for each opener, none very small."""
    total_bytes = sum(extent.end - extent.start for extent in extents)
    wanted_bytes = max(GROUP_BYTES, total_bytes // (4 * (num_openers + 1)))
    groups: list[list[Extent]] = [[]]
    filled_bytes = 0
    for extent in extents:
        if filled_bytes >= wanted_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(extent)
        filled_bytes += extent.end - extent.start
    return groups


class AllOf:
    """See ``channel.device.device.Verdicts``; any thread may wait.

    Args:
        parts: The verdicts.
        undo: Run once, before anybody hears that one failed.
    """

    def __init__(
        self, parts: Sequence[Verdicts], undo: Callable[[], None] = lambda: None
    ) -> None:
        self._parts = list(parts)
        self._undo = undo
        self._failed: Exception | None = None
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when every part verified.

        Raises:
            AuthenticationError: if one did not; nothing writes any more.
            UnavailableError: code ``device-lost``, if none failed but that.
        """
        with self._lock:
            self._settle()
        if isinstance(self._failed, AuthenticationError):
            raise AuthenticationError
        if self._failed is not None:
            raise self._failed

    def _settle(self) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            try:
                part.wait()
            except Exception as error:  # each of them ends before the first is told
                if not isinstance(self._failed, AuthenticationError):
                    self._failed = error
        if parts and self._failed is not None:
            with contextlib.suppress(SealiftError):
                self._undo()
