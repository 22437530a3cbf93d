"""Seal-ahead: the next batches are known, so they are sealed while the device computes.

Batches wait sealed in private memory and only cross when the device asks. Two counters
make that safe (rule H4): a batch that turns out to be another is overwritten and its
indexes are sealed again under new sequences, so no nonce repeats and no index is missing;
a sealed batch leaves private memory once. A forked child has a copy of that memory, and
is refused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from sealift.channel.link.announcement import LinkMode, TransferAnnouncement
from sealift.channel.link.send import LinkSender
from sealift.channel.record.frames import FRAME_EXTRA_BYTES
from sealift.channel.record.opener import scrub
from sealift.errors import UsageError
from sealift.ids import Buffer

DEFAULT_DEPTH: Final = 2


@dataclass(slots=True)
class SealedBatch:
    """One batch that waits: its frames in private memory, and where its indexes begin."""

    memory: bytearray
    first_index: int
    announcement: TransferAnnouncement
    frames: list[memoryview] = field(default_factory=list)
    spent: bool = False


class SealAhead:
    """Keeps a few batches sealed before they are asked for.

    Args:
        sender: A link in mode ``seal-ahead``; other transfers must not use it meanwhile.
        depth: Batches that may wait; at least one.

    Raises:
        UsageError: if the link is in another mode, or nothing may wait.
    """

    def __init__(self, sender: LinkSender, depth: int = DEFAULT_DEPTH) -> None:
        if sender.mode is not LinkMode.SEAL_AHEAD:
            raise UsageError(f"mode {sender.mode} cannot seal ahead")
        if depth < 1:
            raise UsageError(
                f"a depth of {depth} batches is not possible",
                fix="Use a depth of 1 or more",
            )
        self._sender = sender
        self._sealer = sender.sealer
        self._depth = depth
        self._lock = threading.RLock()
        self._waiting: deque[SealedBatch] = deque()
        # Of batches that are gone; lengths may differ, so the oldest are let go.
        self._rooms: deque[bytearray] = deque(maxlen=depth)
        self._number = sender.num_sent

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether one more may be sealed."""
        return len(self._waiting) < self._depth

    @property
    def forked(self) -> bool:
        """Whether this is a forked child's copy."""
        return self._sender.transport.forked

    def check_process(self) -> None:
        """Refuse a forked child.

        Raises:
            UsageError: code ``forked-stream``.
        """
        self._sender.check_process()

    def seal(self, source: Buffer) -> SealedBatch:
        """Seal one batch behind those that wait.

        Raises:
            UsageError: code ``too-far-ahead``, if ``depth`` batches wait already.
        """
        self.check_process()
        view = memoryview(source).cast("B")
        with self._lock:
            if not self.has_room:
                raise UsageError(
                    f"{self._depth} batches are already waiting", code="too-far-ahead"
                )
            planned = replace(self._sender.plan(len(view)), number=self._number)
            with self._sender.life:
                batch = self._seal(view, planned)
            self._waiting.append(batch)
            return batch

    def send(self, batch: SealedBatch) -> None:
        """Let a batch cross; return when the device verified it.

        Raises:
            UsageError: code ``batch-spent``, if it crossed or was discarded before;
                code ``out-of-turn``, if another one is before it; code
                ``forked-stream``, in a forked child.
            PeerError: if the device is gone.
        """
        self.check_process()  # before the lock: who held it may be gone
        with self._lock:
            self._take(batch)
            with self._sender.life:
                self._let_go(batch)
            self._rooms.append(batch.memory)

    def discard(self) -> int:
        """Overwrite every batch that waits; return how many there were.

        Those behind a batch that is not wanted go with it: their indexes come after.
        In a forked child nothing waits.
        """
        if self.forked:
            return 0
        with self._lock:
            dropped = len(self._waiting)
            if dropped:
                self._sealer.rewind(self._waiting[0].first_index)
                self._number -= dropped
            for batch in self._waiting:
                batch.spent = True
                scrub(batch.memory)
                self._rooms.append(batch.memory)
            self._waiting.clear()
            return dropped

    def _take(self, batch: SealedBatch) -> None:
        if batch.spent:
            raise UsageError(
                "this batch was sent or discarded before", code="batch-spent"
            )
        if not self._waiting or self._waiting[0] is not batch:
            raise UsageError(
                "a batch that was sealed earlier must be sent first", code="out-of-turn"
            )
        self._waiting.popleft()
        batch.spent = True

    def _let_go(self, batch: SealedBatch) -> None:
        transport, timeout_s = self._sender.transport, self._sender.timeout_s
        self._sender.meet()
        for frame in batch.frames:
            transport.reserve(len(frame), timeout_s)[:] = frame
            transport.commit()
        self._sender.await_verdict(batch.announcement)

    def _seal(self, view: memoryview, planned: TransferAnnouncement) -> SealedBatch:
        message = planned.encode()
        units = [
            view[start : start + planned.unit_bytes]
            for start in range(0, len(view), planned.unit_bytes)
        ]
        parts = [memoryview(message), *units]
        batch = SealedBatch(self._room(parts), self._sealer.index, planned)
        rest = memoryview(batch.memory)
        for part in parts:
            frame = rest[: len(part) + FRAME_EXTRA_BYTES]
            self._sealer.seal(part, frame)
            batch.frames.append(frame)
            rest = rest[len(frame) :]
        self._number += 1
        return batch

    def _room(self, parts: list[memoryview]) -> bytearray:
        needed = sum(len(part) + FRAME_EXTRA_BYTES for part in parts)
        for room in self._rooms:
            if len(room) == needed:
                self._rooms.remove(room)
                return room
        made = bytearray(needed)
        scrub(made)  # touches every page, so that sealing does not
        return made


class AheadFeeder:
    """Seals batches on a thread of its own, as far ahead as may be.

    ``send_next`` then costs a copy of what is sealed. Whatever the source or the sealer
    raises is raised by the ``send_next`` that would have sent that batch.
    """

    def __init__(self, ahead: SealAhead, batches: Iterable[Buffer]) -> None:
        self._ahead = ahead
        self._source = iter(batches)
        self._changed = threading.Condition()
        self._ready: deque[SealedBatch | BaseException | None] = deque()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name="sealift-seal-ahead", daemon=True
        )
        self._thread.start()

    def send_next(self) -> bool:
        """Send the next batch; False when there are no more.

        Raises:
            UsageError: if this was closed, also while it waited; code
                ``forked-stream``, in a forked child, which has no such thread.
            PeerError: if the device is gone.
        """
        self._ahead.check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
            if self._closed:
                raise UsageError("this source of batches was closed")
            found = self._ready[0]
            if isinstance(found, SealedBatch):
                self._ready.popleft()
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return False
        try:
            self._ahead.send(found)
        finally:
            with self._changed:
                self._changed.notify_all()
        return True

    def close(self) -> None:
        """Stop, and overwrite what waits."""
        if self._ahead.forked:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._ahead.discard()

    def _run(self) -> None:
        try:
            for batch in self._source:
                if not self._room_for_one():
                    return
                self._put(self._ahead.seal(batch))
            self._put(None)
        except BaseException as error:  # nobody waits for a thread that is gone
            self._put(error)

    def _room_for_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ahead.has_room)
            return not self._closed

    def _put(self, ready: SealedBatch | BaseException | None) -> None:
        with self._changed:
            self._ready.append(ready)
            self._changed.notify_all()
