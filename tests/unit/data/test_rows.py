from __future__ import annotations

import numpy as np
import pytest

from sealift.data.schema.rows import pack, row_dtype, unpack
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError
from tests.unit.data.tables import SCHEMA, make_arrays

WHERE = "row"


def packed(arrays: dict[str, np.ndarray], schema: Schema = SCHEMA) -> bytes:
    return pack(arrays, schema, source="t", locate=lambda *_: WHERE)


def test_row_bytes_are_those_of_the_specification() -> None:
    schema = Schema((Field("pixels", "float32", (3,)), Field("label", "uint8")))
    arrays = {
        "pixels": np.array([[1, 2, -1]], np.float32),
        "label": np.array([7], np.uint8),
    }
    assert packed(arrays, schema).hex(" ", 4) == (
        "0000803f 00000040 000080bf 00000000 07000000 00000000"
    )


def test_structured_dtype_has_the_schemas_layout() -> None:
    dtype = row_dtype(SCHEMA)
    assert dtype.itemsize == SCHEMA.row_bytes
    offsets = [dtype.fields[field.name][1] for field in SCHEMA.fields]
    assert tuple(offsets) == SCHEMA.offsets


def test_unpack_is_the_inverse() -> None:
    arrays = make_arrays(9)
    columns = unpack(packed(arrays), SCHEMA)
    for name, array in arrays.items():
        np.testing.assert_array_equal(columns[name], array)


def test_unpack_refuses_a_part_of_a_row() -> None:
    with pytest.raises(MalformedError, match="whole number of rows"):
        unpack(packed(make_arrays(2))[:-8], SCHEMA)


def test_pack_takes_strided_arrays() -> None:
    arrays = {name: array[::2] for name, array in make_arrays(10).items()}
    whole = {name: array.copy() for name, array in arrays.items()}
    assert packed(arrays) == packed(whole)
