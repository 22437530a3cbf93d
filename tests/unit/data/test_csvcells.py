"""Text tables as hospitals export them: encodings, decimals, categories, empty cells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealift.data.schema.document import parse_schema
from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Schema
from sealift.data.sources.csvfiles import reader
from sealift.data.sources.table import open_table
from sealift.errors import MalformedError

SCHEMA = """
leave_out = ["Bemerkung"]
[[fields]]
name = "sex"
dtype = "int64"
column = "Geschlecht (m/w)"
categories = ["männlich", "weiblich", "unbekannt"]
empty = "unbekannt"
[[fields]]
name = "age"
dtype = "int16"
min = 0
max = 120
empty = 0
[[fields]]
name = "age_missing"
dtype = "bool"
missing = "age"
[[fields]]
name = "dose"
dtype = "float32"
[[fields]]
name = "seen"
dtype = "int32"
date = "%d.%m.%Y"
"""
HEADER = "Geschlecht (m/w);age;dose;seen;Bemerkung"
ROWS = [
    'männlich;41;1,5;01.02.1970;"gut; sehr\ngut"',
    ";;0,125;31.12.1969;",
    "weiblich;7.0;12;1.1.2000;größer",
]
TEXT = "\n".join((HEADER, *ROWS)) + "\n"
READ = {
    "sex": [0, 2, 1],
    "age": [41, 0, 7],
    "age_missing": [False, True, False],
    "dose": [1.5, 0.125, 12.0],
    "seen": [31, -1, 10957],
}


def schema_of(*fields: str) -> Schema:
    return parse_schema("\n".join(f"[[fields]]\n{each}" for each in fields).encode())


def read(path: Path, raw: bytes | str, schema: Schema | str = SCHEMA) -> dict[str, Any]:
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    made = schema if isinstance(schema, Schema) else parse_schema(schema.encode())
    table = b"".join(open_table(path, made).blocks(block_bytes=100))
    return {name: column.tolist() for name, column in unpack(table, made).items()}


def problems(path: Path, raw: bytes | str, schema: Schema | str = SCHEMA) -> list[str]:
    with pytest.raises(MalformedError) as caught:
        read(path, raw, schema)
    return list(caught.value.problems or (str(caught.value),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_say_the_same(
    path: Path, encoding: str, delimiter: str, end: str
) -> None:
    text = TEXT.replace("gut; sehr\ngut", "gut, sehr gut").replace(";", delimiter)
    assert read(path, text.replace("\n", end).encode(encoding)) == READ


def test_commas_part_cells_or_decimals(path: Path) -> None:
    schema = schema_of('name = "x"\ndtype = "float64"', 'name = "y"\ndtype = "int64"')
    assert read(path, "x,y\n1.5,3.0\n-2,+4\n", schema) == {"x": [1.5, -2], "y": [3, 4]}
    assert read(path, 'x,y\n"1,5",3\n', schema)["x"] == [1.5]
    assert read(path, "x;y\n-1,5e-3;3,0\n", schema) == {"x": [-0.0015], "y": [3]}


@pytest.mark.parametrize(
    ("cells", "doubtful"),
    [
        (["1,234", "5,678"], ["1,234", "5,678"]),
        (["1,234", "0,678"], []),
        (["1,234", "5,6"], []),
        (["1.234", "5.678"], ["1.234", "5.678"]),
        (["1.234", "1000"], []),
        (["1.234", "5,6"], ["1.234"]),
        (["1,234", "5.6"], ["1,234"]),
        (["1.5", "2,5"], []),
        (["1.234,5"], None),
        (["1,234,567"], None),
    ],
)
def test_thousands_are_not_taken_for_decimals(
    path: Path, cells: list[str], doubtful: list[str] | None
) -> None:
    schema = schema_of('name = "x"\ndtype = "float64"', 'name = "y"\ndtype = "bool"')
    text = "x;y\n" + "".join(f"{cell};1\n" for cell in cells)
    if doubtful == []:
        expected = [float(cell.replace(",", ".")) for cell in cells]
        assert read(path, text, schema)["x"] == expected
        return
    found = problems(path, text, schema)
    if doubtful is None:
        assert "is not a number" in found[0]
        return
    (line,) = found
    assert f"column x: {doubtful[0]!r}" in line
    assert "table.toml" in line
    assert ("and 1 more cell of" in line) == (len(doubtful) == 2)


@pytest.mark.parametrize(
    "text", ["31.02.2020", "2020-02-01", "1.1.20", "29.02.2021", "x"]
)
def test_dates_that_are_none(path: Path, text: str) -> None:
    schema = schema_of('name = "d"\ndtype = "int32"\ndate = "%d.%m.%Y"')
    assert (
        "is not a date like %d.%m.%Y that fits int32"
        in problems(path, f"d\n{text}\n", schema)[0]
    )


def test_a_time_of_day_is_a_fraction(path: Path) -> None:
    schema = schema_of('name = "d"\ndtype = "float64"\ndate = "%Y-%m-%d %H:%M"')
    assert read(path, "d\n1970-01-02 06:00\n", schema)["d"] == [1.25]


def test_empty_means_what_the_schema_says(path: Path) -> None:
    fields = [
        'name = "a"\ndtype = "float32"\nfinite = false\nempty = "nan"',
        'name = "b"\ndtype = "bool"\nempty = true',
        'name = "c"\ndtype = "int64"\ncategories = ["NA", "x"]',
        'name = "d"\ndtype = "float64"\nshape = [2]\nempty = -1',
        'name = "e"\ndtype = "bool"\nshape = [2]\nmissing = "d"',
    ]
    found = read(path, "a,b,c,d0,d1\nN/A,null,NA,,2\n", schema_of(*fields))
    assert math.isnan(found.pop("a")[0])
    assert found == {"b": [True], "c": [0], "d": [[-1, 2]], "e": [[True, False]]}
    assert problems(path, "a,b,c,d0,d1\n1,1,,1,1\n", schema_of(*fields)) == [
        "t.csv, line 2, column c: the cell is empty. Fill the cell, or give a "
        "value for empty cells in the schema"
    ]


FIXES = (  # each advice once
    "Give every row one cell per column",
    "Did you mean dose?",
    "or add a field for it",
    "calls it under [columns] in table.toml, a file that you make beside your table",
    "Did you mean weiblich?",
    "Correct the value, or change the schema",
    "dates] in table.toml, a file that you make beside your table",
    'write missing = ["x"] in table.toml, a file that you make beside your table, if it means '
    "that the value is missing",
)


def test_all_is_told_at_once(path: Path) -> None:
    text = (
        "Geschlecht (m/w);age;dosis;seen;Bemerkung;Notiz\n"
        'weibl;41;1,5;1.1.2000;"zwei\nZeilen";\n'
        "\n"
        "weiblich;121;1;heute;;\n"
        "weiblich;41\n"
        "männlich;x;1;1.1.2000;;\n"
    )
    found = problems(path, text)
    for line, fix in zip(found, FIXES, strict=True):
        assert line.endswith(fix)
    assert [line.split(". ")[0] for line in found] == [
        "t.csv, line 6: it has 2 cells, and the header has 6",
        "t.csv, header: the column 'dosis' is not in the schema",
        "t.csv, header: the column 'Notiz' is not in the schema",
        "t.csv, header: column 'dose' is missing",
        "t.csv, line 3, column Geschlecht (m/w): 'weibl' is not one of its categories",
        "t.csv, line 5, column age: 121 is not at most 120",
        "t.csv, line 5, column seen: 'heute' is not a date like %d.%m.%Y that fits int32",
        "t.csv, line 7, column age: 'x' is not a whole number that fits int16",
    ]


def test_a_cell_is_one_problem(path: Path) -> None:
    schema = schema_of('name = "x"\ndtype = "int64"', 'name = "y"\ndtype = "float32"')
    found = problems(path, "x;y\n1,234;1.5\n5;1,234\n", schema)
    assert [line.split(":")[0] for line in found] == [
        "t.csv, line 2, column x",
        "t.csv, line 3, column y",
    ]


def test_a_column_of_wrong_cells_hides_no_other_column(path: Path) -> None:
    schema = schema_of('name = "x"\ndtype = "int8"', 'name = "y"\ndtype = "int8"')
    found = problems(path, "x;y\n" + "300;1\n" * 31 + "1;z\n1;\n", schema)
    assert len(found) == 12
    assert "line 11, column x: '300'" in found[9]
    assert "(and 21 more cells of the column)" in found[9]
    assert "line 33, column y: 'z'" in found[10]
    assert found[11].endswith(
        "Fill the cell, or give a value for empty cells in the schema"
    )


def test_ten_thousand_problems_are_twenty_and_their_number(path: Path) -> None:
    schema = schema_of('name = "x"\ndtype = "int8"')
    path.write_text("x\n" + "300\n" * 10_000 + "1\n")
    with pytest.raises(MalformedError) as caught:
        open_table(path, schema)
    assert "t.csv has 10,000 problems: the first 20 are shown" in str(caught.value)
    assert len(caught.value.problems) == 20
    assert caught.value.problems[19].startswith("t.csv, line 21, column x: '300'")


def test_lines_are_those_of_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind rows of another length, and in a later batch of the reader."""
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 4096)
    schema = schema_of('name = "x"\ndtype = "int8"', 'name = "t"\ndtype = "int8"')
    filler = '1,"2"\n\n' * 20_000
    text = "x,t\n1\n1,2,3\n" + filler + "1\nq,1\n"
    found = problems(path, text, schema)
    assert found[-1].startswith("t.csv, line 40005, column x: 'q'")
    assert found[-2] == "t.csv, line 40004: it has 1 cell, and the header has 2"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"x\n", "has no rows"),
        (b"x\n\xc3\xa4\n\xe4\n\xe4\n", "line 2: the line is UTF-8"),
        (b"x\n\xc3\xa4\n\xc3\xa4\n\xe4\n", "line 4: the line is not UTF-8"),
        (b"x\n\x81\n", "line 2: the line has a character of an unknown encoding"),
        (b"x\n1\0\n", "line 2: a character with the code 0"),
        (b'x\n"1\n2\n', "line 3: not CSV"),
    ],
)
def test_what_is_no_table(path: Path, raw: bytes, words: str) -> None:
    schema = schema_of('name = "x"\ndtype = "int8"')
    assert words in problems(path, raw, schema)[0]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_changes_while_it_is_read(path: Path, same_size: bool) -> None:
    schema = schema_of('name = "x"\ndtype = "int8"')
    path.write_text("x\n1\n2\n")
    blocks: Iterator[bytes] = open_table(path, schema).blocks(block_bytes=8)
    next(blocks)
    path.write_text("x\n1\n3\n" if same_size else "x\n1\n2\n3\n")
    with pytest.raises(MalformedError, match="changed while it was read"):
        list(blocks)


def test_numbers_are_those_that_python_reads(path: Path) -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=500) * 10.0 ** generator.integers(-300, 300, 500)
    schema = schema_of('name = "x"\ndtype = "float64"')
    text = "x\n" + "".join(f"{value!r}\n" for value in values.tolist())
    assert read(path, text, schema)["x"] == values.tolist()
    least, most = -(2**63), 2**63 - 1
    wide = schema_of('name = "x"\ndtype = "int64"')
    assert read(path, f"x\n{least}\n{most}\n007\n", wide)["x"] == [least, most, 7]
    assert len(problems(path, f"x\n{least - 1}\n{most + 1}\n1\n", wide)) == 2
