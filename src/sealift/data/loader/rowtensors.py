"""Rows in a buffer to tensors, in an order that a seed decides.

Guarantee: the order depends on (seed, epoch, scope) and torch's version alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sealift.crypto.hash import labelled
from sealift.data.schema.schema import ALIGNMENT_BYTES, Field, Schema
from sealift.errors import UsageError


def batch_from_rows(buffer: Tensor, schema: Schema) -> dict[str, Tensor]:
    """One contiguous tensor of shape ``(rows, *field.shape)`` per field.

    Args:
        buffer: ``uint8`` of shape ``(rows, row_bytes)``.
        schema: What a row is.

    Raises:
        UsageError: if the buffer has another dtype, shape or layout.
    """
    columns = column_views(buffer, schema)
    return {name: column.contiguous() for name, column in columns.items()}


def column_views(buffer: Tensor, schema: Schema) -> dict[str, Tensor]:
    """Per field a view of shape ``(rows, *field.shape)``, not contiguous.

    Args:
        buffer: ``uint8`` of shape ``(rows, row_bytes)``.
        schema: What a row is.

    Raises:
        UsageError: if the buffer has another dtype, shape or layout.
    """
    _check_buffer(buffer, schema)
    return {
        field.name: _view(buffer, field, offset)
        for field, offset in zip(schema.fields, schema.offsets, strict=True)
    }


def batch_order(rows: int, *, seed: int, epoch: int, scope: str = "") -> Tensor:
    """A permutation of ``0 .. rows - 1`` as ``int64`` on the CPU.

    Args:
        rows: How many rows there are.
        seed: The job's seed.
        epoch: The training epoch.
        scope: Separates streams of one epoch, such as a resource's name.
    """
    generator = torch.Generator()
    generator.manual_seed(_stream_seed(seed, epoch, scope))
    return torch.randperm(rows, generator=generator)


def split_order(order: Tensor, batch_rows: int) -> Iterator[Tensor]:
    """``order`` in batches of ``batch_rows``; the last one may be shorter."""
    if batch_rows < 1:
        raise UsageError("a batch must have at least one row")
    yield from order.split(batch_rows)


def _view(buffer: Tensor, field: Field, offset: int) -> Tensor:
    """The field in place: offsets and rows are multiples of every element size."""
    raw = buffer[:, offset : offset + field.size_bytes]
    column = raw.view(getattr(torch, field.dtype))  # (rows, elements)
    return column.unflatten(1, field.shape) if field.shape else column[:, 0]


def _check_buffer(buffer: Tensor, schema: Schema) -> None:
    fits = (
        buffer.dtype == torch.uint8
        and buffer.dim() == 2
        and buffer.shape[1] == schema.row_bytes
        and buffer.stride(1) == 1
        and buffer.stride(0) % ALIGNMENT_BYTES == 0
        and buffer.storage_offset() % ALIGNMENT_BYTES == 0
    )
    if not fits:
        raise UsageError(
            f"a buffer of rows must be uint8 of shape (rows, {schema.row_bytes}), aligned to 8 bytes"
        )


def _stream_seed(seed: int, epoch: int, scope: str) -> int:
    parts = [str(part).encode() for part in (seed, epoch, scope)]
    return int.from_bytes(labelled("sealift batch order", *parts)[:8], "big") >> 1
