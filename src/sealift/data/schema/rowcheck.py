"""The accelerator's first check of a party's rows: without torch, before any recipe.

The same rule as ``loader.check_rows``, which the recipe's process applies again. It
names the field and never a value, because what it says may leave the accelerator.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.data.schema.rows import numpy_dtype
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError
from sealift.ids import Buffer

BLOCK_BYTES: Final = 4 << 20  # bounds what a check allocates
Bytes = NDArray[np.uint8]


def demand_rows(rows: Buffer, schema: Schema) -> None:
    """Demand that every row satisfies the schema, gaps included.

    Args:
        rows: Whole rows, one after another.
        schema: What a row is.

    Raises:
        MalformedError: code ``bad-row``; names the field and the rule, no row, no value.
    """
    table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, schema.row_bytes)
    step = max(1, BLOCK_BYTES // schema.row_bytes)
    for start in range(0, len(table), step):
        _check_block(table[start : start + step], schema)


def _check_block(block: Bytes, schema: Schema) -> None:
    end = 0
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        _demand(not block[:, end:offset].any(), field, "next to a gap that is not zero")
        end = offset + field.size_bytes
        _check_field(block[:, offset:end], field)
    last = schema.fields[-1]
    _demand(not block[:, end:].any(), last, "next to a gap that is not zero")


def _check_field(raw: Bytes, field: Field) -> None:
    low, high = field.bounds
    if field.element.kind == "bool":
        _demand(not (raw > 1).any(), field, "not true or false")
    column: NDArray[Any] = raw.view(numpy_dtype(field))
    if field.element.kind == "float" and field.finite:
        _demand(bool(np.isfinite(column).all()), field, "not finite")
    if low is not None:
        _demand(not (column < low).any(), field, "below its minimum")
    if high is not None:
        _demand(not (column > high).any(), field, "above its maximum")


def _demand(fits: bool, field: Field, rule: str) -> None:
    if not fits:
        raise MalformedError(
            "a party's rows do not fit their schema",
            field=field.name,
            why=f"a value is {rule}",
            fix="Its owner finds the row with `sealift data seal` on the source",
            code="bad-row",
        )
