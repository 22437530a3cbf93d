"""Batches by columns: one gather per field, no Python per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sealift.channel.device import Verdicts
from sealift.data.loader.batchmemory import BatchMemory
from sealift.data.loader.recipebatches import column_views
from sealift.data.schema.schema import Schema

Columns = Mapping[str, Tensor]


class Batch:
    """A batch that is being filled, from one window or at the seam of several.

    Args:
        columns: Of a window: per field, a view of its rows.
        fields: Which of them, in this order.
        rows: How many rows it will have.
        memory: Where it is, if columns are on the CPU.
        most_rows: Of any batch of this loader.
    """

    def __init__(
        self,
        columns: Columns,
        fields: Sequence[str],
        rows: int,
        memory: BatchMemory,
        most_rows: int,
    ) -> None:
        self.rows = rows
        self.filled = 0
        self._fields = fields
        self.verdicts: list[Verdicts] = []  # of the windows it was filled from
        self.tensors = [
            _empty(columns[name], rows, memory, most_rows) for name in fields
        ]

    @property
    def missing(self) -> int:
        """Rows that are not filled yet."""
        return self.rows - self.filled

    def scrub(self) -> None:
        """Overwrite it: nobody will have it."""
        for tensor in self.tensors:
            tensor.zero_()

    def fill(
        self, columns: Columns, places: Tensor, verdicts: Verdicts | None = None
    ) -> None:
        """Copy the rows at ``places`` (``int64``) behind those that are there.

        ``verdicts``: what is still out about them.
        """
        if verdicts is not None:
            self.verdicts.append(verdicts)
        end = self.filled + len(places)
        for name, out in zip(self._fields, self.tensors, strict=True):
            column = columns[name]
            here = places.to(column.device)
            torch.index_select(column, 0, here, out=out[self.filled : end])
        self.filled = end


def columns_of(rows: Tensor, schema: Schema) -> Columns:
    """Views of every field.

    Args:
        rows: ``uint8`` of shape ``(rows, row_bytes)``.
        schema: What a row is.
    """
    return column_views(rows, schema)


def _empty(column: Tensor, rows: int, memory: BatchMemory, most_rows: int) -> Tensor:
    shape = (rows, *column.shape[1:])
    if column.device.type == "cpu":
        return memory.empty(shape, column.dtype, most_rows=most_rows)
    return torch.empty(shape, dtype=column.dtype, device=column.device)
