"""The device's end of a link: opens each transfer into the device's memory.

Strict by default: nobody is shown a record before its tag verified, and nothing is said
to the sender before all did. When one fails, the memory is overwritten whole and the link
is dead; whatever else goes wrong before a verdict is reported as a failed one (rule M3).
Whoever works on records earlier holds them behind a gate (``verdict.py``).

How a device opens the units of a transfer: where they lie, or after copying them over.

On the host's stand-in a unit that the sender sealed is opened where it lies in the memory
that the two ends share; one that its owner sealed at home is copied first, since whoever
forwards it could change it meanwhile (rule H3). Other engines have memory of their own:
units are copied over and opened there, as many at once as have come, in one call of the
engine (``DeviceEngine.transfer``), which opens some while it copies others, and meanwhile
the next ones arrive: half of the ring at most, so that the sender can go on. Slots are the sender's again once they were
copied; what is in them is sealed. Verdicts are told in the order of the records, and a
batch with a record that fails tells none.
Of a record that was sealed at home, the tag that its crossing binds is checked in a
private copy, and that copy is what the device gets, not the one in the slot.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final, NamedTuple, Protocol

from sealift.channel.device.device import (
    Crossing,
    DeviceEngine,
    DeviceKey,
    DeviceMemory,
    Group,
    RecordPlace,
)
from sealift.channel.device.host import HostDevice, HostMemory
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
from sealift.channel.link.openers import HomeOpener, LinkOpener, ends_of
from sealift.channel.link.send import DEFAULT_TIMEOUT_S, VERDICT, VERDICT_MAGIC
from sealift.channel.record.layout import PREFIX_BYTES
from sealift.channel.record.record import Life, forked_stream
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError, RefusedError, UsageError

Sink = Callable[[int, int], None]
HomeKey = Callable[[bytes], SecretKey]


MAX_BATCH_RECORDS: Final = 16
MAX_GAP_BYTES: Final = (
    64 << 10
)  # between two units: copied along sooner than called for
BATCHES: Final = 2  # one is opened while the next one crosses

Range = tuple[int, int]
"""Start and length."""
Found = tuple[DeviceKey, RecordPlace]
AnyOpener = LinkOpener | HomeOpener


@dataclass(frozen=True, slots=True)
class Arriving:
    """A transfer that was announced, and where it goes."""

    announcement: TransferAnnouncement
    into: DeviceMemory
    offset: int
    sink: Callable[[int, int], None] | None

    def units(self) -> Iterator[tuple[int, int]]:
        """Start (in device memory) and length of every unit."""
        total, unit = self.announcement.total_bytes, self.announcement.unit_bytes
        for start in range(0, total, unit):
            yield self.offset + start, min(unit, total - start)

    def verified(self, start: int, length: int) -> None:
        """Tell whoever waits."""
        if self.sink is not None:
            self.sink(start, length)


def by_key(found: Sequence[Found]) -> list[Group]:
    """All that follow one another under one key go together."""
    groups = [list(group) for _, group in groupby(found, key=lambda each: id(each[0]))]
    return [(group[0][0], [place for _, place in group]) for group in groups]


class UnitOpening(Protocol):
    """One of the ways below; benchmarks have weaker ones."""

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open every unit of a transfer."""

    def close(self) -> None:
        """Give memory back."""


class OnHost:
    """Opened by the host's stand-in, each unit while the next one comes."""

    def __init__(self, transport: MemfdTransport, engine: HostDevice) -> None:
        self._transport = transport
        self._engine = engine
        self._shared = engine.adopt(transport.memory)
        self._private: HostMemory | None = None

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open every unit of a transfer."""
        if isinstance(opener, HomeOpener):
            self._copied_first(opener, arriving, timeout_s)
        else:
            self._in_place(opener, arriving, timeout_s)

    def close(self) -> None:
        """Scrub the private memory and give it back; the rest is the transport's."""
        if self._private is not None:
            self._private.close()

    def _in_place(
        self, opener: LinkOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        """Where it lies in the memory that the sender alone shares (rule H3)."""
        transport, engine, shared = self._transport, self._engine, self._shared
        memory, into, sink = transport.memory, arriving.into, arriving.sink
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            frame = memory[at : at + frame_bytes]
            key, place = opener.expect(frame, at + PREFIX_BYTES, start, length)
            engine.open(key, shared, into, (place,)).wait()
            transport.skip(1)
            if sink is not None:
                sink(start, length)

    def _copied_first(
        self, opener: HomeOpener, arriving: Arriving, timeout_s: float
    ) -> None:
        """In private memory: the sender is not who sealed it. Its slot is free then."""
        transport, engine = self._transport, self._engine
        if self._private is None:
            self._private = engine.allocate(transport.max_frame_bytes)
        private = self._private
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            engine.upload(transport.memory[at : at + frame_bytes], private).wait()
            transport.skip(1)
            ends = ends_of(private.view[:frame_bytes], length)
            key, place = opener.admit(ends, PREFIX_BYTES, start, length)
            engine.open(key, private, arriving.into, (place,)).wait()
            arriving.verified(start, length)


class _Batch(NamedTuple):
    """Units that cross together, and their verdict."""

    units: Sequence[Range]
    crossing: Crossing


class Staged:
    """Copied to staging memory on the device, and opened there.

    Args:
        transport: Units lie in its slots.
        engine: Has memory of its own.
    """

    def __init__(self, transport: MemfdTransport, engine: DeviceEngine) -> None:
        self._transport = transport
        self._engine = engine
        half = max(transport.incoming_slots // BATCHES, 1)
        self._records = min(half, MAX_BATCH_RECORDS)
        self._stride = transport.incoming_stride
        self._staging = engine.allocate(BATCHES * self._records * self._stride)
        try:
            self._unpin = engine.pin(transport.memory)
        except BaseException:
            self._staging.close()
            raise
        self._part = 0
        self._queued: deque[_Batch] = deque()

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Copy and open every unit. When this raises, nothing is queued any more."""
        units, left = arriving.units(), arriving.announcement.num_units
        try:
            while left:
                if len(self._queued) == BATCHES:
                    self._settle(arriving)
                frames = self._transport.arrived(min(self._records, left), timeout_s)
                next_units = list(islice(units, len(frames)))
                self._queue(opener, arriving.into, frames, next_units)
                left -= len(frames)
            while self._queued:
                self._settle(arriving)
        except BaseException:
            self._drain()
            raise

    def close(self) -> None:
        """Scrub the staging memory and give it back."""
        if self._unpin is not None:
            self._unpin()
        self._staging.close()

    def _queue(
        self,
        opener: AnyOpener,
        into: DeviceMemory,
        frames: Sequence[Range],
        units: Sequence[Range],
    ) -> None:
        memory, base = self._transport.memory, self._next_part()
        found = [
            self._next(opener, frame, base + number * self._stride, unit)
            for number, (frame, unit) in enumerate(zip(frames, units, strict=True))
        ]
        parts = [
            (memory[start + PREFIX_BYTES : end], base + first * self._stride)
            for first, start, end in spans(frames)
        ]
        crossing = self._engine.transfer(parts, self._staging, into, by_key(found))
        self._queued.append(_Batch(units, crossing))
        crossing.wait_copied()
        self._transport.skip(len(frames))

    def _next(self, opener: AnyOpener, frame: Range, to: int, unit: Range) -> Found:
        """Key and place of the next unit."""
        at, frame_bytes = frame
        lying = self._transport.memory[at : at + frame_bytes]
        if isinstance(opener, HomeOpener):
            return opener.admit(ends_of(lying, unit[1]), to, *unit)
        return opener.expect(lying, to, *unit)

    def _next_part(self) -> int:
        """Where a batch goes: not where the one before it is being opened."""
        part, self._part = self._part, (self._part + 1) % BATCHES
        return part * self._records * self._stride

    def _settle(self, arriving: Arriving) -> None:
        batch = self._queued[0]
        batch.crossing.wait()
        self._queued.popleft()
        for start, length in batch.units:
            arriving.verified(start, length)

    def _drain(self) -> None:
        """Nothing may be written any more once the caller overwrites the memory."""
        for batch in self._queued:
            with contextlib.suppress(Exception):
                batch.crossing.wait()
        self._queued.clear()


def spans(frames: Sequence[Range]) -> list[tuple[int, int, int]]:
    """What is copied at once: number of its first frame, where it starts and ends.

    Frames in neighbouring slots go together, with the heads and gaps between them; at
    the end of the ring, and where gaps are large, another copy begins.
    """
    found: list[tuple[int, int, int]] = []
    for number, (at, frame_bytes) in enumerate(frames):
        if found and 0 <= at - found[-1][2] <= MAX_GAP_BYTES:
            found[-1] = (*found[-1][:2], at + frame_bytes)
        else:
            found.append((number, at, at + frame_bytes))
    return found


class LinkReceiver:
    """Receives transfers on a device, in one mode.

    Args:
        transport: The memory file; owned from now on.
        keys: Base keys of both directions.
        engine: The device; not owned.
        mode: As the sender was told.
        home_key: Finds the owner's key for the header of a stream sealed at home.
        context: As the sender was told.
        timeout_s: How long the sender may take for one step.

    Raises:
        PolicyError: code ``link-version``, if the sender's is another one.
    """

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        engine: DeviceEngine,
        *,
        mode: LinkMode = DEFAULT_MODE,
        home_key: HomeKey | None = None,
        context: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._home_key = home_key
        self._timeout_s = timeout_s
        self._life = Life()
        self._number = 0
        self._home: HomeOpener | None = None
        context = link_context(mode, context)
        with ExitStack() as parts:  # each is closed, also where another one fails
            parts.callback(transport.close)
            self._answers = StreamSealer(
                keys.from_device, total_bytes=None, record_bytes=64, context=context
            )
            parts.callback(self._answers.close)
            # Before the other end's is looked at, so that both can tell versions apart.
            transport.send(encode_hello(self._answers.header_bytes))
            header = parse_hello(transport.receive(timeout_s))
            self._opener = LinkOpener(keys.to_device, header, engine, context=context)
            parts.callback(self._opener.close)
            self._opening: UnitOpening = (
                OnHost(transport, engine)
                if isinstance(engine, HostDevice)
                else Staged(transport, engine)
            )
            parts.callback(self._opening.close)
            parts.callback(self._close_home)
            self._parts = parts.pop_all()

    def receive(
        self, into: DeviceMemory, offset: int = 0, *, sink: Sink | None = None
    ) -> TransferAnnouncement:
        """Receive the next transfer into device memory; what was announced is there then.

        Args:
            into: Where to; overwritten whole if anything fails.
            offset: Where in it.
            sink: Told start and length of every range that verified, in order.

        Raises:
            AuthenticationError: if a record is not exactly the next one.
            PeerError: if the sender is gone.
            UsageError: code ``transfer-too-long``, if it does not fit; code
                ``forked-stream``, in a forked child, which would take it from its
                parent.
        """
        if self._transport.forked:
            raise forked_stream()
        try:
            with self._life:
                announcement = self._next()
                room = into.nbytes - offset
                if announcement.total_bytes > room:
                    raise UsageError(
                        f"a transfer of {announcement.total_bytes:,} bytes does "
                        f"not fit into {room:,} bytes",
                        code="transfer-too-long",
                    )
                self._open_all(Arriving(announcement, into, offset, sink))
                self._answer(announcement)
        except BaseException as error:
            try:
                into.scrub()
            finally:
                self.close()
            reported = _reported(error)
            if reported is error:
                raise
            raise reported from None
        return announcement

    def close(self) -> None:
        """Forget the keys, end the connection. Idempotent."""
        self._life.dead = True
        self._parts.close()

    def _close_home(self) -> None:
        if self._home is not None:
            self._home.close()

    def _next(self) -> TransferAnnouncement:
        frame = self._transport.receive(self._timeout_s)
        announcement = TransferAnnouncement.parse(self._opener.open_message(frame))
        if announcement.number != self._number:
            raise MalformedError(
                "the transfers came out of order", code="bad-announcement"
            )
        self._number += 1
        return announcement

    def _open_all(self, arriving: Arriving) -> None:
        live = arriving.announcement.kind is TransferKind.LIVE
        opener = self._opener if live else self._open_home(arriving.announcement)
        self._opening.open_all(opener, arriving, self._timeout_s)

    def _open_home(self, announcement: TransferAnnouncement) -> HomeOpener:
        if self._home_key is None:
            raise UsageError(
                "records came that were sealed before the link existed, and "
                "this device has no key for them",
                code="no-home-key",
            )
        home = self._home
        # Deriving keys takes as long as opening a record, and a stream comes in parts.
        if home is not None and home.header_bytes == announcement.header_bytes:
            home.begin(announcement)
            return home
        if home is not None:
            home.close()
            self._home = None
        key = self._home_key(announcement.header_bytes)
        self._home = HomeOpener(key, announcement, self._engine, self._opener)
        return self._home

    def _answer(self, announcement: TransferAnnouncement) -> None:
        answer = VERDICT.pack(VERDICT_MAGIC, announcement.number)
        self._transport.send(self._answers.seal_frame(answer))


def _reported(error: BaseException) -> BaseException:
    """What a caller is told: of bytes that are not exactly right, nothing but that.

    A sender that is gone, a device that failed and a caller's mistake are themselves.
    """
    wrong = isinstance(error, MalformedError | RefusedError)
    return AuthenticationError() if wrong else error
