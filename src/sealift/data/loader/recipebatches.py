"""Rows in a buffer to tensors, in an order that a seed decides.

``Columns`` views a buffer of rows without copying; a batch is a gather of whole rows.
``check_rows`` is the accelerator's own check of a party's rows: it names the field and
never a value, because what it says may leave the accelerator (rule H8).
Guarantee: the order depends on (seed, epoch, scope) and torch's version alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from sealift.crypto.hash import labelled
from sealift.data.schema.schema import ALIGNMENT_BYTES, Field, Schema
from sealift.errors import MalformedError, UsageError

CHECK_BLOCK_BYTES: Final = 4 << 20  # bounds the temporary tensors of a check


class Columns:
    """The fields of a buffer of rows, as views.

    Args:
        buffer: ``uint8`` of shape ``(rows, row_bytes)``, rows contiguous and aligned.
        schema: What a row is.

    Raises:
        UsageError: if the buffer has another dtype, shape or layout.
    """

    def __init__(self, buffer: Tensor, schema: Schema) -> None:
        _check_buffer(buffer, schema)
        self._buffer = buffer
        self.schema = schema

    def __len__(self) -> int:
        return int(self._buffer.shape[0])

    def __getitem__(self, name: str) -> Tensor:
        """The field ``name`` as a view of shape ``(rows, *field.shape)``."""
        for field, offset in zip(self.schema.fields, self.schema.offsets, strict=True):
            if field.name == name:
                return _view(self._buffer, field, offset)
        raise UsageError(f"the schema has no field {name!r}")

    def batch(self, rows: Tensor) -> dict[str, Tensor]:
        """Contiguous copies of the rows with these indices, in this order.

        Args:
            rows: ``int64`` of shape ``(batch,)``, on the buffer's device.
        """
        return batch_from_rows(self._buffer.index_select(0, rows), self.schema)


def batch_from_rows(buffer: Tensor, schema: Schema) -> dict[str, Tensor]:
    """One contiguous tensor of shape ``(rows, *field.shape)`` per field.

    Args:
        buffer: ``uint8`` of shape ``(rows, row_bytes)``.
        schema: What a row is.

    Raises:
        UsageError: if the buffer has another dtype, shape or layout.
    """
    _check_buffer(buffer, schema)
    return {
        field.name: _view(buffer, field, offset).contiguous()
        for field, offset in zip(schema.fields, schema.offsets, strict=True)
    }


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
        raise UsageError("a batch has at least one row")
    yield from order.split(batch_rows)


def check_rows(buffer: Tensor, schema: Schema) -> None:
    """Demand that every row satisfies the schema, gaps included.

    Args:
        buffer: ``uint8`` of shape ``(rows, row_bytes)``, on any device.
        schema: What a row is.

    Raises:
        MalformedError: names the field and the rule; no row, no value.
        UsageError: if the buffer has another dtype, shape or layout.
    """
    _check_buffer(buffer, schema)
    for part in buffer.split(max(1, CHECK_BLOCK_BYTES // schema.row_bytes)):
        end = 0
        for field, offset in zip(schema.fields, schema.offsets, strict=True):
            _check_gap(part[:, end:offset], field)
            _check_field(_view(part, field, offset), field)
            end = offset + field.size_bytes
        _check_gap(part[:, end:], schema.fields[-1])


def _check_field(column: Tensor, field: Field) -> None:
    low, high = field.bounds
    if field.element.kind == "bool":
        _demand(not (column.view(torch.uint8) > 1).any(), field, "not true or false")
    if field.element.kind == "float" and field.finite:
        _demand(bool(torch.isfinite(column).all()), field, "not finite")
    if low is not None:
        _demand(not (column < low).any(), field, "below its minimum")
    if high is not None:
        _demand(not (column > high).any(), field, "above its maximum")


def _check_gap(gap: Tensor, field: Field) -> None:
    _demand(not gap.any(), field, "next to a gap that is not zero")


def _demand(fits: bool, field: Field, rule: str) -> None:
    if not fits:
        raise MalformedError(
            "a party's rows do not fit their schema",
            field=field.name,
            why=f"a value is {rule}",
            fix="Its owner finds the row with `sealift data seal` on the source",
            code="bad-row",
        )


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
            f"a buffer of rows is uint8 (rows, {schema.row_bytes}), aligned to 8 bytes"
        )


def _stream_seed(seed: int, epoch: int, scope: str) -> int:
    parts = [str(part).encode() for part in (seed, epoch, scope)]
    return int.from_bytes(labelled("sealift batch order", *parts)[:8], "big") >> 1
