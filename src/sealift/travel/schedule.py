"""In which order the accelerator visits whom, with which rows. Pure.

A job's plan is a flat list of groups; the visits of one group are worked on together.
A resource longer than the buffer is visited in slices, and is cut in the same way
whenever it is read, so that no two ranges of it overlap without being equal. Every
row is visited once per epoch, and the plan is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sealift.errors import UsageError
from sealift.release.agreement import Purpose, Resource, part_for
from sealift.travel.settings import Order, TravelSettings


@dataclass(frozen=True, slots=True)
class Cargo:
    """A resource that is to be visited.

    Attributes:
        holder: Who holds it.
        resource: Its name in the agreement.
        rows: Rows of the whole resource.
        row_bytes: Bytes of one row.
    """

    holder: str
    resource: str
    rows: int
    row_bytes: int


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
class Group:
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
    resources: Sequence[Resource], settings: TravelSettings
) -> tuple[Group, ...]:
    """Everything that a job visits, in order.

    Sums first if the job prepares, then each epoch's training rows, followed by the
    held-out rows where the epoch is evaluated. Held-out rows are never mixed: each
    resource's numbers are its own.

    Raises:
        UsageError: if one row does not fit the buffer.
    """
    plan = [
        (purpose, epoch, stops)
        for purpose, epoch in _passes(settings)
        for stops in _pass(resources, settings, purpose, epoch)
    ]
    return tuple(Group(position, *each) for position, each in enumerate(plan))


def count_stops(plan: Sequence[Group]) -> int:
    """Visits that a plan asks for."""
    return sum(len(group.stops) for group in plan)


def group_size(resources: Sequence[Resource], *, mixed: bool) -> int:
    """Most visits of one group."""
    training = sum(1 for each in resources if each.part == "train")
    return max(1, training) if mixed else 1


def plan_epoch(
    cargo: Sequence[Cargo],
    *,
    epoch: int,
    purpose: Purpose,
    order: Order,
    buffer_bytes: int,
) -> tuple[Stop, ...]:
    """The visits of one epoch, one at a time.

    Args:
        cargo: One entry per resource.
        epoch: Number of the epoch, from 0.
        purpose: What the rows are for.
        order: ``round-robin``: one slice of each holder in turn, in the agreement's
            order. ``by-size``: each next slice from whoever has most rows left.
        buffer_bytes: The buffer that is offered.

    Raises:
        UsageError: if one row does not fit the buffer.
    """
    queues = [list(_slices(item, epoch, purpose, buffer_bytes)) for item in cargo]
    merge = _in_turn if order == "round-robin" else _largest_first
    return tuple(merge(queues))


def mix_epoch(
    cargo: Sequence[Cargo], *, epoch: int, purpose: Purpose, buffer_bytes: int
) -> tuple[tuple[Stop, ...], ...]:
    """The visits of one epoch, a slice of every resource at a time.

    Each resource is cut into equally many slices that differ by one row at most, so
    that all of them last until the epoch's end.

    Raises:
        UsageError: if one row does not fit the buffer.
    """
    count = max(
        (-(-c.rows // _rows_per_visit(c, buffer_bytes)) for c in cargo), default=0
    )
    queues = [list(_even_slices(item, epoch, purpose, count)) for item in cargo]
    return tuple(
        tuple(stop for queue in queues if (stop := queue[number]).rows)
        for number in range(count)
    )


def _passes(settings: TravelSettings) -> Iterator[tuple[Purpose, int]]:
    if settings.prepare:
        yield "prepare", 0
    for epoch in range(settings.epochs):
        yield "train", epoch
        if settings.evaluates(epoch):
            yield "heldout", epoch


def _pass(
    resources: Sequence[Resource],
    settings: TravelSettings,
    purpose: Purpose,
    epoch: int,
) -> tuple[tuple[Stop, ...], ...]:
    cargo = [
        Cargo(each.owner, each.name, each.rows, each.row_bytes)
        for each in resources
        if each.part == part_for(purpose)
    ]
    size = settings.buffer_bytes
    if settings.mixed and purpose != "heldout":
        return mix_epoch(cargo, epoch=epoch, purpose=purpose, buffer_bytes=size)
    stops = plan_epoch(
        cargo, epoch=epoch, purpose=purpose, order=settings.order, buffer_bytes=size
    )
    return tuple((stop,) for stop in stops)


def _rows_per_visit(item: Cargo, buffer_bytes: int) -> int:
    rows = buffer_bytes // item.row_bytes
    if rows < 1:
        raise UsageError(
            f"a row of {item.resource} has {item.row_bytes} bytes",
            why=f"the buffer has {buffer_bytes}",
            fix="Raise buffer_bytes in the job",
            code="buffer-too-small",
        )
    return rows


def _slices(
    item: Cargo, epoch: int, purpose: Purpose, buffer_bytes: int
) -> Iterator[Stop]:
    rows_per_visit = _rows_per_visit(item, buffer_bytes)
    for first in range(0, item.rows, rows_per_visit):
        rows = min(rows_per_visit, item.rows - first)
        yield Stop(epoch, item.holder, item.resource, purpose, first, rows)


def _even_slices(
    item: Cargo, epoch: int, purpose: Purpose, count: int
) -> Iterator[Stop]:
    edges = [item.rows * number // count for number in range(count + 1)]
    for first, end in pairwise(edges):
        yield Stop(epoch, item.holder, item.resource, purpose, first, end - first)


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
