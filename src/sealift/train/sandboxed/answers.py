"""What a model answers, as rows of its form.

Nothing else leaves a served model (rule H8): tensors of the stated shapes, and kinds of
numbers are never mixed up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sealift.data.schema.schema import Field, Schema
from sealift.train.loop.faults import unfit


def pack_answer(found: Any, schema: Schema, rows: int) -> Tensor:
    """Tensors by name as rows: ``uint8`` of shape ``(rows, row_bytes)``.

    Raises:
        JobError: code ``bad-recipe``, if they are not what the form says.
    """
    if isinstance(found, Tensor) and len(schema.fields) == 1:
        found = {schema.fields[0].name: found}
    if not isinstance(found, Mapping):
        raise unfit("answer")
    packed = torch.zeros(rows, schema.row_bytes, dtype=torch.uint8)
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        column = _column(found.get(field.name), field, rows)
        place = packed[:, offset : offset + field.size_bytes]
        place.view(column.dtype)[:] = column
    return packed


def describe_answer(found: Any, rows: int) -> dict[str, str]:
    """Element type and sizes of what a model answers, by name; ``prediction`` for one tensor.

    Raises:
        JobError: code ``bad-recipe``, if it is not tensors with a row for each row.
    """
    if isinstance(found, Tensor):
        found = {"prediction": found}
    if not isinstance(found, Mapping):
        raise unfit("answer")
    said = {}
    for name, each in found.items():
        if type(each) is not Tensor or each.dim() < 1 or len(each) != rows:
            raise unfit("answer")
        dtype = str(each.dtype).removeprefix("torch.")
        sizes = "x".join(map(str, each.shape[1:]))
        said[str(name)] = f"{dtype} {sizes}"
    return said


def _column(found: Any, field: Field, rows: int) -> Tensor:
    """The field's elements, one row each; kinds of numbers are never mixed up."""
    wanted = getattr(torch, field.dtype)
    # A subclass would bring methods of its own to where nothing contains them.
    if type(found) is not Tensor or tuple(found.shape) != (rows, *field.shape):
        raise unfit("answer")
    if found.is_complex() or found.is_floating_point() != wanted.is_floating_point:
        raise unfit("answer")
    if (found.dtype == torch.bool) != (wanted == torch.bool):
        raise unfit("answer")
    return found.detach().cpu().to(wanted).reshape(rows, -1)
