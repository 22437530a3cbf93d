"""What programs really write: dates, codes, thousands, empty rows, commas in headers.

Each case was read as something else once, or told as something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.data.schema.document import parse_schema
from sealift.data.schema.schema import Schema
from sealift.data.sources.csvfiles import reader
from sealift.data.sources.source import Draft, SourceOptions
from sealift.data.sources.table import check_tables, draft_schema, open_table
from sealift.errors import MalformedError

OPTIONS = SourceOptions()


def put(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def draft(folder: Path, text: str | bytes) -> Draft:
    return draft_schema([put(folder, text)], OPTIONS)


def fields(found: Draft) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(each.name, each.dtype, each.shape) for each in found.schema.fields]


def read(folder: Path, text: str | bytes, schema: Schema | str) -> list[list[object]]:
    wanted = parse_schema(schema.encode()) if isinstance(schema, str) else schema
    table = open_table(put(folder, text), wanted)
    (block,) = table.reader.columns(1000)
    return [block[each.name].tolist() for each in wanted.fields]


def refused(folder: Path, text: str | bytes, schema: Schema | str) -> MalformedError:
    with pytest.raises(MalformedError) as caught:
        read(folder, text, schema)
    return caught.value


def one(dtype: str, **rules: str) -> str:
    lines = "".join(f'{name} = "{value}"\n' for name, value in rules.items())
    return f'[[fields]]\nname = "x"\ndtype = "{dtype}"\n{lines}'


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "float16"])
def test_a_date_that_its_dtype_does_not_hold_is_refused(
    tmp_path: Path, dtype: str
) -> None:
    text = "x\n31.12.9999\n"
    error = refused(tmp_path, text, one(dtype, date="%d.%m.%Y"))
    assert f"that fits {dtype}" in str(error)
    assert read(tmp_path, text, one("int32", date="%d.%m.%Y")) == [[2932896]]


def test_an_offset_of_a_time_counts(tmp_path: Path) -> None:
    text = "x\n2024-01-01T00:00:00+0200\n2024-01-01T00:00:00+0000\n"
    schema = one("float64", date="%Y-%m-%dT%H:%M:%S%z")
    assert read(tmp_path, text, schema) == [[19723 - 2 / 24, 19723.0]]


@pytest.mark.parametrize("form", ["%d.%m.", "%Y %Y", "%Q", "%Y%", "%H:%M"])
def test_a_form_that_loses_the_day_is_none(form: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_schema(one("float64", date=form).encode())
    assert caught.value.code == "bad-schema"


def test_points_that_look_like_thousands_are_told(tmp_path: Path) -> None:
    text = "cost;y\n1.250;1\n980;2\n12.750;3\n"
    error = refused(tmp_path, text, draft(tmp_path, text).schema)
    assert error.what.startswith("t.csv, line 2, column cost: '1.250' (and 1 more")
    for plain in ("1.250;1\n0.980;2\n", "1.25;1\n980;2\n", "1.250;1\n9800;2\n"):
        good = "cost;y\n" + plain
        read(tmp_path, good, draft(tmp_path, good).schema)


def test_commas_in_a_header_are_no_delimiters(tmp_path: Path) -> None:
    text = "Age, years;Weight, kg\n1,5;2,5\n3,5;4,5\n"
    found = draft(tmp_path, text)
    assert read(tmp_path, text, found.schema) == [[1.5, 3.5], [2.5, 4.5]]
    listed = "id,codes\n1,a;b\n2,a;b\n3,c;d\n4,c;d\n"
    assert [each.name for each in draft(tmp_path, listed).schema.fields] == [
        "id",
        "codes",
    ]


def test_a_draft_keeps_all_digits(tmp_path: Path) -> None:
    long = "x_0,x_1\n123456789,0.5\n987654321,1.5\n"
    found = draft(tmp_path, long)
    assert fields(found) == [("x_0", "int64", ()), ("x_1", "float32", ())]
    options = SourceOptions(vectors=(("x", "x_*"),))
    asked = draft_schema([put(tmp_path, long)], options)
    assert fields(asked) == [("x", "float64", (2,))]
    assert read(tmp_path, long, asked.schema)[0][0] == [123456789, 0.5]
    times = draft(tmp_path, "ts,y\n1700000000123.5,0\n1700000000999.5,1\n")
    assert fields(times)[0] == ("ts", "float64", ())
    short = put(tmp_path, "x_0,x_1\n1,0.5\n2,1.5\n")
    assert fields(draft_schema([short], options)) == [("x", "float32", (2,))]


def test_long_numbers_never_crash(tmp_path: Path) -> None:
    zeros = "0" * 30
    error = refused(tmp_path, f"x\n{zeros}12345678901234567890\n", one("int64"))
    assert error.code == "bad-row"
    text = f"x\n{zeros}7\n-0012\n9223372036854775807\n"
    assert read(tmp_path, text, one("int64")) == [[7, -12, 2**63 - 1]]


def test_codes_with_leading_zeros_are_no_numbers(tmp_path: Path) -> None:
    found = draft(tmp_path, "zip;x\n01067;1\n80331;2\n1067;3\n")
    assert found.schema.leave_out == ("zip",)
    assert "codes" in found.notes[-1]


@pytest.mark.parametrize(
    "dates",
    [
        [f"{day:02}.01.24" for day in range(1, 29)],
        ["01JAN2024", "02JAN2024"],
        ["2024-01-01", "02.01.2024"],
    ],
)
def test_dates_never_become_categories(tmp_path: Path, dates: list[str]) -> None:
    rows = "".join(f"{each},1\n" for each in dates * 10)
    found = draft(tmp_path, f"d,y\n{rows}")
    assert found.schema.leave_out == ("d",)
    assert "dates" in found.notes[1]


def test_rows_of_nothing_are_told(tmp_path: Path) -> None:
    text = "id;lab\n1;2,5\n2;3,5\n;\n;\n"
    found = draft(tmp_path, text)
    with pytest.raises(MalformedError) as caught:
        check_tables([tmp_path / "t.csv"], found.schema, OPTIONS)
    assert "t.csv, line 4: every cell is empty" in caught.value.problems


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a;b\n1;2;\n3;4;\n", "line 1: it has 2 cells, and all lines below have 3"),
        (
            "a\tb\n1\t2\t3\n4\t5\t6\n",
            "line 1: it has 2 cells, and all lines below have 3",
        ),
        ("a,b\n", "has no rows"),
        (
            "a\n" + "".join(f"text {n}\n" for n in range(99)),
            "left out: a: it has mostly",
        ),
        ("sep=;\na;b\n1;2\n", "Delete the first line"),
        (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
        (",".join(f"c{n}x" for n in range(300)) + "\n" + "1," * 299 + "1\n", "300 col"),
    ],
)
def test_a_draft_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(MalformedError) as caught:
        draft(tmp_path, text)
    assert words in "\n".join((str(caught.value), *caught.value.problems))


def test_names_that_meet_are_told_apart(tmp_path: Path) -> None:
    for header in ("X_0,X_1,x_0,x_1", "x_0,x_1,x0,y", f"a,{'q' * 201},b,c"):
        text = f"{header}\n1,2,3,4\n1,2,3,5\n"
        read(tmp_path, text, draft(tmp_path, text).schema)


def test_a_header_over_two_lines_stays_in_its_comment(tmp_path: Path) -> None:
    rows = "".join(f"{n};text {n}\n" for n in range(99))
    found = draft(tmp_path, f'a;"Remark\n(free)"\n{rows}')
    assert found.schema.leave_out == ("Remark\n(free)",)
    assert all("\n" not in note for note in found.notes)


def test_lines_end_as_old_macs_ended_them(tmp_path: Path) -> None:
    text = b"a,b\r1,\xc3\xa4\r2,\xc3\xa4\r3,\xe4\r"
    with pytest.raises(MalformedError) as caught:
        draft(tmp_path, text)
    assert "line 4: the line is not UTF-8" in str(caught.value)


def test_problems_are_told_by_rows_and_counted_for_each_table(tmp_path: Path) -> None:
    both = one("float64") + '[[fields]]\nname = "y"\ndtype = "float64"\n'
    error = refused(tmp_path, "x;y\n" + "1,234;1,234\n" * 25, both)
    assert "line 2, column y" in error.problems[1]
    files = [
        put(tmp_path, "x\n" + "1\n" * 400 + "bad\n" * 25, name)
        for name in ("t3.csv", "t4.csv")
    ]
    with pytest.raises(MalformedError) as caught:
        check_tables(files, parse_schema(one("int64").encode()), OPTIONS)
    assert "t4.csv has 25 problems: the first 20 are shown" in caught.value.problems


def test_a_file_that_shrinks_meanwhile_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "x\n" + "1\n" * 100 + "bad\n")
    original = reader.Structure.lines

    def lines(self: reader.Structure, rows: list[int]) -> list[int]:
        path.write_text("x\n1\n")
        return original(self, rows)

    monkeypatch.setattr(reader.Structure, "lines", lines)
    with pytest.raises(MalformedError, match="changed while it was read"):
        open_table(path, parse_schema(one("int64").encode()))


def test_a_cell_that_turns_bad_is_not_sealed(tmp_path: Path) -> None:
    path = put(tmp_path, "x\n1\n2\n")
    table = open_table(path, parse_schema(one("int64").encode()))
    path.write_text("x\n1\nx\n")
    with pytest.raises(MalformedError, match="changed while it was read"):
        list(table.blocks())
