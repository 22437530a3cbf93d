"""Transfers: sealed records cross to a GPU and are opened there, piece beside piece.

One crossing brings what kernels must know of all records (``plan.table_of``); then the
pieces of ``pieces.cut`` follow, each copied and opened on one of a few streams in turn, so
that one is opened while the next ones cross. The order of a stream is what chains a copy
and its opening: two calls a piece. Tags are computed and compared at the end, for all
records in one launch each, and so is the refusal: a record that is not genuine takes the
plaintext of the whole transfer with it, before the verdicts are sent back, in one copy.
If anything fails before that, what was opened is overwritten and nothing is told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle
from typing import Any, Final

from sealift.channel.cuda.batches import (
    CudaKey,
    CudaVerdicts,
    plain_ranges,
    prove_refused,
    refusal,
)
from sealift.channel.cuda.core import Core
from sealift.channel.cuda.driver import Argument, Call, CudaError, Grid
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.pieces import Piece, Range, Segmented, cut, piece_bytes
from sealift.channel.cuda.plan import (
    FIRST_ITEM,
    RECORD_BYTES,
    Launch,
    shape_of,
    table_of,
    to_arguments,
)
from sealift.channel.cuda.staging import Table, writable_address
from sealift.channel.cuda.streams import HoldsUp, Point, Ticket, on_device
from sealift.channel.device.device import Event, RecordPlace
from sealift.errors import UnavailableError

_LEAST: Final = 8
"""A piece is at least this part of a slot."""

Ready = tuple[Any, Grid, tuple[Argument, ...]]
"""A kernel with its grid and arguments."""


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
    def written(self) -> tuple[int, int]:
        """First and last byte of the plaintexts."""
        ranges = plain_ranges(self.places)
        return min(start for start, _ in ranges), max(end for _, end in ranges)

    def require_open(self) -> None:
        """Asked under the engine's lock, after which another thread's close waits."""
        for memory in (self.sealed, self.plain):
            memory.require_open()
        for key, _ in self.groups:
            key.require_open()


class _Kernels:
    """The kernels of a transfer, ready once its table is filled."""

    def __init__(self, core: Core, transfer: Transfer) -> None:
        least = max(core.copies.piece_bytes // _LEAST, 1)
        total = sum(host.nbytes for host, _ in transfer.parts)
        size = piece_bytes(total, core.copies.toll_s, least)
        self._core, self._transfer = core, transfer
        make, facts = core.kernels.pieces, core.driver.facts
        self._plans = [
            make(key.suite, shape_of(places), facts, size)
            for key, places in transfer.groups
        ]
        cutting = [
            Segmented(places, plan.segments, plan.segment_bytes)
            for (_, places), plan in zip(transfer.groups, self._plans, strict=True)
        ]
        self.pieces = cut(cutting, transfer.ranges, size, least)
        self.num_pieces = 0
        self._places: list[dict[str, int]] = []
        self._opening: list[tuple[Any, tuple[Argument, ...]]] = []

    def fill(self, table: Table) -> None:
        """Write the table, and learn where everything lies."""
        core, transfer, self.table = self._core, self._transfer, table
        places = transfer.places
        table.fill(table_of(places), len(places))
        room = table.scratch.of(sum(plan.scratch_bytes for plan in self._plans))
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
            self._ready(launch, places)
            for plan, places in zip(self._plans, self._places, strict=True)
            for launch in plan.before
        ]

    def of(self, piece: Piece) -> Iterator[Ready]:
        """What opens a piece."""
        for group, first, end in piece.items:
            plan, (kernel, arguments) = self._plans[group], self._opening[group]
            grid = Grid(plan.blocks(first, end), plan.opening.grid.threads)
            yield kernel, grid, _from_item(arguments, first)

    def after(self) -> list[Ready]:
        """What judges all records, and refuses all if one is not genuine."""
        found = [
            self._ready(launch, places)
            for plan, places in zip(self._plans, self._places, strict=True)
            for launch in plan.after
        ]
        last = refusal(len(self._transfer.places))
        return [*found, self._ready(last, self._places[0])]

    def _ready(self, launch: Launch, places: dict[str, int]) -> Ready:
        kernel = self._core.kernel(launch.kernel)
        return kernel, launch.grid, to_arguments(launch, places)


def _from_item(arguments: tuple[Argument, ...], first: int) -> tuple[Argument, ...]:
    before, after = arguments[:FIRST_ITEM], arguments[FIRST_ITEM + 1 :]
    return (*before, ctypes.c_uint32(first), *after)


def open_straight(
    core: Core, transfer: Transfer, after: Sequence[Event]
) -> CudaVerdicts:
    """Queue a transfer from pinned memory, whose copies go on by themselves."""
    first = on_device(after)
    kernels = _Kernels(core, transfer)
    with core.lock:
        transfer.require_open()
        table, flows = core.tables.take(), core.flows.all()
        try:
            for point in _before(transfer, first):
                for stream, _ in flows:
                    point.hold_up(core.driver, stream)
            calls = _calls(core, transfer, kernels, table, flows)
            core.driver.issue(calls)
            last = flows[(kernels.num_pieces - 1) % len(flows)][0]
            table.fetch_verdicts(last)
            ticket = core.ticket(last)
        except BaseException:
            _abandon(core, transfer)
            raise
        core.flows.turn(kernels.num_pieces)
        for each in transfer.ranges:
            transfer.sealed.hazards.writes(*each, ticket)
        return _verdicts(core, transfer, table, ticket, ticket)


def open_staged(
    core: Core,
    transfer: Transfer,
    after: Sequence[Event],
    upload: Callable[[memoryview, CudaMemory, int], Point],
) -> CudaVerdicts:
    """Queue a transfer whose copies are made as ``upload`` makes them."""
    first = on_device(after)
    kernels = _Kernels(core, transfer)
    with core.lock:
        transfer.require_open()
        table = core.tables.take()
        try:
            kernels.fill(table)
            ticket = _submit_all(core, transfer, kernels, first, upload)
            answer = core.answers.submit(table.fetch_verdicts, after=[ticket])
        except BaseException:
            core.quiesce()
            _abandon(core, transfer)
            raise
        for each in transfer.ranges:
            transfer.sealed.hazards.reads(*each, ticket)
        return _verdicts(core, transfer, table, ticket, answer)


def _before(transfer: Transfer, first: Sequence[Point]) -> list[HoldsUp]:
    """What must be past before anything is written."""
    written = transfer.plain.hazards.before_write(*transfer.written)
    hazards = transfer.sealed.hazards
    crossing = [p for each in transfer.ranges for p in hazards.before_write(*each)]
    return [*first, *written, *crossing]


def _calls(
    core: Core,
    transfer: Transfer,
    kernels: _Kernels,
    table: Table,
    flows: Sequence[tuple[Any, Any]],
) -> Iterator[Call]:
    """All calls of a transfer but the last; the table is written behind the first."""
    driver, to = core.driver, transfer.sealed.address
    origins = _origins(transfer)
    last = None
    for number, (piece, (stream, _)) in enumerate(
        zip(kernels.pieces, cycle(flows), strict=False)
    ):
        start, end, _ = piece
        origin = next(o for o, behind in origins if end <= behind)
        yield driver.copy_call(to + start, origin + start, end - start, stream)
        if number == 0:
            kernels.fill(table)
            table.send(stream)
            for ready in kernels.before():
                yield driver.launch_call(*ready, stream)
            yield driver.record_call(flows[0][1], stream)
        elif number < len(flows):
            yield driver.wait_call(stream, flows[0][1])
        for ready in kernels.of(piece):
            yield driver.launch_call(*ready, stream)
        last, kernels.num_pieces = stream, number + 1
    for stream, mark in flows[: kernels.num_pieces]:
        if stream is not last:
            yield driver.record_call(mark, stream)
            yield driver.wait_call(last, mark)
    for ready in kernels.after():
        yield driver.launch_call(*ready, last)


def _origins(transfer: Transfer) -> list[tuple[int, int]]:
    """Of each part, the host's address of the sealed memory's byte 0, and its end."""
    return [
        (writable_address(host) - start, start + host.nbytes)
        for host, start in transfer.parts
    ]


def _submit_all(
    core: Core,
    transfer: Transfer,
    kernels: _Kernels,
    first: Sequence[Point],
    upload: Callable[[memoryview, CudaMemory, int], Point],
) -> Ticket:
    """Each step waits for the one before, so that one that fails fails the last."""

    def begin(stream: Any) -> None:
        kernels.table.send(stream)
        _launch(core, kernels.before(), stream)

    former = core.crypto.submit(begin, after=_before(transfer, first))
    for piece in kernels.pieces:
        host, at = next(p for p in transfer.parts if piece.end <= p[1] + p[0].nbytes)
        part = host[piece.start - at : piece.end - at]
        copied = upload(part, transfer.sealed, piece.start)
        step = partial(_launch, core, list(kernels.of(piece)))
        former = core.crypto.submit(step, after=[former, copied])
    return core.crypto.submit(partial(_launch, core, kernels.after()), after=[former])


def _launch(core: Core, kernels: Sequence[Ready], stream: Any) -> None:
    for kernel, grid, arguments in kernels:
        core.driver.launch(kernel, grid, arguments, stream)


def _verdicts(
    core: Core, transfer: Transfer, table: Table, ticket: Ticket, answer: Ticket
) -> CudaVerdicts:
    transfer.plain.hazards.writes(*transfer.written, ticket)
    for key, _ in transfer.groups:
        key.memory.hazards.reads(0, key.memory.nbytes, ticket)

    def refuse() -> None:  # and the host's bytes live as long as they are copied
        prove_refused(core, transfer.plain, transfer.places, ticket)

    verdicts = CudaVerdicts(answer, table.verdicts, refuse)
    table.settle = verdicts.collect
    return verdicts


def _abandon(core: Core, transfer: Transfer) -> None:
    """Nothing of it is under way any more, and nothing of it is left.

    Raises:
        IntegrityError: if plaintext could not be removed from a GPU that works.
    """
    with suppress(CudaError, UnavailableError):  # a lost GPU has lost all of it
        core.flows.finish()
        core.scrub_ranges(transfer.plain, plain_ranges(transfer.places))
