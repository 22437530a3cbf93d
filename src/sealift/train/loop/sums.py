"""Sums that a recipe's ``prepare`` makes of rows: what ``build`` may know before training.

Whole numbers add up as ``int64``, all others as ``float64``. Names and shapes are those
of the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from sealift.codec import MAX_INTEGER
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.schema import Schema
from sealift.train.loop.faults import unfit
from sealift.train.loop.recipe import Recipe
from sealift.train.loop.statistics import MAX_SUMS
from sealift.train.loop.tensors import pack_tensors
from sealift.train.loop.torchstate import tensor_bytes

MAX_NAME: Final = 64


def sum_table(recipe: Recipe, table: Tensor, schema: Schema, batch_rows: int) -> bytes:
    """What ``prepare`` sums over a table, batch by batch in order, as a blob.

    Args:
        recipe: Has ``prepare``.
        table: ``uint8`` (rows, row_bytes).
        schema: Of the table.
        batch_rows: Rows of one call.

    Raises:
        JobError: if the recipe fails, or returns no sums.
    """
    sums = Sums()
    for part in table.split(batch_rows):
        # A copy: a recipe must not write into the visit's rows.
        sums.add(recipe.prepare(batch_from_rows(part.clone(), schema)))
    return sums.pack()


class Sums:
    """Sums by name, under way."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, found: Mapping[str, Any]) -> None:
        """Add what ``prepare`` returned for one batch.

        Raises:
            JobError: code ``bad-recipe``.
        """
        new = {name: _exact(name, value) for name, value in found.items()}
        if sum(each.numel() for each in new.values()) > MAX_SUMS:
            raise unfit("many-sums")
        if not self._sums:
            self._sums = {name: torch.zeros_like(each) for name, each in new.items()}
        if {n: each.shape for n, each in new.items()} != {
            n: each.shape for n, each in self._sums.items()
        }:
            raise unfit("sums")
        for name, each in new.items():
            self._sums[name] = self._sums[name] + each

    def pack(self) -> bytes:
        """The sums as a blob.

        Raises:
            JobError: code ``bad-recipe``, if one is not finite or out of its range.
        """
        for each in self._sums.values():
            exact = each.is_floating_point() or bool((each.abs() <= MAX_INTEGER).all())
            if not exact or not bool(torch.isfinite(each).all()):
                raise unfit("other-sums")
        plain = {name: tensor_bytes(each) for name, each in self._sums.items()}
        return pack_tensors(plain)


def _exact(name: Any, value: Any) -> Tensor:
    if type(name) is not str or not name.isidentifier() or len(name) > MAX_NAME:
        raise unfit("sums")
    if type(value) is Tensor and not value.is_complex() and value.numel():
        whole = not value.is_floating_point()
        return value.detach().cpu().to(torch.int64 if whole else torch.float64)
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise unfit("other-sums")
    if isinstance(value, int | float):
        whole = not isinstance(value, float)
        return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)
    raise unfit("sums")
