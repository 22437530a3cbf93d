"""The sending end of a link: an owner's process, or the host beside the device.

One transfer after another crosses: its announcement, its units, and the device's verdict
back. ``send`` returns when the device has opened everything. In every mode the records
are sealed straight into memory that only the two ends have mapped (rule H3).
Batches that are known may be sealed while the device computes. They wait sealed in private
memory and only cross when the device asks. Two counters make that safe (rule H4): a batch
that turns out to be another is overwritten and its indexes are sealed again under new
sequences, so no nonce repeats and no index is missing; a sealed batch leaves private
memory once. A forked child has a copy of that memory, and is refused.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from sealift.channel.link.announcement import (
    DEFAULT_MODE,
    LinkKeys,
    LinkMode,
    TransferAnnouncement,
    TransferKind,
    encode_hello,
    link_context,
    parse_hello,
)
from sealift.channel.link.openers import FORWARDED_EXTRA_BYTES, fill_frame
from sealift.channel.record.frames import FRAME_EXTRA_BYTES, FrameSealer
from sealift.channel.record.layout import (
    DEFAULT_RECORD_BYTES,
    StreamHeader,
    check_record_bytes,
)
from sealift.channel.record.opener import StreamOpener, scrub
from sealift.channel.record.record import Life, forked_stream
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.errors import MalformedError, UsageError
from sealift.ids import Buffer

VERDICT: Final = struct.Struct(">8sQ")
VERDICT_MAGIC: Final = b"verified"
MIN_SUGGESTED_BYTES: Final = 256 << 10
RECORDS_WANTED: Final = 16
DEFAULT_TIMEOUT_S: Final = 60.0


class LinkSender:
    """Sends transfers to a device, in one mode.

    Args:
        transport: A memory file whose other end is the device; owned from now on.
        keys: Base keys of both directions.
        mode: How transfers are laid out; the device is told the same.
        record_bytes: Plaintext per record: 64 KiB to 4 MiB for speed, a multiple of
            32 in any case.
        context: What both ends know: job, agreement.
        timeout_s: How long the device may take for one step.

    Attributes:
        num_sent: Transfers that the device verified.

    Raises:
        MalformedError: if the record size is not allowed.
    """

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        *,
        mode: LinkMode = DEFAULT_MODE,
        record_bytes: int = DEFAULT_RECORD_BYTES,
        suite: Suite = Suite.AES_256_GCM,
        context: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        check_record_bytes(record_bytes)
        self.mode = mode
        self.transport = transport
        self.timeout_s = timeout_s
        self.life = Life()
        self._record_bytes = record_bytes
        context = link_context(mode, context)
        self.sealer = FrameSealer(keys.to_device, suite=suite, context=context)
        self._from_device = (keys.from_device, context)
        self._verdicts: StreamOpener | None = None
        self.num_sent = 0
        try:
            transport.send(encode_hello(self.sealer.header_bytes))
        except BaseException:
            self.close()
            raise

    def send(self, source: Buffer) -> None:
        """Send one transfer; return when the device's verdict came.

        Raises:
            UsageError: if it is empty.
            PeerError: if the device is gone, or refused what came.
        """
        view = memoryview(source).cast("B")
        planned = self.plan(len(view))  # a mistake ends no link
        with self.life:
            announcement = self.announce(planned)
            for start in range(0, len(view), announcement.unit_bytes):
                self._send_unit(view[start : start + announcement.unit_bytes])
            self.await_verdict(announcement)

    def forward(
        self,
        header_bytes: bytes,
        records: Iterable[Buffer],
        total_bytes: int,
        *,
        first_index: int = 0,
    ) -> None:
        """Send records of a stream sealed at home, unopened (rule C6).

        Args:
            header_bytes: The stream's header; the device has the owner's key.
            records: Ciphertext and tag of every record, in order.
            total_bytes: Their plaintext altogether.
            first_index: Which record of the stream is the first of them.

        Raises:
            UsageError: code ``not-a-record``, if a record is shorter than its tag; the
                link is dead then.
            PeerError: if the device is gone, or refused what came.
        """
        self.check_process()
        planned = TransferAnnouncement(
            TransferKind.HOME,
            0,
            total_bytes,
            StreamHeader.parse(header_bytes).record_bytes,
            first_index,
            header_bytes,
        )
        with self.life:
            announcement = self.announce(planned)
            for index, record in enumerate(records, first_index):
                view = memoryview(record).cast("B")
                if len(view) < TAG_BYTES:
                    raise UsageError(
                        f"a sealed record must have more than {len(view)} bytes",
                        code="not-a-record",
                    )
                frame_bytes = len(view) - TAG_BYTES + FORWARDED_EXTRA_BYTES
                room = self.transport.reserve(frame_bytes, self.timeout_s)
                fill_frame(self.sealer, announcement, index, view, room)
                self.transport.commit()
            self.await_verdict(announcement)

    def plan(self, total_bytes: int) -> TransferAnnouncement:
        """The announcement of a transfer; its number comes later.

        Raises:
            UsageError: code ``empty-transfer``; code ``forked-stream``, in a forked
                child.
        """
        self.check_process()
        if total_bytes == 0:
            raise UsageError(
                "a transfer must have at least one byte", code="empty-transfer"
            )
        return TransferAnnouncement(
            TransferKind.LIVE, 0, total_bytes, self._record_bytes
        )

    def announce(self, planned: TransferAnnouncement) -> TransferAnnouncement:
        """Announce the next transfer; ``life`` is entered, so nobody else is the next.

        Returns:
            What was announced: the plan with its number.
        """
        self.meet()
        announcement = replace(planned, number=self.num_sent)
        message = announcement.encode()
        frame = self.transport.reserve(len(message) + FRAME_EXTRA_BYTES, self.timeout_s)
        self.sealer.seal(message, frame)
        self.transport.commit()
        return announcement

    def check_process(self) -> None:
        """Refuse a forked child, before it touches what it shares with its parent.

        Keys are gone there anyway; ring and batches that were sealed ahead are not.

        Raises:
            UsageError: code ``forked-stream``.
        """
        if self.transport.forked:
            raise forked_stream()

    def meet(self) -> StreamOpener:
        """Read what the device said first; before anything is sent to it.

        Raises:
            PolicyError: code ``link-version``, if it speaks another one.
            AuthenticationError: if it has another key.
            PeerError: if it is gone.
        """
        if self._verdicts is None:
            header = parse_hello(self.transport.receive(self.timeout_s))
            key, context = self._from_device
            self._verdicts = StreamOpener(key, header, context=context)
        return self._verdicts

    def await_verdict(self, announcement: TransferAnnouncement) -> None:
        """Wait until the device verified everything of a transfer.

        Raises:
            PeerError: if it is gone; a device that refuses what came goes.
            AuthenticationError: if somebody else answered.
        """
        verdicts = self.meet()
        answer = verdicts.open_frame(self.transport.receive(self.timeout_s))
        if answer != VERDICT.pack(VERDICT_MAGIC, announcement.number):
            raise MalformedError("the device's answer belongs to another transfer")
        self.num_sent += 1

    def close(self) -> None:
        """Forget the keys, end the connection."""
        self.life.dead = True
        self.sealer.close()
        if self._verdicts is not None:
            self._verdicts.close()
        self.transport.close()

    def _send_unit(self, plaintext: memoryview) -> None:
        transport = self.transport
        frame = transport.reserve(len(plaintext) + FRAME_EXTRA_BYTES, self.timeout_s)
        self.sealer.seal(plaintext, frame)
        transport.commit()


def suggested_record_bytes(total_bytes: int) -> int:
    """A record size for transfers of that length: 256 KiB to 1 MiB.

    Some sixteen records let copy and opening overlap; below 256 KiB a record the
    interpreter costs as much as that saves, as was measured.
    """
    wanted = total_bytes // RECORDS_WANTED
    size = MIN_SUGGESTED_BYTES
    while size < min(wanted, DEFAULT_RECORD_BYTES):
        size *= 2
    return size


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
