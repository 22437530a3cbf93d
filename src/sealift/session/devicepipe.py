"""A pipe whose messages may lie in a device's memory: they are sealed and opened there.

What crosses is what a ``Pipe`` sends: the same records under the same keys, nonces and
associated data, so the other end may be either. Of such messages the host of this end
holds ciphertext only. The keys of both directions lie in the device's memory as well, until
the pipe ends; what keeps them secret there depends on the device (``channel.cuda.engine``).

A message is sealed in batches of a few records, so that one batch crosses the bus while the
one before it is sent. What arrives is copied once into memory of this process, and from
there to the device. It is opened where the target lies, whose memory is zeroes if a record
fails; nobody uses the target before ``receive_into`` returns.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import Final, NamedTuple

from sealift.channel.cuda.staging import writable_address
from sealift.channel.device.device import (
    DeviceEvent,
    DeviceKey,
    DeviceKeys,
    DeviceTensor,
    RecordPlace,
    SummingEngine,
    Verdicts,
)
from sealift.channel.record.frames import FRAME_EXTRA_BYTES, wrong_length
from sealift.channel.record.layout import PREFIX, PREFIX_BYTES
from sealift.crypto.aead import TAG_BYTES
from sealift.errors import PeerError, SealiftError, UsageError
from sealift.ids import Buffer
from sealift.session.pipe import LEAST_RATE, RECORD_BYTES, Pipe, is_last
from sealift.session.session import Session

BATCH_RECORDS: Final = 4
_SLOTS: Final = 2
_ALIGNED: Final = 256


class _Record(NamedTuple):
    """One record of a batch: its key, where it lies, and its sequence."""

    key: DeviceKey
    place: RecordPlace
    sequence: int


class _Slot:
    """Room for a batch of sealed records, on the host and on the device."""

    def __init__(self, engine: SummingEngine, nbytes: int) -> None:
        block = engine.pinned(
            nbytes
        )  # the engine gives it back: others may copy from it
        self.host = block.view if block else memoryview(bytearray(nbytes))
        self.sealed = engine.allocate(nbytes)
        self.uses: Sequence[DeviceEvent | Verdicts] = ()

    def wait(self) -> None:
        """Wait until nothing uses it.

        Raises:
            AuthenticationError: if a record that was opened from it is not genuine.
        """
        uses, self.uses = self.uses, ()
        for each in uses:
            each.wait()


class _Direction:
    """The keys of one direction on a device, and slots that are used in turn."""

    def __init__(self, engine: SummingEngine, keys: DeviceKeys) -> None:
        self.engine, self.keys = engine, keys
        nbytes = BATCH_RECORDS * _padded(RECORD_BYTES + TAG_BYTES)
        with ExitStack() as made:
            made.callback(keys.close)
            self._slots: deque[_Slot] = deque()
            for _ in range(_SLOTS):
                self._slots.append(_Slot(engine, nbytes))
                made.callback(self._slots[-1].sealed.close)
            self.close = made.pop_all().close

    def take(self) -> _Slot:
        """The slot that was used longest ago, once nothing uses it any more."""
        self._slots.rotate(-1)
        slot = self._slots[-1]
        slot.wait()
        return slot

    def settle(self) -> None:
        """Wait for everything that was queued, whatever comes of it."""
        for slot in self._slots:
            for each in slot.uses:
                with suppress(SealiftError):
                    each.wait()

    def wait(self) -> None:
        """Wait for everything that was queued.

        Raises:
            AuthenticationError: if a record is not genuine.
        """
        for slot in self._slots:
            slot.wait()

    def place(
        self, counters: tuple[int, int], bound: bytes, at: int, to: int, nbytes: int
    ) -> _Record:
        """A record of ``nbytes`` at ``at`` of a slot and ``to`` of the plain memory."""
        index, sequence = counters
        key, place = self.keys.place(
            index,
            sequence,
            final=False,
            sealed_offset=at,
            plain_offset=to,
            plaintext_bytes=nbytes,
        )
        bound = place.associated_data + bound
        return _Record(key, place._replace(associated_data=bound), sequence)


class DevicePipe(Pipe):
    """See ``Pipe``; after ``use_device`` a ``DeviceTensor`` is a message as well."""

    _out: _Direction | None = None
    _back: _Direction | None = None

    def use_device(self, engine: SummingEngine) -> None:
        """Put the keys of both directions on a device; once, before its first message.

        Raises:
            UnavailableError: if it has no room, or does not compute the pipe's suite.
        """
        suite = self._opener.header.suite
        with self._turn(self._send_lock):
            self._out = _Direction(engine, DeviceKeys(self._sealer.keys, suite, engine))
            self._back = _Direction(
                engine, DeviceKeys(self._opener.keys, suite, engine)
            )

    def send(self, source: Buffer | DeviceTensor) -> None:
        """See ``Pipe.send``."""
        if not isinstance(source, DeviceTensor):
            super().send(source)
            return
        with self._turn(self._send_lock):
            out, waiting = _used(self._out), deque[tuple[_Slot, Sequence[_Record]]]()
            for start in range(0, source.nbytes, BATCH_RECORDS * self._record_bytes):
                if len(waiting) == _SLOTS:
                    self._pass_on(*waiting.popleft())
                waiting.append(self._seal_batch(out, source, start))
            while waiting:
                self._pass_on(*waiting.popleft())
            self._sent += 1

    def receive_into(self, target: bytearray | memoryview | DeviceTensor) -> None:
        """See ``Pipe.receive_into``; after an error all of the target's memory is zeroes."""
        if not isinstance(target, DeviceTensor):
            super().receive_into(target)
            return
        with self._turn(self._receive_lock):
            back = _used(self._back)
            deadline_s = time.monotonic() + self._timeout_s + target.nbytes / LEAST_RATE
            try:
                at = 0
                while at < target.nbytes:
                    at = self._open_batch(back, target, at, deadline_s)
                back.wait()
            except BaseException:
                back.settle()  # none may write any more
                with suppress(SealiftError):  # of a lost device nothing can be read
                    target.memory.scrub()
                raise
            self._received += 1

    def _meet(self, session: Session, context: bytes, undone: ExitStack) -> None:
        super()._meet(session, context, undone)
        undone.callback(self._leave_device)

    def _leave_device(self) -> None:
        out, self._out = self._out, None
        back, self._back = self._back, None
        for direction in (out, back):
            if direction is not None:
                direction.close()

    def _seal_batch(
        self, out: _Direction, source: DeviceTensor, start: int
    ) -> tuple[_Slot, Sequence[_Record]]:
        """Queue sealing a few records, and their way to the host."""
        slot, records, at = out.take(), list[_Record](), 0
        for _ in range(BATCH_RECORDS):
            nbytes = min(self._record_bytes, source.nbytes - start)
            if nbytes <= 0:
                break
            bound = self._bound(self._sent, start, source.nbytes)
            counters = self._sealer.spend(nbytes)
            to = source.offset + start
            records.append(out.place(counters, bound, at, to, nbytes))
            at += _padded(nbytes + TAG_BYTES)
            start += nbytes
        sealed = [
            out.engine.seal(key, source.memory, slot.sealed, places)
            for key, places in _by_key(records)
        ]
        there = slot.host[:at]
        slot.uses = [out.engine.download(slot.sealed, 0, there, after=sealed)]
        return slot, records

    def _pass_on(self, slot: _Slot, records: Sequence[_Record]) -> None:
        """Send a batch once it is on the host."""
        slot.wait()
        for _, place, sequence in records:
            record = place.sealed_in(slot.host)
            frame = self._carrier.reserve(len(record) + PREFIX_BYTES, self._timeout_s)
            PREFIX.pack_into(frame, 0, len(record), 0, sequence)
            _copy(frame[PREFIX_BYTES:], record)
            self._carrier.commit()

    def _open_batch(
        self, back: _Direction, target: DeviceTensor, start: int, deadline_s: float
    ) -> int:
        """Queue opening a few records; where in the message the next one begins."""
        slot, records, at = back.take(), list[_Record](), 0
        while len(records) < BATCH_RECORDS and start < target.nbytes:
            if time.monotonic() > deadline_s:  # each record came in time
                slow = "the peer sends a message in parts that are too small"
                raise PeerError(slow, code="peer-timeout")
            frame = self._carrier.borrow(self._timeout_s)
            nbytes = len(frame) - FRAME_EXTRA_BYTES
            if is_last(frame):
                self._open_last(frame)
                raise PeerError("the peer closed the pipe", code="session-closed")
            if not 0 < nbytes <= min(RECORD_BYTES, target.nbytes - start):
                raise wrong_length(len(frame), target.nbytes - start)
            bound = self._bound(self._received, start, target.nbytes)
            counters = self._opener.admit(bytes(frame[:PREFIX_BYTES]), nbytes)
            to = target.offset + start
            records.append(back.place(counters, bound, at, to, nbytes))
            _copy(records[-1].place.sealed_in(slot.host), frame[PREFIX_BYTES:])
            self._carrier.give_back()
            at += _padded(nbytes + TAG_BYTES)
            start += nbytes
        copied = back.engine.upload(slot.host[:at], slot.sealed)
        slot.uses = [copied]  # also if the next call raises
        slot.uses = [
            copied,
            *(
                back.engine.open(
                    key, slot.sealed, target.memory, places, after=[copied]
                )
                for key, places in _by_key(records)
            ),
        ]
        return start


def _used(direction: _Direction | None) -> _Direction:
    if direction is None:
        raise UsageError("this pipe has no device")
    return direction


def _by_key(records: Sequence[_Record]) -> list[tuple[DeviceKey, list[RecordPlace]]]:
    """Records of one call have one key; it changes once in 64 GiB."""
    groups = groupby(records, key=lambda record: id(record.key))
    found = [list(group) for _, group in groups]
    return [(group[0].key, [record.place for record in group]) for group in found]


def _copy(to: memoryview, origin: memoryview) -> None:
    """Copy bytes; where both can be written other threads go on meanwhile."""
    if origin.readonly:
        to[:] = origin
    else:
        ctypes.memmove(writable_address(to), writable_address(origin), len(origin))


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
