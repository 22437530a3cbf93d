"""Sealed records cross to a GPU, and batches of them are opened and sealed there.

The first piece of ``cut`` is asked for before anything else is thought of. While it
crosses, the places of records are checked and what kernels must know of all of them is
written down (``plan.table_of``); that follows in one crossing, and then all other pieces.
Each is opened as soon as it is there. Tags are computed and compared at the end, for all records in one
launch, and so is the refusal: a record that is not genuine takes the plaintext of the
whole transfer with it, before the verdicts are sent back, in one copy. If anything fails
before that, what was opened is overwritten and nothing is told.

How a transfer is cut: what crosses at once, and what can be opened then. Pure values.

Each piece takes two thirds of what is left. What opens a piece then ends before the rest
has crossed, for a GPU opens more than twice what its bus brings; only the last piece is
opened while nothing crosses, and it is short. So a transfer of any length has few pieces,
and one more costs a crossing's toll: the shortest piece is what a GPU opens in that time.
In confidential mode, where crossings wait for one another, there are fewer and larger ones.
Pieces end anywhere; a segment of a record is opened with the piece that brings its end.

One step of the crypto lane is one batch: the table crosses, kernels run, and if a tag of
the batch is wrong, a last kernel zeroes the plaintext of all of it before anything that
was queued later can read it. The host then reads the zeroes back. The verdicts of a batch
are asked for once, and answered the same for ever.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from sealift.channel.cuda.core import Core, Ready
from sealift.channel.cuda.driver import Argument, Grid, PreparedCall
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.plan import (
    FIRST_ITEM,
    RECORD_BYTES,
    KernelPlan,
    Launch,
    Word32,
    shape_of,
    table_of,
    to_arguments,
)
from sealift.channel.cuda.staging import BatchTable, HostBlock, writable_address
from sealift.channel.cuda.streams import HoldsUp, Point, Ticket, on_device
from sealift.channel.device.device import (
    DeviceEvent,
    DeviceKey,
    RecordPlace,
    check_transfer,
)
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import KEY_BYTES, TOKEN, SecretKey
from sealift.errors import (
    AuthenticationError,
    SealiftError,
    UnavailableError,
    UsageError,
    require_value,
)

OPENED_BYTES_PER_S: Final = 150e9
"""What a GPU opens, roughly: it only decides how transfers are cut."""
LEAST_BYTES: Final = 1 << 20
"""Below that, opening is a matter of time for one segment, not of bytes."""

Range = tuple[int, int]
"""Start and end."""
Items = tuple[int, int, int]
"""Number of a group, its first item and the one behind its last (``plan.PiecePlan``)."""
SegmentIndex = tuple[int, int]
"""Number of a record, and of a segment of it."""


class PieceCopy(NamedTuple):
    """One copy.

    Attributes:
        part: Which range it is of.
        start: Its first byte.
        end: Behind its last.
    """

    part: int
    start: int
    end: int


class Segmented(NamedTuple):
    """Records of one key, and how they are cut into segments."""

    places: Sequence[RecordPlace]
    segments: int
    segment_bytes: int


def least_piece(toll_s: float) -> int:
    """The shortest piece.

    Args:
        toll_s: What one more crossing costs.
    """
    return max(LEAST_BYTES, int(toll_s * OPENED_BYTES_PER_S))


def cut(ranges: Sequence[Range], least: int) -> Iterator[list[PieceCopy]]:
    """Pieces that cover all ranges, each the copies that bring it; a range ends a copy."""
    left = sum(end - start for start, end in ranges)
    size, piece = _piece(left, least), list[PieceCopy]()
    for part, (start, end) in enumerate(ranges):
        at = start
        while at < end:
            nbytes = min(size, end - at)
            piece.append(PieceCopy(part, at, at + nbytes))
            at, left, size = at + nbytes, left - nbytes, size - nbytes
            if not size:
                yield piece
                size, piece = _piece(left, least), []


def _piece(left: int, least: int) -> int:
    size = max(left - left // 3, least)
    return left if left - size < least // 2 else size


class Arrived:
    """Which items are whole once so many bytes have crossed.

    Args:
        groups: Records in the order in which they cross.
    """

    def __init__(self, groups: Sequence[Segmented]) -> None:
        self._groups = groups
        self._places = [place for group in groups for place in group.places]
        self._starts = [place.sealed_offset for place in self._places]
        self._of = [group for group in groups for _ in group.places]
        self._behind: SegmentIndex = (0, 0)

    def until(self, byte: int) -> list[Items]:
        """Items that are whole when ``byte`` is reached, and were not told before."""
        begin, self._behind = self._behind, self._place(byte)
        found, base = [], 0
        for number, (places, segments, _) in enumerate(self._groups):
            total = len(places) * segments
            first, last = (
                min(max((record - base) * segments + segment, 0), total)
                for record, segment in (begin, self._behind)
            )
            if first < last:
                found.append((number, first, last))
            base += len(places)
        return found

    def _place(self, byte: int) -> SegmentIndex:
        """The first record and segment that is not whole."""
        number = bisect_right(self._starts, byte) - 1
        if number < 0:
            return 0, 0
        place = self._places[number]
        inside = byte - place.sealed_offset
        if inside >= place.plaintext_bytes + TAG_BYTES:
            return number + 1, 0
        whole = min(inside, place.plaintext_bytes) // self._of[number].segment_bytes
        return number, whole


@dataclass(frozen=True)
class Transfer:
    """Sealed bytes on the host, and the records in them.

    Attributes:
        parts: The bytes, and where each begins in ``sealed``.
        sealed: Where they go.
        plain: Where plaintexts go.
        groups: Records by their key, in the order of their places.
    """

    parts: Sequence[tuple[memoryview, int]]
    sealed: CudaMemory
    plain: CudaMemory
    groups: Sequence[tuple[CudaKey, Sequence[RecordPlace]]]

    @cached_property
    def ranges(self) -> list[Range]:
        """Start and end of each part, in the sealed memory."""
        return [(start, start + host.nbytes) for host, start in self.parts]

    @cached_property
    def places(self) -> list[RecordPlace]:
        """All records."""
        return [place for _, places in self.groups for place in places]

    @cached_property
    def written(self) -> Range:
        """First and last byte of the plaintexts."""
        ranges = _plain_ranges(self.places)
        return min(start for start, _ in ranges), max(end for _, end in ranges)

    def require_open(self) -> None:
        """Asked under the engine's lock, after which another thread's close waits."""
        for memory in (self.sealed, self.plain):
            memory.require_open()
        for key, _ in self.groups:
            key.require_open()

    def check(self) -> None:
        """Every record lies where it may; see ``check_transfer``."""
        check_transfer(self.parts, self.sealed, self.plain, self.groups)


class _Kernels:
    """The kernels of a transfer, over its table, which is written here."""

    def __init__(
        self, core: Core, transfer: Transfer, table: BatchTable, size: int
    ) -> None:
        facts, places = core.driver.facts, transfer.places
        self._core, self._num_records = core, len(places)
        self._plans = [
            core.kernels.pieces(key.suite, shape_of(group), facts, size)
            for key, group in transfer.groups
        ]
        self._arrived = Arrived(
            [
                Segmented(group, plan.segments, plan.segment_bytes)
                for (_, group), plan in zip(transfer.groups, self._plans, strict=True)
            ]
        )
        table.fill(table_of(places), len(places))
        room = core.scratch(sum(plan.scratch_bytes for plan in self._plans))
        self._places: list[dict[str, int]] = []
        self._opening: list[tuple[Any, tuple[Argument, ...]]] = []
        record = 0
        for (key, group), plan in zip(transfer.groups, self._plans, strict=True):
            found = table.places()
            found |= {
                "records": found["records"] + RECORD_BYTES * record,
                "verdicts": found["verdicts"] + record,
                "key": key.memory.address,
                "sealed": transfer.sealed.address,
                "plain": transfer.plain.address,
                "scratch": room,
            }
            self._places.append(found)
            kernel = core.kernel(plan.opening.kernel)
            self._opening.append((kernel, to_arguments(plan.opening, found)))
            record, room = record + len(group), room + plan.scratch_bytes

    def before(self) -> list[Ready]:
        """What runs once the table is there."""
        return [
            self._core.ready(launch, places)
            for plan, places in zip(self._plans, self._places, strict=True)
            for launch in plan.before
        ]

    def until(self, byte: int) -> list[Ready]:
        """What opens all that is whole when ``byte`` is reached, and was not before."""
        return [self._open(items) for items in self._arrived.until(byte)]

    def after(self) -> list[Ready]:
        """What judges all records, and refuses all if one is not genuine."""
        found = [
            self._core.ready(launch, places)
            for plan, places in zip(self._plans, self._places, strict=True)
            for launch in plan.after
        ]
        return [*found, self._core.ready(refusal(self._num_records), self._places[0])]

    def _open(self, items: Items) -> Ready:
        group, first, end = items
        plan, (kernel, arguments) = self._plans[group], self._opening[group]
        grid = Grid(plan.blocks(first, end), plan.opening.grid.threads)
        before, after = arguments[:FIRST_ITEM], arguments[FIRST_ITEM + 1 :]
        return kernel, grid, (*before, ctypes.c_uint32(first), *after)


class _Straight:
    """A transfer from pinned memory, whose copies go on by themselves.

    They are made on one stream, in order: two share the bus, so that both of two pieces
    come late, or one waits until all of the other have crossed. So the table is a copy
    among them, behind the first piece. Kernels run on the lane that all others use.
    """

    def __init__(self, core: Core, transfer: Transfer) -> None:
        self._core, self._transfer = core, transfer
        self._copying = core.up[0].lane.stream
        self._opening = core.crypto.stream
        self._pieces = cut(transfer.ranges, _least(core))
        self._origins = [
            writable_address(host) - start for host, start in transfer.parts
        ]
        self._marks: list[tuple[int, Any]] = []
        self.table: BatchTable | None = None

    def queue(self, first: Sequence[Point]) -> tuple[BatchTable, Ticket]:
        """Queue all of it; its table, and the point where its verdicts are there."""
        core, transfer = self._core, self._transfer
        hazards = transfer.sealed.hazards
        crossing = [p for each in transfer.ranges for p in hazards.before_write(*each)]
        try:
            for point in (*first, *crossing):
                point.hold_up(core.driver, self._copying)
            first_piece = next(self._pieces)
            core.driver.issue(self._copies(first_piece))
            transfer.check()
            self.table = table = core.tables.take()
            kernels = _Kernels(core, transfer, table, _least(core))
            for passed in transfer.plain.hazards.before_write(*transfer.written):
                passed.hold_up(core.driver, self._opening)
            ticket = core.ticket()
            core.driver.issue(self._others(first_piece, table))
            core.driver.issue(self._openings(kernels, table, ticket))
        finally:
            for _, mark in self._marks:  # whoever waits for it has been told already
                core.pool.give_back(mark)
        return table, ticket

    def _copies(self, piece: Sequence[PieceCopy]) -> Iterator[PreparedCall]:
        driver, to = self._core.driver, self._transfer.sealed.address
        for part, start, end in piece:
            origin, nbytes = self._origins[part] + start, end - start
            yield driver.copy_call(to + start, origin, nbytes, self._copying)

    def _others(
        self, first_piece: Sequence[PieceCopy], table: BatchTable
    ) -> Iterator[PreparedCall]:
        """The table, and all other pieces; an event behind it, and behind each."""
        yield table.send_call(self._copying)
        yield self._mark(first_piece)
        for piece in self._pieces:
            yield from self._copies(piece)
            yield self._mark(piece)

    def _mark(self, piece: Sequence[PieceCopy]) -> PreparedCall:
        mark = self._core.pool.take()
        self._marks.append((piece[-1].end, mark))
        return self._core.driver.record_call(mark, self._copying)

    def _openings(
        self, kernels: _Kernels, table: BatchTable, ticket: Ticket
    ) -> Iterator[PreparedCall]:
        driver, stream = self._core.driver, self._opening
        before = kernels.before()
        for end, mark in self._marks:
            yield driver.wait_call(stream, mark)
            for ready in (*before, *kernels.until(end)):
                yield driver.launch_call(*ready, stream)
            before = []
        for ready in kernels.after():
            yield driver.launch_call(*ready, stream)
        yield table.fetch_call(stream)
        yield ticket.arm_call(stream)


def open_straight(
    core: Core, transfer: Transfer, after: Sequence[DeviceEvent]
) -> CudaVerdicts:
    """Queue a transfer from pinned memory."""
    first = on_device(after)
    with core.lock:
        transfer.require_open()
        work = _Straight(core, transfer)
        try:
            table, ticket = work.queue(first)
        except BaseException:
            _abandon(core, transfer, opened=work.table is not None)
            raise
        for each in transfer.ranges:
            transfer.sealed.hazards.writes(*each, ticket)
        return _verdicts(core, transfer, table, ticket, ticket)


def open_staged(
    core: Core,
    transfer: Transfer,
    after: Sequence[DeviceEvent],
    upload: Callable[[memoryview, CudaMemory, int], Point],
) -> CudaVerdicts:
    """Queue a transfer whose copies are made as ``upload`` makes them."""
    transfer.check()
    first = on_device(after)
    with core.lock:
        transfer.require_open()
        table = core.tables.take()
        try:
            ticket = _submit_all(core, transfer, table, first, upload)
            answer = core.answers.submit(table.fetch_verdicts, after=[ticket])
        except BaseException:
            _abandon(core, transfer, opened=True)
            raise
        for each in transfer.ranges:
            transfer.sealed.hazards.reads(*each, ticket)
        return _verdicts(core, transfer, table, ticket, answer)


def _submit_all(
    core: Core,
    transfer: Transfer,
    table: BatchTable,
    first: Sequence[Point],
    upload: Callable[[memoryview, CudaMemory, int], Point],
) -> Ticket:
    """Each step waits for the one before, so that one that fails fails the last."""
    kernels = _Kernels(core, transfer, table, _least(core))

    def begin(stream: Any) -> None:
        table.send(stream)
        core.launch(kernels.before(), stream)

    waits: list[HoldsUp] = [*first]
    waits += transfer.plain.hazards.before_write(*transfer.written)
    former = core.crypto.submit(begin, after=waits)
    for piece in cut(transfer.ranges, _least(core)):
        copied = []
        for number, start, end in piece:
            host, at = transfer.parts[number]
            copied.append(upload(host[start - at : end - at], transfer.sealed, start))
        step = partial(core.launch, kernels.until(piece[-1].end))
        former = core.crypto.submit(step, after=[former, *copied])
    return core.crypto.submit(partial(core.launch, kernels.after()), after=[former])


def _least(core: Core) -> int:
    return least_piece(core.copies.toll_s)


def _verdicts(
    core: Core, transfer: Transfer, table: BatchTable, ticket: Ticket, answer: Ticket
) -> CudaVerdicts:
    transfer.plain.hazards.writes(*transfer.written, ticket)
    for key, _ in transfer.groups:
        key.memory.hazards.reads(0, key.memory.nbytes, ticket)

    def refuse() -> None:  # and the host's bytes live as long as they are copied
        _prove_refused(core, transfer.plain, transfer.places, ticket)

    verdicts = CudaVerdicts(answer, table.verdicts, refuse)
    table.settle = verdicts.collect
    return verdicts


def _abandon(core: Core, transfer: Transfer, *, opened: bool) -> None:
    """Nothing of it is under way any more, and nothing of it is left.

    Raises:
        IntegrityError: if plaintext could not be removed from a GPU that works.
    """
    core.quiesce()
    if opened:
        with suppress(UnavailableError):  # a lost GPU has lost all of it
            core.scrub_ranges(transfer.plain, _plain_ranges(transfer.places))


_THREADS: Final = 128
_MOST_BLOCKS: Final = 512  # each reads all verdicts
GENUINE: Final = 1
_Use = tuple[CudaMemory, tuple[int, int]]
"""A memory, and start and end of the range of it that a batch uses."""


class CudaKey:
    """Round keys, powers and whatever else the kernels make of a key.

    ``close`` overwrites it on the GPU and reads that back; so does the engine's own
    close, also when the process ends. On a GPU that was lost nothing can be shown.
    """

    def __init__(self, suite: Suite, memory: CudaMemory) -> None:
        self.suite = suite
        self.memory = memory
        self._closed = False

    def require_open(self) -> None:
        """Refuse after ``close``."""
        if self._closed:
            raise UsageError("this key was removed from the device", code="dead-key")

    def close(self) -> None:
        """Overwrite it after what is queued, and read that back. Idempotent.

        Raises:
            IntegrityError: if it is not zeroes then.
        """
        if not self._closed:
            self._closed = True
            self.memory.close()


def own_key(key: DeviceKey) -> CudaKey:
    """The key, if it is on a GPU."""
    if not isinstance(key, CudaKey):
        raise UsageError("this key is on another device")
    key.require_open()
    return key


def expand_key(core: Core, suite: Suite, key: SecretKey) -> CudaKey:
    """Put a key on the GPU.

    The 32 bytes cross the bus as they are: outside of confidential mode whoever reads
    the bus reads them. They are overwritten on the host and on the GPU at once.
    """
    if suite not in core.kernels.suites():
        raise UnavailableError(
            f"engine cuda does not support {suite.name}", code="no-such-suite"
        )
    if len(key) != KEY_BYTES:
        raise UsageError(f"an AEAD key must have {KEY_BYTES} bytes")
    expanded = core.allocate(core.kernels.key_bytes(suite))
    try:
        _expand(core, suite, key, expanded)
    except BaseException:
        expanded.close()
        raise
    return CudaKey(suite, expanded)


def _expand(core: Core, suite: Suite, key: SecretKey, expanded: CudaMemory) -> None:
    raw = core.allocate(KEY_BYTES)
    block = HostBlock(core.driver, KEY_BYTES, pinned=core.copies.pinned)
    try:
        block.view[:] = key.reveal(TOKEN)
        plan = core.kernels.expand(suite)
        places = {"raw_key": raw.address, "key": expanded.address}

        def put(stream: object) -> None:
            core.driver.copy_to_device(raw.address, block.address, KEY_BYTES, stream)
            core.run(plan, places, stream)

        core.crypto.submit(put).wait()
    finally:
        block.close()
        raw.close()


class CudaVerdicts:
    """See ``channel.device.device.Verdicts``.

    Args:
        ticket: Behind the way back of the verdicts.
        read: Reads them, one byte a record; called once.
        refuse: Makes sure that nothing is left of the plaintext of the batch, when a
            record was not genuine or nobody can say whether it is. Takes the engine's lock, so it is called under none;
            several threads may call it at once.
    """

    def __init__(
        self, ticket: DeviceEvent, read: Callable[[], bytes], refuse: Callable[[], None]
    ) -> None:
        self._ticket = ticket
        self._read = read
        self._refuse = refuse
        self._lock = threading.Lock()
        self._answer: bytes | None = None
        self._refused = False
        self._failed: SealiftError | None = None

    def wait_copied(self) -> None:
        """Return when the bytes on the host may change."""
        self._ticket.wait()

    def collect(self) -> bytes:
        """One byte a record, whatever they say; waits for them.

        Raises:
            UnavailableError: code ``device-lost``.
        """
        with self._lock:
            self._ask()
        if self._answer is None:
            raise require_value(self._failed)
        return self._answer

    def _ask(self) -> None:
        if self._answer is None and self._failed is None:
            try:
                self._ticket.wait()
                self._answer = self._read()
            except SealiftError as error:
                self._failed = error

    def wait(self) -> None:
        """Return when every tag verified (see ``channel.device.device.Verdicts``).

        Raises:
            AuthenticationError: if one did not; the plaintext of all is zeroes.
            IntegrityError: if the plaintext of a refused batch could not be removed.
            UnavailableError: if it is not known; a GPU that works has none of the
                plaintext then.
        """
        try:
            answer = self.collect()
        except UnavailableError:
            with suppress(UnavailableError):  # a lost GPU has lost the plaintext, too
                self._refuse()
            raise
        if answer == bytes([GENUINE]) * len(answer):
            return
        # Not under the lock: whoever takes this table back holds the engine's, which a
        # refusal wants, and waits for this one.
        if not self._refused:
            self._refuse()
            self._refused = True
        raise AuthenticationError


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records, the key for them, and the memories they lie in."""

    key: CudaKey
    sealed: CudaMemory
    plain: CudaMemory
    places: Sequence[RecordPlace]

    def uses(self, *, opens: bool) -> tuple[_Use, _Use]:
        """What is read, and what is written."""
        spans = [(p.sealed_offset, p.plaintext_bytes + TAG_BYTES) for p in self.places]
        sealed = (self.sealed, _hull(spans))
        spans = [(p.plain_offset, p.plaintext_bytes) for p in self.places]
        plain = (self.plain, _hull(spans))
        return (sealed, plain) if opens else (plain, sealed)

    def require_open(self) -> None:
        """Asked under the engine's lock, after which another thread's close waits."""
        self.key.require_open()
        self.sealed.require_open()
        self.plain.require_open()


def _hull(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First and last byte of ranges (start, length)."""
    return min(start for start, _ in spans), max(sum(span) for span in spans)


def open_batch(
    core: Core, batch: RecordBatch, after: Sequence[DeviceEvent]
) -> CudaVerdicts:
    """Queue a batch to open."""
    first = on_device(after)
    if not batch.places:
        return CudaVerdicts(core.crypto.submit(nothing, after=first), bytes, nothing)
    shape = shape_of(batch.places)
    plan = core.kernels.open(batch.key.suite, shape, core.driver.facts)
    both = KernelPlan((*plan.launches, refusal(shape.num_records)), plan.scratch_bytes)
    with core.lock:
        table = core.tables.take()
        ticket = _submit(core, batch, table, both, first, opens=True)
        answer = ticket
        if core.copies.threads:  # there a copy back keeps its lane waiting
            answer = core.answers.submit(table.fetch_verdicts, after=[ticket])
        verdicts = CudaVerdicts(
            answer,
            table.verdicts,
            lambda: _prove_refused(core, batch.plain, batch.places, ticket),
        )
        table.settle = verdicts.collect
    return verdicts


def seal_batch(core: Core, batch: RecordBatch, after: Sequence[DeviceEvent]) -> Ticket:
    """Queue a batch to seal."""
    first = on_device(after)
    if not batch.places:
        return core.crypto.submit(nothing, after=first)
    shape = shape_of(batch.places)
    plan = core.kernels.seal(batch.key.suite, shape, core.driver.facts)
    with core.lock:
        table = core.tables.take()
        ticket = _submit(core, batch, table, plan, first, opens=False)
        table.settle = ticket.wait
    return ticket


def refusal(num_records: int) -> Launch:
    """Zero the plaintext of the whole batch if a record of it was refused."""
    return Launch(
        "sealift_refuse_batch",
        Grid(min(num_records, _MOST_BLOCKS), _THREADS),
        ("records", Word32(num_records), "verdicts", "plain"),
    )


def _submit(
    core: Core,
    batch: RecordBatch,
    table: BatchTable,
    plan: KernelPlan,
    after: Sequence[HoldsUp],
    *,
    opens: bool,
) -> Ticket:
    batch.require_open()
    table.fill(table_of(batch.places), len(batch.places))
    (read, being_read), (written, being_written) = batch.uses(opens=opens)
    waits: list[HoldsUp] = [*after, *read.hazards.before_read(*being_read)]
    waits += written.hazards.before_write(*being_written)
    places = {
        **table.places(),
        "key": batch.key.memory.address,
        "sealed": batch.sealed.address,
        "plain": batch.plain.address,
    }

    def step(stream: Any) -> None:
        table.send(stream)
        core.run(plan, places, stream)
        if opens and not core.copies.threads:
            table.fetch_verdicts(stream)

    ticket = core.crypto.submit(step, after=waits)
    read.hazards.reads(*being_read, ticket)
    written.hazards.writes(*being_written, ticket)
    batch.key.memory.hazards.reads(0, batch.key.memory.nbytes, ticket)
    return ticket


def _prove_refused(
    core: Core, plain: CudaMemory, places: Sequence[RecordPlace], ticket: Ticket
) -> None:
    """Read the zeroes back, and overwrite again what is not zero.

    What a later call has queued to write there since is not this batch's plaintext.
    """
    ranges = _plain_ranges(places)
    with core.lock:
        ours = [r for r in ranges if _last_writer_is(plain, r, ticket)]
        if any(core.count_nonzero(plain, *each) for each in ours):
            core.scrub_ranges(plain, ours)


def _plain_ranges(places: Sequence[RecordPlace]) -> list[tuple[int, int]]:
    """Start and end of each record's plaintext."""
    return [(p.plain_offset, p.plain_offset + p.plaintext_bytes) for p in places]


def nothing(*_: Any) -> None:
    """A call without records."""


def _last_writer_is(memory: CudaMemory, span: tuple[int, int], ticket: Ticket) -> bool:
    try:
        memory.require_open()
    except SealiftError:
        return False  # it was scrubbed when it was given back
    return memory.hazards.was_last_written_by(*span, ticket)
