"""Rows that fit a schema and mean nothing: what ``sealift try`` runs a recipe on.

They come from the schema alone, so a code owner can test against an agreement without
seeing a row of anybody.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sealift.data.schema.schema import Field, Schema
from sealift.train.loop.streams import stream_seed

DEFAULT_SPAN = 3.0  # floats without bounds lie within +-3, as standardised values do


def synthetic_rows(schema: Schema, rows: int, *, seed: int) -> Tensor:
    """Random rows within the schema's bounds: ``uint8`` (rows, row_bytes)."""
    buffer = torch.zeros((rows, schema.row_bytes), dtype=torch.uint8)
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        generator = torch.Generator()
        generator.manual_seed(stream_seed(seed, "synthetic", field.name))
        column = _column(field, rows, generator).contiguous()
        raw = column.view(torch.uint8).reshape(rows, field.size_bytes)
        buffer[:, offset : offset + field.size_bytes] = raw
    return buffer


def _column(field: Field, rows: int, generator: torch.Generator) -> Tensor:
    shape = (rows, field.elements)
    dtype: torch.dtype = getattr(torch, field.dtype)
    low, high = field.bounds
    if field.element.kind == "float":
        least = -DEFAULT_SPAN if low is None else low
        most = max(DEFAULT_SPAN, least + 1) if high is None else high
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (least + uniform * (most - least)).to(dtype).clamp(least, most)
    if field.element.kind == "bool":
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    lowest = 0 if low is None else int(low)
    highest = min(127, int(field.element.highest)) if high is None else int(high)
    highest = max(lowest, highest)
    return torch.randint(lowest, highest + 1, shape, generator=generator).to(dtype)
