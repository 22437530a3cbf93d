from __future__ import annotations

import numpy as np
import pytest
import torch

from sealift.data.loader.rowtensors import (
    batch_from_rows,
    batch_order,
    column_views,
    split_order,
)
from sealift.data.schema.rows import demand_rows, pack
from sealift.data.schema.schema import DTYPES, Field, Schema
from sealift.errors import MalformedError, UsageError
from tests.unit.data.tables import SCHEMA, Arrays, make_arrays


def buffer_of(arrays: Arrays, schema: Schema = SCHEMA) -> torch.Tensor:
    raw = pack(arrays, schema, source="test", locate=lambda *_: "")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(
        -1, schema.row_bytes
    )


def test_columns_are_views_of_the_buffer() -> None:
    arrays = make_arrays(20)
    buffer = buffer_of(arrays)
    columns = column_views(buffer, SCHEMA)
    for name, array in arrays.items():
        np.testing.assert_array_equal(columns[name].numpy(), array)
    buffer.zero_()
    assert not columns["pixels"].any()


def test_a_batch_is_the_rows_asked_for_and_a_copy() -> None:
    arrays = make_arrays(20)
    buffer = buffer_of(arrays)
    rows = torch.tensor([7, 0, 7])
    batch = batch_from_rows(buffer.index_select(0, rows), SCHEMA)
    buffer.zero_()
    for name, array in arrays.items():
        assert batch[name].is_contiguous()
        np.testing.assert_array_equal(batch[name].numpy(), array[rows.numpy()])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_reaches_torch(dtype: str) -> None:
    schema = Schema((Field("lead", "int8"), Field("x", dtype, (3,)), Field("y", dtype)))
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    arrays = {"lead": np.ones(2, np.int8), "x": array, "y": array[:, 0].copy()}
    batch = batch_from_rows(buffer_of(arrays, schema), schema)
    assert batch["x"].dtype == getattr(torch, dtype)
    assert batch["x"].tolist() == array.tolist()
    assert batch["y"].tolist() == array[:, 0].tolist()


def test_order_depends_on_seed_epoch_and_scope_alone() -> None:
    def order(**changes: object) -> list[int]:
        return batch_order(
            100, **{"seed": 1, "epoch": 0, "scope": "a", **changes}
        ).tolist()

    torch.manual_seed(5)
    first = order()
    torch.manual_seed(6)
    assert order() == first
    assert sorted(first) == list(range(100))
    others = [order(seed=2), order(epoch=1), order(scope="b"), order(seed=11, epoch="")]
    assert all(other != first for other in others)


def test_order_is_cut_into_batches() -> None:
    sizes = [len(part) for part in split_order(torch.arange(10), 4)]
    assert sizes == [4, 4, 2]
    with pytest.raises(UsageError):
        list(split_order(torch.arange(10), 0))


def test_check_passes_good_rows_of_every_kind() -> None:
    demand_rows(buffer_of(make_arrays(1000)).numpy(), SCHEMA)


def place(name: str) -> int:
    names = [field.name for field in SCHEMA.fields]
    return SCHEMA.offsets[names.index(name)]


@pytest.mark.parametrize(
    ("start", "raw", "field", "rule"),
    [
        (place("pixels"), np.float32("nan").tobytes(), "pixels", "not finite"),
        (place("pixels") + 20, np.float32("inf").tobytes(), "pixels", "not finite"),
        (place("pixels"), np.float32(-1).tobytes(), "pixels", "below its minimum"),
        (place("pixels"), np.float32(16.25).tobytes(), "pixels", "above its maximum"),
        (place("label"), np.int64(10).tobytes(), "label", "above its maximum"),
        (place("label"), np.int64(-1).tobytes(), "label", "below its minimum"),
        (place("kept"), b"\x02", "kept", "not true or false"),
        (place("kept") + 1, b"\x01", "kept", "padding"),
        (SCHEMA.row_bytes - 1, b"\x01", "kept", "padding"),
    ],
)
def test_check_names_the_field_and_nothing_else(
    start: int, raw: bytes, field: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealift.data.schema.rows.BLOCK_BYTES", 500)
    buffer = buffer_of(make_arrays(100))
    buffer[77, start : start + len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    with pytest.raises(MalformedError) as caught:
        demand_rows(buffer.numpy(), SCHEMA)
    line = str(caught.value)
    assert caught.value.field == field
    assert rule in line
    assert not any(character.isdigit() for character in line)  # no row, no value


def test_nan_is_allowed_where_the_schema_allows_it() -> None:
    schema = Schema((Field("x", "float32", finite=False, minimum=0.0),))
    unbounded = {"x": np.array([np.nan, np.inf], np.float32)}
    demand_rows(buffer_of(unbounded, schema).numpy(), schema)


def test_bounds_are_compared_in_the_dtype_on_both_sides() -> None:
    schema = Schema((Field("x", "float32", minimum=0.1, maximum=0.3),))
    edge = np.array([0.1, 0.3], np.float32)  # both a little above the decimal number
    demand_rows(buffer_of({"x": edge}, schema).numpy(), schema)


@pytest.mark.parametrize(
    "buffer",
    [
        torch.zeros(4, SCHEMA.row_bytes),
        torch.zeros(4, SCHEMA.row_bytes + 8, dtype=torch.uint8),
        torch.zeros(4 * SCHEMA.row_bytes, dtype=torch.uint8),
        torch.zeros(SCHEMA.row_bytes, 4, dtype=torch.uint8).t(),
        torch.zeros(4 * SCHEMA.row_bytes + 4, dtype=torch.uint8)[4:].view(4, -1),
    ],
    ids=["dtype", "row-size", "flat", "transposed", "misaligned"],
)
def test_a_buffer_of_another_layout_is_refused(buffer: torch.Tensor) -> None:
    with pytest.raises(UsageError):
        column_views(buffer, SCHEMA)
