"""Which batches an epoch has: of which rows, of how many, and of which fields.

All that is decided before a record is opened, and checked: what means nothing is
refused when a loader is made. No torch tensors, no workers, no memory here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from sealift.data.schedule.order import EpochOrder, Layout, OrderOptions
from sealift.data.schema.schema import Field, Schema
from sealift.errors import UsageError


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one rank.

    Attributes:
        schema: Of the rows.
        layout: Where they are.
        order: In which order this rank reads them.
        batch_size: Rows of a batch; the last one may be shorter.
        drop_last: Whether it is left out then.
        fields: Those of a batch, in its order; all of them, and by name, if None.

    Raises:
        UsageError: for a size of nothing, a field that there is not, or more ranks than
            rows.
    """

    schema: Schema
    layout: Layout
    order: OrderOptions
    batch_size: int
    drop_last: bool
    fields: Sequence[str] | None

    def __post_init__(self) -> None:
        demand_count(self.batch_size, "a batch has at least one row", least=1)
        demand_count(self.rows, "an epoch has rows")  # more ranks than rows: refused
        if isinstance(self.fields, str):
            raise UsageError("fields= is a list of names", fix=f"Use [{self.fields!r}]")
        known = [field.name for field in self.schema.fields]
        for name in self.fields or ():
            if name not in known:
                raise UsageError(
                    f"the schema has no field {name!r}", fix=f"Use {', '.join(known)}"
                )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields of a batch, in its order."""
        every = tuple(field.name for field in self.schema.fields)
        return every if self.fields is None else tuple(self.fields)

    @property
    def chosen(self) -> list[Field]:
        """What the fields of a batch are."""
        every = {field.name: field for field in self.schema.fields}
        return [every[name] for name in self.names]

    @cached_property
    def rows(self) -> int:
        """Rows of an epoch, those of a last batch that is left out among them."""
        return EpochOrder(self.layout, self.order, 0).rows

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.rows, self.batch_size)
        return full + bool(rest and not self.drop_last)

    @property
    def end(self) -> int:
        """Where an epoch ends: without the last batch, if it is left out."""
        return self.rows - (self.rows % self.batch_size if self.drop_last else 0)

    @property
    def has_one_shape(self) -> bool:
        """Whether every batch has as many rows."""
        return self.drop_last or self.rows % self.batch_size == 0


def demand_count(number: object, what: str, *, least: int = 0) -> None:
    """Demand a whole number of at least ``least``.

    Raises:
        UsageError: which says ``what``.
    """
    if type(number) is not int or number < least:
        raise UsageError(what, fix=f"Use {least} or more")


def place_among_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process's rank, and how many there are; what is None, torch says."""
    distributed = torch.distributed
    here, ranks = 0, 1
    if distributed.is_available() and distributed.is_initialized():
        here, ranks = distributed.get_rank(), distributed.get_world_size()
    return here if rank is None else rank, ranks if world_size is None else world_size
