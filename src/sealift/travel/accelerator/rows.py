"""How the payload of a frame becomes rows in the visit's buffer.

The payload is a record of the owner's sealed file. A record that lies wholly inside the lease is opened straight into its place:
nobody reads the buffer before the visit is sealed, and a visit that fails scrubs it.
A record at the lease's edge is opened in the quarantine slot, and the leased part of
it placed. Content is hashed by threads beside the opening, from the visit's private
memory; nothing counts as loaded before ``finish``.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import Final

from sealift.channel.record.commitment import VerifiedLeaves
from sealift.channel.record.opener import Place, RecordOpener
from sealift.channel.record.quarantine import Slot
from sealift.travel.visit.frame import Placement
from sealift.travel.visit.pool import Pool

MAX_HASHING_THREADS: Final = 3
MAX_QUEUED: Final = 2  # more would leave the cache before they are hashed


class SealedRows:
    """Records of the owner's sealed file, checked against the agreement's content.

    Args:
        opener: Of the file, with the data key; closed by ``close``.
        leaves: Lead to the content commitment.
        pool: This visit's memory.
        hashing_threads: Threads that hash beside the opening; 0 hashes in turn.
    """

    def __init__(
        self,
        opener: RecordOpener,
        leaves: VerifiedLeaves,
        pool: Pool,
        *,
        hashing_threads: int | None = None,
    ) -> None:
        self._opener = opener
        self._leaves = leaves
        self._pool = pool
        threads = spare_cores() if hashing_threads is None else hashing_threads
        self._hashing = Hashing(leaves, threads)

    def place(self, place: Placement, payload: memoryview) -> None:
        """Open one record; see ``FrameRows``."""
        where = Place(place.record, place.record, self._is_final(place))
        if self._is_whole(place):
            end = place.offset + place.length
            slot = Slot(self._pool.buffer[place.offset : end])
            opened = self._opener.open_in(slot, where, payload, private=True)
            self._hashing.submit(place.record, opened)
        else:
            self._place_part(place, where, payload)

    def finish(self) -> None:
        """See ``FrameRows``."""
        self._hashing.finish()

    def close(self) -> None:
        """See ``FrameRows``."""
        self._hashing.close()
        self._opener.close()

    def _place_part(self, place: Placement, where: Place, payload: memoryview) -> None:
        slot = Slot(self._pool.quarantine)
        opened = self._opener.open_in(slot, where, payload, private=True)
        try:
            self._leaves.verify(place.record, opened)
            rows = opened[place.skip : place.skip + place.length]
            self._pool.buffer[place.offset : place.offset + place.length] = rows
        finally:
            slot.scrub()

    def _is_final(self, place: Placement) -> bool:
        return self._opener.header.is_final(place.record)

    def _is_whole(self, place: Placement) -> bool:
        return place.length == self._opener.header.plaintext_bytes(place.record)


class Hashing:
    """Checks leaves in threads; the first failure is raised by the next call.

    Args:
        leaves: What the hashes must be.
        threads: How many, 0 for none; hashing lets go of the interpreter's lock.
    """

    def __init__(self, leaves: VerifiedLeaves, threads: int) -> None:
        self._leaves = leaves
        self._queue: SimpleQueue[tuple[int, memoryview] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._dropping = False
        self._threads = [
            threading.Thread(target=self._hash, name="hashing", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, record: int, plaintext: memoryview) -> None:
        """Check one record, some time before ``finish`` returns."""
        if self._failure is not None:
            raise self._failure
        if self._queue.qsize() < MAX_QUEUED * len(self._threads):
            self._queue.put((record, plaintext))
        else:  # whoever opens helps, rather than run ahead
            self._leaves.verify(record, plaintext)

    def finish(self) -> None:
        """Wait for every check.

        Raises:
            IntegrityError: if a record was not the agreed one.
        """
        self._join()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drop what is queued, and end. Idempotent."""
        self._dropping = True
        self._join()

    def _join(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _hash(self) -> None:
        while (each := self._queue.get()) is not None:
            if self._failure is None and not self._dropping:
                self._check(*each)
            del each  # no view of the buffer outlives its check

    def _check(self, record: int, plaintext: memoryview) -> None:
        try:
            self._leaves.verify(record, plaintext)
        except BaseException as error:  # a bug must not pass for a check that held
            self._failure = error


def spare_cores() -> int:
    """Threads worth having beside the one that opens."""
    return max(1, min(MAX_HASHING_THREADS, len(os.sched_getaffinity(0)) - 1))
