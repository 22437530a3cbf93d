"""Open and seal batches of records: what is queued, and what a refusal leaves.

One step of the crypto lane is one batch: the table crosses, kernels run, and if a tag of
the batch is wrong, a last kernel zeroes the plaintext of all of it before anything that
was queued later can read it. The host then reads the zeroes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.core import Core
from sealift.channel.cuda.devicekey import CudaKey
from sealift.channel.cuda.driver import Grid
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.plan import Launch, Plan, Word32
from sealift.channel.cuda.streams import Awaited, HoldsUp, Ticket, on_device
from sealift.channel.cuda.tables import (
    CudaVerdicts,
    Table,
    plain_hull,
    sealed_hull,
    shape_of,
    table_of,
)
from sealift.channel.device.device import RecordPlace
from sealift.errors import SealiftError

_THREADS: Final = 128
_MOST_BLOCKS: Final = 512  # each reads all verdicts


@dataclass(frozen=True, slots=True)
class Batch:
    """Records, the key for them, and the memories they lie in."""

    key: CudaKey
    sealed: CudaMemory
    plain: CudaMemory
    places: Sequence[RecordPlace]

    def uses(self, *, opens: bool) -> tuple[_Use, _Use]:
        """What is read, and what is written."""
        sealed = _Use(self.sealed, *sealed_hull(self.places))
        plain = _Use(self.plain, *plain_hull(self.places))
        return (sealed, plain) if opens else (plain, sealed)

    def require_open(self) -> None:
        """Asked under the engine's lock, after which another thread's close waits."""
        self.key.require_open()
        self.sealed.require_open()
        self.plain.require_open()


@dataclass(frozen=True, slots=True)
class _Use:
    memory: CudaMemory
    start: int
    end: int

    def before_read(self) -> list[Any]:
        return self.memory.hazards.before_read(self.start, self.end)

    def before_write(self) -> list[Any]:
        return self.memory.hazards.before_write(self.start, self.end)


@dataclass(frozen=True, slots=True)
class _SealUser:
    """A table is free again when its batch is sealed."""

    ticket: Ticket

    def collect(self) -> None:
        self.ticket.wait()


def open_batch(core: Core, batch: Batch, after: Sequence[Awaited]) -> CudaVerdicts:
    """Queue a batch to open."""
    first = on_device(after)
    if not batch.places:
        return CudaVerdicts(core.crypto.submit(_nothing, after=first), bytes, _nothing)
    shape = shape_of(batch.places)
    plan = core.kernels.open(batch.key.suite, shape, core.driver.facts)
    both = Plan((*plan.launches, refusal(shape.num_records)), plan.scratch_bytes)
    with core.lock:
        table = core.tables.take()
        ticket = _submit(core, batch, table, both, first, opens=True)
        verdicts = CudaVerdicts(
            core.answers.submit(table.fetch_verdicts, after=[ticket]),
            table.verdicts,
            lambda: _prove_refused(core, batch, ticket),
        )
        table.user = verdicts
    return verdicts


def seal_batch(core: Core, batch: Batch, after: Sequence[Awaited]) -> Ticket:
    """Queue a batch to seal."""
    first = on_device(after)
    if not batch.places:
        return core.crypto.submit(_nothing, after=first)
    shape = shape_of(batch.places)
    plan = core.kernels.seal(batch.key.suite, shape, core.driver.facts)
    with core.lock:
        table = core.tables.take()
        ticket = _submit(core, batch, table, plan, first, opens=False)
        table.user = _SealUser(ticket)
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
    batch: Batch,
    table: Table,
    plan: Plan,
    after: Sequence[HoldsUp],
    *,
    opens: bool,
) -> Ticket:
    batch.require_open()
    table.fill(table_of(batch.places), len(batch.places))
    read, written = batch.uses(opens=opens)
    waits = [*after, *read.before_read(), *written.before_write()]
    places = {
        **table.places(),
        "key": batch.key.memory.address,
        "sealed": batch.sealed.address,
        "plain": batch.plain.address,
    }

    def step(stream: Any) -> None:
        table.send(stream)
        core.run(plan, places, stream)

    ticket = core.crypto.submit(step, after=waits)
    read.memory.hazards.reads(read.start, read.end, ticket)
    written.memory.hazards.writes(written.start, written.end, ticket)
    batch.key.memory.hazards.reads(0, batch.key.memory.nbytes, ticket)
    return ticket


def _prove_refused(core: Core, batch: Batch, ticket: Ticket) -> None:
    """Read the zeroes back, and overwrite again what is not zero.

    What a later call has queued to write there since is not this batch's plaintext.
    """
    ranges = [
        (place.plain_offset, place.plain_offset + place.plaintext_bytes)
        for place in batch.places
    ]
    with core.lock:
        ours = [r for r in ranges if _last_writer_is(batch.plain, r, ticket)]
        if any(core.count_nonzero(batch.plain, *each) for each in ours):
            core.scrub_ranges(batch.plain, ours)


def _nothing(*_: Any) -> None:
    """A batch without records."""


def _last_writer_is(memory: CudaMemory, span: tuple[int, int], ticket: Ticket) -> bool:
    try:
        memory.require_open()
    except SealiftError:
        return False  # it was scrubbed when it was given back
    return memory.hazards.was_last_written_by(*span, ticket)
