"""The accelerator's check of rows takes what an owner could have packed, only that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rowcheck import demand_rows
from sealift.data.schema.rows import pack, unpack
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
ROW = bytearray(SCHEMA.row_bytes)
BYTES = st.sampled_from([0, 1, 2, 3, 0x3C, 0x7C, 0x7F, 0x80, 0xBF, 0xC0, 0xFF])


def is_taken(rows: bytearray) -> bool:
    try:
        demand_rows(rows, SCHEMA)
    except MalformedError:
        return False
    return True


def is_what_pack_makes(rows: bytearray) -> bool:
    columns = {n: c.copy() for n, c in unpack(rows, SCHEMA).items()}
    try:
        return pack(columns, SCHEMA, source="", locate=lambda *_: "") == rows
    except MalformedError:
        return False


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, SCHEMA.row_bytes - 1), BYTES),
        max_size=6,
    )
)
def test_rows_are_taken_exactly_when_an_owner_could_have_packed_them(
    changes: list[tuple[int, int, int]],
) -> None:
    rows = bytearray(4 * SCHEMA.row_bytes)
    for row, place, value in changes:
        rows[row * SCHEMA.row_bytes + place] = value
    assert is_taken(rows) == is_what_pack_makes(rows)


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
