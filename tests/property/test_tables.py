"""Any schema, any rows: what goes in comes out, and bytes from anywhere never crash."""

from __future__ import annotations

import contextlib
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sealift import codec
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.data.schema.rows import demand_rows, pack, unpack
from sealift.data.schema.schema import DTYPES, MAX_EXACT_INTEGER, Field, Schema
from sealift.data.sources.table import open_table
from sealift.errors import MalformedError, SealiftError
from tests.sim.examples import examples

names = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=8)
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@st.composite
def bounds(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    kind = DTYPES[dtype]
    if kind.kind == "bool":
        return {}
    low, high = (
        max(kind.lowest, -MAX_EXACT_INTEGER),
        min(kind.highest, MAX_EXACT_INTEGER),
    )
    number = (
        st.integers(int(low), int(high))
        if kind.kind == "int"
        else st.floats(max(low, -60000.0), min(high, 60000.0))
    )
    if kind.kind == "int" and draw(st.booleans()):
        return {"classes": draw(st.integers(1, int(high)))}
    first, second = sorted([draw(number), draw(number)])
    return {
        "minimum": draw(st.sampled_from([None, first])),
        "maximum": draw(st.sampled_from([None, second])),
    }


@st.composite
def fields(draw: st.DrawFn) -> Field:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    floating = DTYPES[dtype].kind == "float"
    return Field(
        name="f" + draw(names),
        dtype=dtype,
        shape=draw(shapes),
        finite=draw(st.booleans()) if floating else True,
        description=draw(st.text(max_size=10)),
        **draw(bounds(dtype)),
    )


schemas = st.lists(fields(), min_size=1, max_size=5, unique_by=lambda f: f.name).map(
    lambda fs: Schema(tuple(fs))
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    schema = draw(schemas)
    rows = draw(st.integers(1, 4))
    return schema, {f.name: draw(column(f, rows)) for f in schema.fields}


def column(field: Field, rows: int) -> st.SearchStrategy[Any]:
    """Values that fit the field."""
    dtype = np.dtype(field.dtype)
    low, high = field.bounds
    options: dict[str, Any] = {"min_value": low, "max_value": high}
    if field.element.kind == "bool":
        options = {}
    elif field.element.kind == "float":
        options |= {"allow_nan": not field.finite and low is None and high is None}
        options |= {"allow_infinity": None if not field.finite else False}
        if not field.finite and low is not None and high is not None:
            options["allow_infinity"] = False
    elements = arrays.from_dtype(dtype, **options)
    return arrays.arrays(dtype, (rows, *field.shape), elements=elements)


@given(schemas)
def test_plain_form_round_trips_through_canonical_json(schema: Schema) -> None:
    plain = codec.parse(codec.encode(schema_to_plain(schema)))
    assert schema_from_plain(plain) == schema


@given(schemas)
def test_layout_has_no_overlap_and_stays_aligned(schema: Schema) -> None:
    end = 0
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        assert offset % 8 == 0
        assert end <= offset < end + 8
        end = offset + field.size_bytes
    assert end <= schema.row_bytes < end + 8
    assert schema.row_bytes % 8 == 0


@given(tables())
def test_what_is_packed_comes_back_here_and_in_torch(table: Any) -> None:
    schema, columns = table
    raw = pack(columns, schema, source="t", locate=lambda *_: "")
    buffer = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    buffer = buffer.view(-1, schema.row_bytes)
    demand_rows(buffer.numpy(), schema)
    batch, back = batch_from_rows(buffer, schema), unpack(raw, schema)
    for name, array in columns.items():
        assert back[name].tobytes() == array.tobytes()
        assert batch[name].numpy().tobytes() == array.tobytes()


@given(schemas, st.data())
def test_both_checks_agree_on_any_bytes(schema: Schema, data: st.DataObject) -> None:
    """The owner's check and the accelerator's: what one packs, the other accepts."""
    raw = bytearray(
        data.draw(st.binary(min_size=schema.row_bytes, max_size=schema.row_bytes))
    )
    columns = unpack(raw, schema)
    try:
        canonical = pack(columns, schema, source="t", locate=lambda *_: "")
    except MalformedError:
        canonical = None
    buffer = torch.frombuffer(raw, dtype=torch.uint8).view(1, -1)
    try:
        demand_rows(buffer.numpy(), schema)
    except MalformedError:
        assert canonical != bytes(raw)
    else:
        assert canonical == bytes(raw)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["fields", "name", "dtype", "shape", "min", "classes", "x"]),
        inner | st.sampled_from([*DTYPES, "a"]),
        max_size=5,
    ),
))  # fmt: skip
def test_any_document_is_a_schema_or_malformed(document: Any) -> None:
    if not isinstance(document, dict):
        document = {"fields": document}
    try:
        schema = schema_from_plain(document)
    except MalformedError:
        return
    assert schema_from_plain(schema_to_plain(schema)) == schema


PAIR = Schema((Field("x", "float32", (2,)), Field("n", "int8")))


def _sources(folder: Path) -> dict[str, bytes]:
    from safetensors.numpy import save

    columns = {"x": np.ones((3, 2), np.float32), "n": np.ones(3, np.int8)}
    np.savez(folder / "t.npz", **columns)
    kinds = np.dtype([("x", "<f4", (2,)), ("n", "i1")])
    np.save(folder / "t.npy", np.zeros(3, kinds))
    return {
        ".npz": (folder / "t.npz").read_bytes(),
        ".npy": (folder / "t.npy").read_bytes(),
        ".safetensors": save(columns),
        ".csv": b"x0,x1,n\n1.5,2,3\n4,5,6\n",
    }


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@examples(300)
@given(
    st.sampled_from([".npz", ".npy", ".safetensors", ".csv"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
)
def test_a_damaged_table_is_read_or_refused(
    tmp_path_factory: Any, suffix: str, flips: list[tuple[float, int]], cut: float
) -> None:
    folder = tmp_path_factory.mktemp("tables", numbered=True)
    raw = bytearray(_sources(folder)[suffix])
    for place, value in flips:
        raw[int(place * (len(raw) - 1))] = value
    if not flips:
        raw = raw[: int(cut * len(raw))]
    path = folder / f"damaged{suffix}"
    path.write_bytes(raw)
    with contextlib.suppress(SealiftError):
        list(open_table(path, PAIR).blocks())
