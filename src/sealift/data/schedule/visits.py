"""Which rows an accelerator is brought when, and in how much memory.

A job's plan is a flat list of groups; the visits of one group are worked on together.
A resource longer than the buffer is visited in slices of whole cells of its grid
(``Resource.require_cells``). Every row is visited once per epoch, and the plan is the
same on every machine: the accelerator makes it for itself, and takes no other visit.
Every visit that may be in the accelerator at one time has a buffer of its own, so the
free memory is divided by their number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from sealift.data.schedule.memory import free_memory_bytes
from sealift.errors import UnavailableError, UsageError
from sealift.release.agreement import Purpose, Resource, part_for

Order = Literal["round-robin", "by-size"]

_IN_ORDER: Final[Mapping[Purpose, int]] = {"prepare": 0, "train": 1, "heldout": 2}
MAX_VISITS: Final = 600_000  # whose digests a run's receipt has room for


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitTerms:
    """What of a job's settings decides its visits.

    Attributes:
        epochs: Rounds over all training rows.
        evaluate_every: Held-out rows are visited after every so many; 0 is at the end.
        prepare: Make one pass of sums before training.
        order: Whose slice is next.
        mixed: A group is a slice of every resource, and not one visit.
        buffers: Groups that are in the accelerator at one time.
        buffer_bytes: Largest cargo of one visit; 0 is what memory allows.
        share: (number, of how many): the part of every table's cells that is visited.
    """

    epochs: int
    evaluate_every: int
    prepare: bool
    order: Order
    mixed: bool
    buffers: int
    buffer_bytes: int
    share: tuple[int, int] = (0, 1)

    def passes(self) -> Iterator[tuple[Purpose, int]]:
        """What the rows are for, and in which epoch; always evaluated in the end."""
        if self.prepare:
            yield "prepare", 0
        every = self.evaluate_every
        for epoch in range(self.epochs):
            yield "train", epoch
            if epoch == self.epochs - 1 or (every > 0 and (epoch + 1) % every == 0):
                yield "heldout", epoch

    @property
    def passes_kept(self) -> int:
        """So many of these passes a job with more epochs has as well, at its beginning."""
        passes, every = len(list(self.passes())), self.evaluate_every
        at_end_alone = self.epochs > 0 and not (every and self.epochs % every == 0)
        return passes - at_end_alone


@dataclass(frozen=True, slots=True)
class Stop:
    """One planned visit."""

    epoch: int
    holder: str
    resource: str
    purpose: Purpose
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class VisitBatch:
    """Visits that are worked on together: one, unless cargo is mixed.

    Attributes:
        position: Its place in the plan, from 0.
        stops: Its visits; batches of mixed cargo are drawn across them.
    """

    position: int
    purpose: Purpose
    epoch: int
    stops: tuple[Stop, ...]


def plan_job(
    resources: Sequence[Resource], terms: VisitTerms, buffer_bytes: int
) -> tuple[VisitBatch, ...]:
    """Everything that a job visits, in order.

    Sums first if the job prepares, then each epoch's training rows, followed by the
    held-out rows where the epoch is evaluated. Held-out rows are never mixed: each
    resource's numbers are its own.

    Args:
        resources: Of the agreement.
        terms: Of the job.
        buffer_bytes: The buffer that was chosen.

    Raises:
        UsageError: ``buffer-too-small``: a cell does not fit it. ``plan-too-long``.
    """
    plan: list[VisitBatch] = []
    visits = 0
    for purpose, epoch in terms.passes():
        cargo = [each for each in resources if each.part == part_for(purpose)]
        groups: Iterable[tuple[Stop, ...]]
        if terms.mixed and purpose != "heldout":
            groups = mix_epoch(
                cargo,
                epoch=epoch,
                purpose=purpose,
                buffer_bytes=buffer_bytes,
                share=terms.share,
            )
        else:
            groups = zip(
                plan_epoch(
                    cargo,
                    epoch=epoch,
                    purpose=purpose,
                    order=terms.order,
                    buffer_bytes=buffer_bytes,
                    share=terms.share,
                )
            )
        for stops in groups:
            plan.append(VisitBatch(len(plan), purpose, epoch, stops))
            visits += len(stops)
        check_length(visits * terms.share[1])
    return tuple(plan)


def batches_of(
    plan: Sequence[VisitBatch], purpose: Purpose, epoch: int
) -> Sequence[VisitBatch]:
    """The batches of one pass, in a time that a longer job hardly changes."""
    wanted = (epoch, _IN_ORDER[purpose])
    first = bisect_left(plan, wanted, key=_place)
    return plan[first : bisect_right(plan, wanted, lo=first, key=_place)]


def _place(batch: VisitBatch) -> tuple[int, int]:
    """Where a batch stands in every plan: see ``VisitTerms.passes``."""
    return batch.epoch, _IN_ORDER[batch.purpose]


def check_length(visits: int) -> None:
    """Demand that the run's receipt can name every visit: before the first of them.

    Raises:
        UsageError: ``plan-too-long``.
    """
    if visits > MAX_VISITS:
        raise UsageError(
            f"the job plans more than {MAX_VISITS:,} visits", code="plan-too-long"
        )


def check_buffer(resources: Sequence[Resource], buffer_bytes: int) -> None:
    """Demand that a buffer holds a cell of every resource.

    Raises:
        UsageError: ``buffer-too-small``.
    """
    for each in resources:
        _cells_per_visit(each, buffer_bytes)


def plan_epoch(
    cargo: Sequence[Resource],
    *,
    epoch: int,
    purpose: Purpose,
    order: Order,
    buffer_bytes: int,
    share: tuple[int, int] = (0, 1),
) -> tuple[Stop, ...]:
    """The visits of one epoch, one at a time.

    Args:
        cargo: Resources that are to be visited.
        epoch: Number of the epoch, from 0.
        purpose: What the rows are for.
        order: ``round-robin``: one slice of each holder in turn, in the agreement's
            order. ``by-size``: each next slice from whoever has most rows left.
        buffer_bytes: The buffer that is offered.
        share: Which part of every resource.

    Raises:
        UsageError: if a cell does not fit the buffer.
    """
    queues = []
    for each in cargo:
        step = _cells_per_visit(each, buffer_bytes)
        first, end = _cells_of(each, share)
        edges = [*range(first, end, step), end]
        queues.append(list(_slices(each, epoch, purpose, edges)))
    merge = _in_turn if order == "round-robin" else _largest_first
    return tuple(merge(queues))


def mix_epoch(
    cargo: Sequence[Resource],
    *,
    epoch: int,
    purpose: Purpose,
    buffer_bytes: int,
    share: tuple[int, int] = (0, 1),
) -> tuple[tuple[Stop, ...], ...]:
    """The visits of one epoch, a slice of every resource at a time.

    Each resource is cut into equally many slices that differ by one cell at most, so
    that all of them last until the epoch's end.

    Raises:
        UsageError: if a cell does not fit the buffer.
    """
    ranges = [_cells_of(each, share) for each in cargo]
    steps = [_cells_per_visit(each, buffer_bytes) for each in cargo]
    pairs = zip(ranges, steps, strict=True)
    count = max((-(-(end - first) // step) for (first, end), step in pairs), default=0)
    queues = []
    for each, (first, end) in zip(cargo, ranges, strict=True):
        edges = [first + (end - first) * n // count for n in range(count + 1)]
        queues.append(list(_slices(each, epoch, purpose, edges)))
    return tuple(
        tuple(stop for queue in queues if (stop := queue[number]).rows)
        for number in range(count)
    )


def _cells_of(item: Resource, share: tuple[int, int]) -> tuple[int, int]:
    """The first cell of a share, and the one after its last."""
    number, shares = share
    return item.cells * number // shares, item.cells * (number + 1) // shares


def _cells_per_visit(item: Resource, buffer_bytes: int) -> int:
    """How many fit, also where the last one, which takes the rest, is among them."""
    rest = item.rows - item.cells * item.cell_rows
    cells = (buffer_bytes // item.row_bytes - rest) // item.cell_rows
    if cells < 1:
        raise UsageError(
            f"the largest cell of {item.name} does not fit into the buffer",
            why=f"it has {item.longest_cell_bytes:,} bytes, and the buffer has {buffer_bytes:,}",
            code="buffer-too-small",
        )
    return cells


def _slices(
    item: Resource, epoch: int, purpose: Purpose, edges: Sequence[int]
) -> Iterator[Stop]:
    """A stop between each two edges, which are numbers of cells; none has no rows."""
    for first, end in pairwise(map(item.edge, edges)):
        yield Stop(epoch, item.owner, item.name, purpose, first, end - first)


def _in_turn(queues: list[list[Stop]]) -> Iterator[Stop]:
    for round_number in range(max((len(queue) for queue in queues), default=0)):
        for queue in queues:
            if round_number < len(queue):
                yield queue[round_number]


def _largest_first(queues: list[list[Stop]]) -> Iterator[Stop]:
    left = [list(queue) for queue in queues]
    while any(left):
        # max keeps the first of equals, so ties go by the agreement's order.
        yield max(left, key=lambda queue: sum(stop.rows for stop in queue)).pop(0)


SHARE: Final = 0.5  # of the free memory; the rest is the model's and its batches'
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class BufferChoice:
    """Largest cargo of one visit, and why it is that long, in words."""

    buffer_bytes: int
    why: str


def choose_buffer(
    resources: Sequence[Resource], terms: VisitTerms, free_bytes: int
) -> BufferChoice:
    """The buffer of a job's visits.

    Args:
        resources: Of the agreement.
        terms: Of the job.
        free_bytes: Memory that this process may still allocate.

    Raises:
        UnavailableError: code ``buffer-too-large``, if not all buffers fit into memory,
            or not a single cell does.
    """
    training = sum(1 for each in resources if each.part == "train")
    visits = terms.buffers * (max(1, training) if terms.mixed else 1)
    wanted, free = terms.buffer_bytes, f"{say_bytes(free_bytes)} are free"
    if wanted:
        if wanted * visits > free_bytes:
            raise _too_large(wanted, visits, free)
        return BufferChoice(wanted, f"set by the job; {free}")
    longest = max(each.total_bytes for each in resources)
    share = int(free_bytes * SHARE) // visits
    cell = max(each.longest_cell_bytes for each in resources)
    if share < cell:
        raise _too_large(cell, visits, free)
    if longest <= share:
        return BufferChoice(longest, f"the largest resource; {free}")
    times = f", divided among {visits} visits" if visits > 1 else ""
    return BufferChoice(share, f"half of the memory{times}; {free}")


def plan_here(
    resources: Sequence[Resource], terms: VisitTerms
) -> tuple[VisitBatch, ...]:
    """A job's plan with the buffer that this machine has room for.

    Raises:
        UnavailableError: code ``buffer-too-large``.
    """
    chosen = choose_buffer(resources, terms, free_memory_bytes())
    return plan_job(resources, terms, chosen.buffer_bytes)


def say_bytes(count: int) -> str:
    """``67108864`` -> ``64.0 MiB``."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def _too_large(wanted: int, visits: int, free: str) -> UnavailableError:
    times = f"{visits} times " if visits > 1 else ""
    return UnavailableError(
        "the visits' buffers do not fit into the memory",
        why=f"{times}{say_bytes(wanted)} are needed, {free}",
        code="buffer-too-large",
    )
