"""Datasets by their import path: the owner's own code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import SourceOptions
from sealift.data.sources.table import infer_schema
from sealift.errors import MalformedError, SealiftError, UsageError
from tests.unit.data.sourcefiles import (
    ROWS,
    SCHEMA,
    Arrays,
    make_arrays,
    read,
    same,
)


@pytest.fixture
def arrays() -> Arrays:
    return make_arrays()


class Rows:
    """A map-style dataset."""

    def __init__(self, arrays: Arrays, row: Callable[[Arrays, int], Any]) -> None:
        self._arrays, self._row = arrays, row

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self._row(self._arrays, index)


def of_dicts(arrays: Arrays, index: int) -> Any:
    return {name: array[index] for name, array in arrays.items()}


@pytest.fixture
def owners_module() -> Iterator[Any]:
    """A module of the owner's, importable."""
    module = type(sys)("owners_rows")
    sys.modules["owners_rows"] = module
    yield module
    del sys.modules["owners_rows"]


def test_a_dataset_by_its_import_path(arrays: Arrays, owners_module: Any) -> None:
    owners_module.rows = Rows(arrays, of_dicts)
    owners_module.make = lambda: owners_module.rows
    for place in ("owners_rows:rows", "owners_rows:make"):
        assert infer_schema(place) == SCHEMA
        same(read(place, SCHEMA), arrays)


def test_rows_that_are_tuples_of_tensors(arrays: Arrays, owners_module: Any) -> None:
    torch = importlib.import_module("torch")
    owners_module.rows = torch.utils.data.TensorDataset(
        torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["label"])
    )
    with pytest.raises(MalformedError, match="--fields x,label"):
        infer_schema("owners_rows:rows")
    options = SourceOptions((("x", "x"), ("label", "label")))
    schema = infer_schema("owners_rows:rows", options)
    assert schema.fields == SCHEMA.fields[:2]
    same(
        read("owners_rows:rows", schema, options),
        {name: arrays[name] for name in ("x", "label")},
    )


def test_python_numbers(arrays: Arrays, owners_module: Any) -> None:
    owners_module.rows = Rows(arrays, lambda _, index: {"x": index / 2, "n": index})
    inferred = infer_schema("owners_rows:rows")
    assert inferred.fields == (Field("x", "float64"), Field("n", "int64"))
    stored = Schema((Field("x", "float32"), Field("n", "uint8")))
    found = read("owners_rows:rows", stored)
    assert found["n"].tolist() == list(range(ROWS))
    owners_module.rows = Rows(arrays, lambda _, i: {"x": 0.0, "n": 100 * (i // 8) * i})
    with pytest.raises(MalformedError, match="row 8, column n: 800 does not fit uint8"):
        read("owners_rows:rows", stored)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda a: Rows(a, lambda a, i: 1 / (i - 3)), MalformedError, "row 3: the data"),
        (lambda a: iter([1]), UsageError, "no length"),
        (lambda a: Rows(a, lambda a, i: {"x": np.zeros(1 + i // 4)}), MalformedError,
         "row 4"),
    ],
)  # fmt: skip
def test_bad_datasets(
    arrays: Arrays, owners_module: Any, make: Any, kind: type[SealiftError], words: str
) -> None:
    owners_module.rows = make(arrays)
    schema = Schema((Field("x", "float64", (1,)),))
    options = SourceOptions((("x", "x"),))
    with pytest.raises(kind, match=words):
        read("owners_rows:rows", schema, options)
    with pytest.raises(UsageError, match="cannot load owners_rows:none"):
        infer_schema("owners_rows:none")
    with pytest.raises(UsageError, match="ModuleNotFoundError"):
        infer_schema("no.such.module:rows")


def test_a_class_is_a_function_that_returns_one(
    arrays: Arrays, owners_module: Any
) -> None:
    class Own(Rows):
        def __init__(self) -> None:
            super().__init__(arrays, of_dicts)

    owners_module.rows = Own
    same(read("owners_rows:rows", infer_schema("owners_rows:rows")), arrays)


def test_numbers_that_do_not_fit_are_no_infinities(
    arrays: Arrays, owners_module: Any
) -> None:
    schema = Schema((Field("x", "float16", finite=False),))
    owners_module.rows = Rows(arrays, lambda _, i: {"x": 1e9 if i == 4 else 1.0})
    with pytest.raises(MalformedError, match=r"row 4: x: 1000000000\.0 does not"):
        read("owners_rows:rows", schema)
    owners_module.rows = Rows(arrays, lambda _, i: {"x": float("inf")})
    assert np.isinf(read("owners_rows:rows", schema)["x"]).all()  # control


def test_python_integers_in_a_float_field(arrays: Arrays, owners_module: Any) -> None:
    owners_module.rows = Rows(arrays, lambda _, i: {"x": i / 2 if i % 2 else i // 2})
    found = read("owners_rows:rows", Schema((Field("x", "float32"),)))
    assert found["x"].tolist() == [i / 2 for i in range(ROWS)]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([[1.0], [1.0, 2.0]], id="ragged"),
        pytest.param(torch.ones(2, requires_grad=True), id="gradient"),
        pytest.param(torch.ones(2, dtype=torch.bfloat16), id="bfloat16"),
    ],
)
def test_values_that_are_no_arrays(
    arrays: Arrays, owners_module: Any, value: Any
) -> None:
    good = np.ones(2)
    owners_module.rows = Rows(arrays, lambda _, i: {"x": value if i == 3 else good})
    with pytest.raises(MalformedError, match="row 3: x is not an array"):
        read("owners_rows:rows", Schema((Field("x", "float64", (2,)),)))
    owners_module.rows = Rows(arrays, lambda _, i: {"x": value})
    with pytest.raises(MalformedError, match="row 0: x is not an array"):
        infer_schema("owners_rows:rows")


def test_names_and_lengths_that_are_none(arrays: Arrays, owners_module: Any) -> None:
    owners_module.rows = Rows(arrays, lambda _, i: {0: 1.0})
    with pytest.raises(MalformedError, match="row 0: 0 is not a valid name"):
        infer_schema("owners_rows:rows")

    class Endless(Rows):
        def __len__(self) -> int:
            raise TypeError("nobody knows")

    owners_module.rows = Endless(arrays, of_dicts)
    with pytest.raises(UsageError, match="TypeError: nobody knows"):
        infer_schema("owners_rows:rows")
