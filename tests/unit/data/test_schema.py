from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.data.schema.schema import DTYPES, Field, Schema, aligned
from sealift.errors import MalformedError


def refused(**changes: object) -> str:
    """The path at which a field with these changes is refused."""
    with pytest.raises(MalformedError) as caught:
        replace(Field("age", "int32"), **changes)
    assert caught.value.code == "bad-schema"
    return caught.value.field


def test_offsets_and_row_are_aligned_to_8_bytes() -> None:
    schema = Schema((Field("pixels", "float32", (3,)), Field("label", "uint8")))
    assert schema.offsets == (0, 16)
    assert schema.row_bytes == 24


def test_row_of_one_byte_field_takes_8_bytes() -> None:
    assert Schema((Field("flag", "bool"),)).row_bytes == 8


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_its_size(name: str) -> None:
    field = Field("x", name, (2, 5))
    assert field.elements == 10
    assert field.size_bytes == 10 * DTYPES[name].size_bytes


@pytest.mark.parametrize("name", ["", "Age", "1st", "a b", "a-b", "x" * 64, "é"])
def test_bad_name_is_refused(name: str) -> None:
    assert refused(name=name) == "name"


@pytest.mark.parametrize("dtype", ["", "float", "float128", "uint32", "object", "U8"])
def test_unknown_dtype_is_refused(dtype: str) -> None:
    assert refused(dtype=dtype) == "dtype"


@pytest.mark.parametrize("shape", [(0,), (-1,), (1,) * 9, (1 << 20, 1 << 20)])
def test_bad_shape_is_refused(shape: tuple[int, ...]) -> None:
    assert refused(shape=shape) == "shape"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"finite": False}, "finite"),
        ({"classes": 0}, "classes"),
        ({"classes": 2**31 + 1}, "classes"),
        ({"classes": 10, "maximum": 9}, "classes"),
        ({"dtype": "float32", "classes": 10}, "classes"),
        ({"dtype": "bool", "minimum": 0}, "min"),
        ({"minimum": 0.5}, "min"),
        ({"maximum": 2**31}, "max"),
        ({"dtype": "int64", "maximum": 2**53}, "max"),
        ({"dtype": "float32", "maximum": 1e39}, "max"),
        ({"dtype": "float64", "minimum": float("nan")}, "min"),
        ({"dtype": "float64", "maximum": float("inf")}, "max"),
        ({"minimum": 2, "maximum": 1}, "min"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(
    changes: dict[str, object], path: str
) -> None:
    assert refused(**changes) == path


def test_classes_may_fill_the_dtype() -> None:
    assert Field("label", "uint8", classes=256).bounds == (0, 255)


def test_float_bounds_are_those_the_dtype_stores() -> None:
    low, high = Field("x", "float32", minimum=0.1, maximum=0.3).bounds
    assert low is not None
    assert high is not None
    assert low > 0.1  # the nearest float32 to 0.1 is above it
    assert high > 0.3


def test_schema_needs_a_field() -> None:
    with pytest.raises(MalformedError):
        Schema(())


def test_name_twice_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        Schema((Field("x", "int8"), Field("x", "int8")))
    assert caught.value.field == "fields[1].name"


def test_row_beyond_the_limit_is_refused() -> None:
    half = Field("a", "uint8", (9 << 20,))
    Schema((half,))
    with pytest.raises(MalformedError):
        Schema((half, replace(half, name="b")))


def test_aligned() -> None:
    assert [aligned(n) for n in (0, 1, 8, 9)] == [0, 8, 8, 16]
