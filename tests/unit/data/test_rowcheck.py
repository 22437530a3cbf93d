"""The accelerator's check of a party's rows, rule by rule."""

from __future__ import annotations

import pytest

from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.errors import MalformedError

SCHEMA = schema_from_plain(
    {
        "fields": [
            {"name": "x", "dtype": "float32", "shape": [3]},
            {"name": "y", "dtype": "float16", "min": -2.0, "max": 3.5},
            {"name": "label", "dtype": "int8", "classes": 3},
            {"name": "flag", "dtype": "bool"},
            {"name": "free", "dtype": "float64", "finite": False},
        ]
    }
)


@pytest.mark.parametrize(
    ("place", "raw", "field"),
    [
        (0, b"\x00\x00\xc0\x7f", "x"),  # NaN
        (12, b"\x01", "y"),  # the gap before it
        (16, b"\x00\x44", "y"),  # 4.0
        (24, b"\x03", "label"),
        (32, b"\x02", "flag"),
        (SCHEMA.row_bytes - 9, b"\x01", "free"),
    ],
)
def test_each_rule(place: int, raw: bytes, field: str) -> None:
    rows = bytearray(3 * SCHEMA.row_bytes)
    demand_rows(rows, SCHEMA)
    at = SCHEMA.row_bytes + place
    rows[at : at + len(raw)] = raw
    with pytest.raises(MalformedError) as refusal:
        demand_rows(rows, SCHEMA)
    assert refusal.value.field == field
