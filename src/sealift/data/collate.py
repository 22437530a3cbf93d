"""Batches by columns: one gather per field, no Python per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sealift.data.loader import column_views
from sealift.data.schema import Schema

Columns = Mapping[str, Tensor]


@dataclass(frozen=True)
class Segment:
    """Rows of one window that go into one batch.

    Attributes:
        columns: Per field, a view of the window's rows.
        places: Which of them, ``int64``.
    """

    columns: Columns
    places: Tensor

    def copied(self, fields: Sequence[str] | None) -> Segment:
        """The same rows in memory of their own."""
        names = tuple(self.columns) if fields is None else fields
        columns = {name: _gather(self.columns[name], self.places) for name in names}
        return Segment(columns, torch.arange(len(self.places)))


def join_segments(
    segments: Sequence[Segment], fields: Sequence[str] | None
) -> list[Tensor]:
    """One contiguous tensor per field, of all segments' rows in turn."""
    names = tuple(segments[0].columns) if fields is None else fields
    if len(segments) == 1:
        segment = segments[0]
        return [_gather(segment.columns[name], segment.places) for name in names]
    return [
        torch.cat([_gather(part.columns[name], part.places) for part in segments])
        for name in names
    ]


def columns_of(rows: Tensor, schema: Schema) -> Columns:
    """Views of every field.

    Args:
        rows: ``uint8`` of shape ``(rows, row_bytes)``.
        schema: What a row is.
    """
    return column_views(rows, schema)


def _gather(column: Tensor, places: Tensor) -> Tensor:
    return column.index_select(0, places.to(column.device))
