"""In which order the accelerator visits whom, with which rows. Pure.

A resource longer than the buffer is visited in slices. Both orders visit every row of
every holder once per epoch, and both are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sealift.errors import UsageError
from sealift.release.agreement import Purpose, Resource, part_for

Order = Literal["round-robin", "by-size"]


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


def plan_epoch(
    cargo: Sequence[Cargo],
    *,
    epoch: int,
    purpose: Purpose,
    order: Order,
    buffer_bytes: int,
) -> tuple[Stop, ...]:
    """The visits of one epoch.

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


def plan_resources(
    resources: Sequence[Resource],
    *,
    epoch: int,
    purpose: Purpose,
    order: Order,
    buffer_bytes: int,
) -> tuple[Stop, ...]:
    """``plan_epoch`` for those resources of an agreement that serve the purpose."""
    cargo = [
        Cargo(each.owner, each.name, each.rows, each.row_bytes)
        for each in resources
        if each.part == part_for(purpose)
    ]
    return plan_epoch(
        cargo, epoch=epoch, purpose=purpose, order=order, buffer_bytes=buffer_bytes
    )


def _slices(
    item: Cargo, epoch: int, purpose: Purpose, buffer_bytes: int
) -> Iterator[Stop]:
    rows_per_visit = buffer_bytes // item.row_bytes
    if rows_per_visit < 1:
        raise UsageError(
            f"a row of {item.resource} has {item.row_bytes} bytes",
            why=f"the buffer has {buffer_bytes}",
            fix="Raise buffer_bytes in the job",
            code="buffer-too-small",
        )
    for first in range(0, item.rows, rows_per_visit):
        rows = min(rows_per_visit, item.rows - first)
        yield Stop(epoch, item.holder, item.resource, purpose, first, rows)


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
