from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.table import open_table
from sealift.errors import MalformedError

PAIR = Schema((Field("x", "float32", (2,)), Field("n", "int8"), Field("b", "bool")))


def read(tmp_path: Path, text: str | bytes, schema: Schema = PAIR) -> dict[str, list]:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    raw = b"".join(open_table(path, schema).blocks())
    return {name: column.tolist() for name, column in unpack(raw, schema).items()}


def refused(tmp_path: Path, text: str | bytes, schema: Schema = PAIR) -> str:
    with pytest.raises(MalformedError) as caught:
        read(tmp_path, text, schema)
    return "\n".join((str(caught.value), *caught.value.problems))


@pytest.mark.parametrize("header", ["x_0,x_1,n,b", "x0,x1,n,b", " x0, x1 ,n,b"])
def test_both_ways_to_name_elements(tmp_path: Path, header: str) -> None:
    columns = read(tmp_path, f"{header}\n0.5,-1e3, 7 ,True\n1,2,-128,0\n")
    assert columns == {
        "x": [[0.5, -1000.0], [1, 2]],
        "n": [7, -128],
        "b": [True, False],
    }


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    assert read(tmp_path, "b,x1,n,x0\n1,2,3,4\n")["x"] == [[4, 2]]


def test_mark_quotes_line_ends_and_blank_lines(tmp_path: Path) -> None:
    text = '\ufeff"x0",x1,n,b\r\n"1",2,3,1\r\n\r\n4,5,6,0\r\n\r\n'
    assert read(tmp_path, text)["n"] == [3, 6]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("a,2,3,1", "column x_0"),
        (",2,3,1", "column x_0"),
        ("1, ,3,1", "column x_1"),
        ("1e39,2,3,1", "column x_0"),
        ("1e400,2,3,1", "column x_0"),
        ("1_0,2,3,1", "column x_0"),
        ("1,2,3.5,1", "column n"),
        ("1,2,3.000,1", "column n"),
        ("1,2,128,1", "column n"),
        ("1,2,0x3,1", "column n"),
        ("1,2,\u0663,1", "column n"),
        (f"1,2,{'9' * 5000},1", "column n"),
        ("1,2,3,yes", "column b"),
        ("1,2,3,2", "column b"),
    ],
)
def test_wrong_cell_names_line_and_column(
    tmp_path: Path, row: str, column: str
) -> None:
    line = refused(tmp_path, f"x_0,x_1,n,b\n1,2,3,1\n{row}\n1,2,3,1\n")
    assert "line 3" in line
    assert column in line
    assert len(line) < 300


def test_empty_cell_says_what_to_do(tmp_path: Path) -> None:
    assert "Fill the cell" in refused(tmp_path, "x0,x1,n,b\n,2,3,1\n")


def test_infinity_counts_only_when_written(tmp_path: Path) -> None:
    loose = Schema((Field("x", "float32", finite=False),))
    columns = read(tmp_path, "x\ninf\n-Infinity\nnan\n", loose)["x"]
    np.testing.assert_array_equal(columns, [np.inf, -np.inf, np.nan])
    assert "'1e39'" in refused(tmp_path, "x\ninf\n1e39\n", loose)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x0,x1,n\n1,2,3\n", "column 'b'"),
        ("x0,n,b\n1,2,3\n", "column 'x1'"),
        ("n,b\n1,2\n", "column 'x_0'"),
        ("x0,x1,x2,n,b\n1,2,3,4,5\n", "the column 'x2' is not in the schema"),
        ("x0,x1,n,b,n\n1,2,3,4,5\n", "two columns named 'n'"),
        ("x0,x1,n,b\n1,2,3\n", "line 2: it has 3 cells"),
        ("x0,x1,n,b\n1,2,3,1,\n", "line 2: it has 5 cells"),
        ('x0,x1,n,b\n1,2,3,"1\n', "not CSV"),
        ("x0,x1,n,b\n1,2,3,1\n".encode("utf-16")[2:], "looks like UTF-16"),
        ("x0,x1,n,b\n", "no rows"),
    ],
)
def test_wrong_table(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in refused(tmp_path, text)


def test_two_fields_cannot_take_one_column(tmp_path: Path) -> None:
    schema = Schema((Field("x", "int8", (1,)), Field("x_0", "int8")))
    assert "same column" in refused(tmp_path, "x_0\n1\n", schema)


def test_line_numbers_survive_blocks_and_quoted_line_breaks(tmp_path: Path) -> None:
    schema = Schema((Field("n", "int8"),))
    text = 'n\n"1"\n\n2\n300\n'
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(MalformedError, match="line 5, column n: '300'"):
        list(open_table(path, schema).blocks(block_bytes=8))
