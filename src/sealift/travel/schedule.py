"""In which order the accelerator visits whom, with which rows. Pure.

A job's plan is a flat list of groups; the visits of one group are worked on together.
A resource longer than the buffer is visited in slices of whole cells of its grid
(``Resource.require_cells``). Every row is visited once per epoch, and the plan is the
same on every machine: the accelerator makes it for itself, and takes no other visit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sealift.errors import UsageError
from sealift.release.agreement import Purpose, Resource, part_for
from sealift.travel.settings import JobSettings, Order, TrainingSettings, TravelSettings


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
    resources: Sequence[Resource], settings: JobSettings, buffer_bytes: int
) -> tuple[Group, ...]:
    """Everything that a job visits, in order.

    Sums first if the job prepares, then each epoch's training rows, followed by the
    held-out rows where the epoch is evaluated. Held-out rows are never mixed: each
    resource's numbers are its own.

    Args:
        resources: Of the agreement.
        settings: Of the job.
        buffer_bytes: The buffer that was chosen.

    Raises:
        UsageError: if a cell does not fit the buffer.
    """
    plan = [
        (purpose, epoch, stops)
        for purpose, epoch in _passes(settings.training)
        for stops in _pass(resources, settings.travel, purpose, epoch, buffer_bytes)
    ]
    return tuple(Group(position, *each) for position, each in enumerate(plan))


def check_buffer(resources: Sequence[Resource], buffer_bytes: int) -> None:
    """Demand that a buffer holds a cell of every resource.

    Raises:
        UsageError: ``buffer-too-small``.
    """
    for each in resources:
        _cells_per_visit(each, buffer_bytes)


def count_stops(plan: Sequence[Group]) -> int:
    """Visits that a plan asks for."""
    return sum(len(group.stops) for group in plan)


def group_size(resources: Sequence[Resource], *, mixed: bool) -> int:
    """Most visits of one group."""
    training = sum(1 for each in resources if each.part == "train")
    return max(1, training) if mixed else 1


def plan_epoch(
    cargo: Sequence[Resource],
    *,
    epoch: int,
    purpose: Purpose,
    order: Order,
    buffer_bytes: int,
) -> tuple[Stop, ...]:
    """The visits of one epoch, one at a time.

    Args:
        cargo: Resources that are to be visited.
        epoch: Number of the epoch, from 0.
        purpose: What the rows are for.
        order: ``round-robin``: one slice of each holder in turn, in the agreement's
            order. ``by-size``: each next slice from whoever has most rows left.
        buffer_bytes: The buffer that is offered.

    Raises:
        UsageError: if a cell does not fit the buffer.
    """
    queues = []
    for each in cargo:
        step = _cells_per_visit(each, buffer_bytes)
        edges = [*range(0, each.cells, step), each.cells]
        queues.append(list(_slices(each, epoch, purpose, edges)))
    merge = _in_turn if order == "round-robin" else _largest_first
    return tuple(merge(queues))


def mix_epoch(
    cargo: Sequence[Resource], *, epoch: int, purpose: Purpose, buffer_bytes: int
) -> tuple[tuple[Stop, ...], ...]:
    """The visits of one epoch, a slice of every resource at a time.

    Each resource is cut into equally many slices that differ by one cell at most, so
    that all of them last until the epoch's end.

    Raises:
        UsageError: if a cell does not fit the buffer.
    """
    count = max(
        (-(-c.cells // _cells_per_visit(c, buffer_bytes)) for c in cargo), default=0
    )
    queues = []
    for each in cargo:
        edges = [each.cells * number // count for number in range(count + 1)]
        queues.append(list(_slices(each, epoch, purpose, edges)))
    return tuple(
        tuple(stop for queue in queues if (stop := queue[number]).rows)
        for number in range(count)
    )


def _passes(settings: TrainingSettings) -> Iterator[tuple[Purpose, int]]:
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
    size: int,
) -> tuple[tuple[Stop, ...], ...]:
    cargo = [each for each in resources if each.part == part_for(purpose)]
    if settings.mixed and purpose != "heldout":
        return mix_epoch(cargo, epoch=epoch, purpose=purpose, buffer_bytes=size)
    stops = plan_epoch(
        cargo, epoch=epoch, purpose=purpose, order=settings.order, buffer_bytes=size
    )
    return tuple((stop,) for stop in stops)


def _cells_per_visit(item: Resource, buffer_bytes: int) -> int:
    """How many fit, also where the last one, which takes the rest, is among them."""
    rest = item.rows - item.cells * item.cell_rows
    cells = (buffer_bytes // item.row_bytes - rest) // item.cell_rows
    if cells < 1:
        raise UsageError(
            f"a cell of {item.name} has {item.longest_cell_bytes} bytes",
            why=f"the buffer has {buffer_bytes}",
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
