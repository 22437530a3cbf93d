"""Every kind of source: the same rows, the schema that it says, and what it refuses."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealift.crypto.keys import SecretKey
from sealift.data.schema.document import parse_schema, schema_to_toml
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_table
from sealift.data.sources.source import SourceOptions
from sealift.data.sources.table import SOURCES, infer_schema
from sealift.errors import MalformedError, UnavailableError, UsageError
from tests.unit.data.sourcefiles import (
    SCHEMA,
    WRITERS,
    Arrays,
    make_arrays,
    pictures,
    read,
    same,
    write_parquet,
)


@pytest.fixture
def arrays() -> Arrays:
    return make_arrays()


@pytest.mark.parametrize("write", WRITERS)
def test_it_says_its_schema_and_gives_its_rows(
    tmp_path: Path, arrays: Arrays, write: Callable[[Path, Arrays], str]
) -> None:
    place = write(tmp_path, arrays)
    inferred = infer_schema(place)
    fields = {field.name: field for field in inferred.fields}
    assert fields == {field.name: field for field in SCHEMA.fields}
    same(read(place, SCHEMA), arrays)


@pytest.mark.parametrize("write", WRITERS)
def test_columns_are_chosen_and_named(
    tmp_path: Path, arrays: Arrays, write: Callable[[Path, Arrays], str]
) -> None:
    place = write(tmp_path, arrays)
    options = SourceOptions((("label", "label"), ("pixels", "x")))
    schema = infer_schema(place, options)
    assert [field.name for field in schema.fields] == ["label", "pixels"]
    found = read(place, schema, options)
    same(found, {"label": arrays["label"], "pixels": arrays["x"]})
    with pytest.raises(UsageError, match="no column 'y'"):
        infer_schema(place, SourceOptions((("y", "y"),)))


@pytest.mark.parametrize("write", WRITERS)
def test_a_value_out_of_range_is_named(
    tmp_path: Path, arrays: Arrays, write: Callable[[Path, Arrays], str]
) -> None:
    place = write(tmp_path, arrays)
    fields = (*SCHEMA.fields[:1], Field("label", "int64", maximum=1), SCHEMA.fields[2])
    with pytest.raises(MalformedError, match=r"2\b.*label|label.*\b2\b") as caught:
        read(place, Schema(fields))
    assert "2 is not at most 1" in str(caught.value)


@pytest.mark.parametrize(
    ("module", "write", "extra"),
    [
        ("PIL", lambda folder, arrays: str(pictures(folder)), "images"),
    ],
)
def test_a_missing_extra_says_how_to_get_it(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch,
    module: str, write: Any, extra: str,
) -> None:  # fmt: skip
    place = write(tmp_path, arrays)
    for name in [n for n in sys.modules if n.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **options)

    monkeypatch.setattr(
        importlib, "import_module", lambda name: without(name) or sys.modules[name]
    )
    with pytest.raises(UnavailableError, match=rf"pip install '\.\[{extra}\]'") as e:
        infer_schema(place)
    assert (e.value.code, e.value.exit_code) == ("extra-missing", 3)


def test_csv_says_no_schema(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(MalformedError, match="--schema") as caught:
        infer_schema(tmp_path / "t.csv")
    assert caught.value.code == "no-schema"


def test_a_bare_array_has_no_name(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(MalformedError, match="--fields NAME"):
        infer_schema(tmp_path / "t.npy")
    options = SourceOptions((("x", "x"),))
    schema = infer_schema(tmp_path / "t.npy", options)
    assert schema.fields == (Field("x", "float32", (2,)),)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": np.zeros(3)}, "'X'.*--fields NAME=X"),
        ({"x": np.zeros(3, np.uint16)}, "x has the dtype uint16"),
        ({"x": np.zeros(3, complex)}, "x has the dtype complex128"),
        ({"x": np.array(3)}, "not one per row"),
    ],
)
def test_arrays_that_make_no_schema(tmp_path: Path, arrays: Arrays, words: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(MalformedError, match=words):
        infer_schema(tmp_path / "t.npz")


def test_inferred_schemas_are_written_as_they_are_read() -> None:
    schema = Schema(
        (
            Field("a", "float32", (2,), finite=False, minimum=-1.5, maximum=2.0),
            Field(
                "b", "int64", classes=3, description='0 "a\\b", 1 é\x7f\n2 \U0001f600'
            ),
        ),
        description="two\tfields",
    )
    assert parse_schema(schema_to_toml(schema).encode()) == schema


def test_sealing_writes_the_schema_or_nothing(tmp_path: Path, arrays: Arrays) -> None:
    place = write_parquet(tmp_path, arrays)
    out = tmp_path / "out"
    out.mkdir()
    words: dict[str, Any] = {
        "name": "n", "part": "train", "owner": "north", "key": SecretKey.generate(),
        "out_dir": out, "schema_file": True,
    }  # fmt: skip
    with pytest.raises(MalformedError):
        seal_table(place, Schema((*SCHEMA.fields[:2], Field("kept", "int8"))), **words)
    assert not list(out.iterdir())
    seal_table(place, SCHEMA, **words)
    assert {path.name for path in out.iterdir()} == {
        "n.sealed", "n.resource.json", "n.schema.toml",
    }  # fmt: skip
    assert parse_schema((out / "n.schema.toml").read_bytes()) == SCHEMA


def test_the_registry_names_every_file() -> None:
    folder = Path(importlib.import_module("sealift.data.sources").__file__ or "").parent
    shared = {"__init__", "source", "table", "arrays", "problems"}
    kinds = {path.stem for path in folder.glob("*.py")} - shared
    for kind in kinds:
        module = importlib.import_module(f"sealift.data.sources.{kind}")
        assert any(each in SOURCES for each in vars(module).values()), kind
