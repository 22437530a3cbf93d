"""Rows from files and answers into files: what does not fit is said in one line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.cells import CellRules
from sealift.data.schema.owntable import own_table_of
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import SourceOptions
from sealift.errors import MalformedError
from sealift.serve.rowfiles import (
    read_columns,
    read_inputs,
    to_line,
    with_known_cells,
    write_columns,
)
from tests.unit.train.joints import resource

SCHEMA = Schema(
    (Field("x", "float32", (2,)), Field("n", "int64"), Field("ok", "bool")),
)


def read(tmp_path: Path, suffix: str, content: bytes) -> dict[str, np.ndarray]:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content)
    return read_columns(path, SCHEMA)


def an_array() -> bytes:
    raw = io.BytesIO()
    np.save(raw, np.zeros(3))
    return raw.getvalue()


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".json", b'{"x": 5}'),
        (".json", b'{"x": [{}]}'),
        (".json", b'{"x": [[1, null]]}'),
        (".json", b'{"n": [1.5]}'),  # not 1
        (".json", b'{"ok": [2]}'),  # not true
        (".json", b'{"x": [["1", "2"]]}'),
        (".json", b"[" * 200_000),
        (".json", b"5"),
        (".npz", b""),
        (".npz", b"PK\3\4" + bytes(40)),
        (".npz", an_array()),
        (".csv", b"x_0,x_1,n,ok\n1,2,3,2\n"),
        (".csv", b"x_0,x_1,n,ok\n1,2,3.5,1\n"),
        (".csv", b"x_0,x_1,n,ok\n1,2\n"),
        (".csv", b"\xff\xfe\n\n"),
        (".csv", b"a\n" + b"b" * 200_000 + b"\n"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, suffix: str, content: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        read(tmp_path, suffix, content)
    assert caught.value.code == "bad-request"


def test_all_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    table = {"x": [[0.1, 2.0], [3.0, 4.0]], "n": [5, -6], "ok": [True, False]}
    raw = io.BytesIO()
    np.savez(raw, **{name: np.array(each) for name, each in table.items()})
    for suffix, content in (
        (".json", json.dumps(table).encode()),
        (".csv", b"n,ok,x_1,x_0\n5,1,2,0.1\n-6,false,4,3\n"),
        (".npz", raw.getvalue()),
    ):
        found = read(tmp_path, suffix, content)
        assert {name: each.tolist() for name, each in found.items()} == {
            **table,
            "x": found["x"].tolist(),
        }
        assert np.allclose(found["x"], table["x"])


def test_numbers_are_written_as_short_as_they_are(tmp_path: Path) -> None:
    columns = {"p": np.array([[0.1, 0.987], [1e-7, 3.0]], np.float32)}
    assert json.loads(to_line(columns)) == {"p": [[0.1, 0.987], [1e-7, 3.0]]}
    write_columns(tmp_path / "answer.csv", columns)
    assert (tmp_path / "answer.csv").read_text() == "p_0,p_1\n0.1,0.987\n1e-07,3.0\n"


def test_a_text_table_is_read_as_it_is_sealed(tmp_path: Path) -> None:
    """Semicolons, decimal commas, another encoding, categories, and columns nobody asked for."""
    schema = Schema(
        (
            Field("x", "float32", (2,)),
            Field("sex", "int64", classes=2, cells=CellRules(categories=("m", "w"))),
        ),
    )
    path = tmp_path / "rows.csv"
    path.write_text(
        "Größe;x_0;x_1;Geschlecht\n1;0,5;1,25;weiblich\n2;-1;2;m\n", "cp1252"
    )
    (tmp_path / "table.toml").write_text(
        '[columns]\nsex = "Geschlecht"\n[synonyms.sex]\n"weiblich" = "w"\n'
    )
    found = read_columns(path, schema, own_table_of(path, None))
    assert found["x"].tolist() == [[0.5, 1.25], [-1, 2]]
    assert found["sex"].tolist() == [1, 0]
    path.write_text("x_0;x_1;sex\n1;2;q\n", "cp1252")
    with pytest.raises(MalformedError, match="'q' is not one of its categories"):
        read_columns(path, schema)


def test_inputs_have_the_cells_of_the_agreements_tables() -> None:
    sex = {"name": "sex", "dtype": "int64", "categories": ["m", "w"]}
    born = {"name": "born", "dtype": "int32", "date": "%Y-%m-%d"}
    table = replace(resource("north", 8), schema={"fields": [sex, born]})
    plain = Schema((Field("sex", "int64"), Field("born", "float32")))
    found = with_known_cells(plain, [table])
    assert found.fields[0].cells.categories == ("m", "w")
    assert found.fields[1] == plain.fields[1]  # another dtype is another input


def test_a_header_of_words_names_the_fields_of_a_model(tmp_path: Path) -> None:
    """As a draft of the schema would; what is twice the same name is nobody's."""
    schema = Schema((Field("mean_dose", "float32"), Field("age", "float32")))
    path = tmp_path / "new.csv"
    path.write_text("Mean dose,AGE\n1.5,30\n")
    columns, inputs = read_inputs(path, schema, SourceOptions())
    assert [each.name for each in inputs.fields] == ["mean_dose", "age"]
    assert (columns["mean_dose"].tolist(), columns["age"].tolist()) == ([1.5], [30.0])
    path.write_text("Mean dose,mean-dose,age\n1.5,2.5,30\n")
    _, inputs = read_inputs(path, schema, SourceOptions())
    assert [each.name for each in inputs.fields] == ["age"]
