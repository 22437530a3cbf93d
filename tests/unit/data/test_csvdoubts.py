"""Numbers that could be others than they look: refused until their owner decides."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import as_file, files
from pathlib import Path

import pyarrow as pa
import pytest

from sealift.data.schema.document import parse_schema
from sealift.data.schema.owntable import load_own_table, own_table_of
from sealift.data.schema.rows import unpack
from sealift.data.sources.csvfiles import quick
from sealift.data.sources.csvfiles.quick import QuickMarks
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import check_tables, draft_schema, open_table
from sealift.errors import MalformedError

X = parse_schema(b'[[fields]]\nname = "x"\ndtype = "float64"\n')
Y = parse_schema(b'leave_out = ["y"]\n[[fields]]\nname = "x"\ndtype = "float64"\n')


def read(folder: Path, text: str, own: str = "") -> list[float]:
    path = folder / "t.csv"
    path.write_text(text)
    (folder / "table.toml").write_text(own)
    options = SourceOptions(own=own_table_of(path, None))
    schema = Y if ";" in text else X
    return unpack(b"".join(open_table(path, schema, options).blocks()), schema)[
        "x"
    ].tolist()


def refused(folder: Path, text: str, own: str = "") -> MalformedError:
    with pytest.raises(MalformedError) as caught:
        read(folder, text, own)
    return caught.value


SALARIES = "x;y\n30.000;1\n31.037;2\n-2.500;3\n"


def test_thousands_of_german_programs_are_not_read_as_thousandths(
    tmp_path: Path,
) -> None:
    error = refused(tmp_path, SALARIES)
    assert error.what.startswith("t.csv, line 2, column x: '30.000' (and 2 more cells")
    assert 'thousands = "."' in error.fix
    assert 'decimal = "."' in error.fix
    drafted = draft_schema([tmp_path / "t.csv"], NO_OPTIONS)
    assert not drafted.fits
    with pytest.raises(MalformedError, match="column x"):
        check_tables([tmp_path / "t.csv"], drafted.schema, NO_OPTIONS)
    assert read(tmp_path, SALARIES, 'thousands = "."') == [30000, 31037, -2500]
    assert read(tmp_path, SALARIES, 'decimal = "."') == [30, 31.037, -2.5]
    # One stated mark decides the other: 1,234 is not doubtful any more.
    both = "x;y\n1.234;1\n1,234;2\n"
    assert "thousands" in refused(tmp_path, both).fix
    assert read(tmp_path, both, 'thousands = "."') == [1234, 1.234]
    # A delimiter that is a comma is of a program that writes decimal points.
    assert read(tmp_path, "x\n30.000\n") == [30]


@pytest.mark.parametrize("mark", [".", ","])
def test_a_number_below_one_has_no_thousands(tmp_path: Path, mark: str) -> None:
    own = f'thousands = "{mark}"'
    error = refused(tmp_path, f"x;y\n1{mark}234;1\n0{mark}123;2\n", own)
    assert error.what.startswith(f"t.csv, line 3, column x: '0{mark}123'")
    assert read(tmp_path, f"x;y\n1{mark}234;1\n", own) == [1234]


UNITS = 'units = ["g", "mg"]'


@pytest.mark.parametrize("rows", [1, 100_000])
def test_two_units_of_a_column_are_not_dropped(tmp_path: Path, rows: int) -> None:
    """Also where they are in different blocks of a file."""
    text = "x;y\n" + "500 mg;1\n" * rows + "0.5 g;2\n"
    error = refused(tmp_path, text, UNITS)
    assert error.what.startswith(f"t.csv, line {rows + 2}, column x: the column has")
    assert "mg and g" in error.what
    assert read(tmp_path, "x;y\n500 mg;1\n7;2\n", UNITS) == [500, 7]
    options = SourceOptions(own=own_table_of(tmp_path / "t.csv", None))
    assert not draft_schema([tmp_path / "t.csv"], options).fits


def test_two_units_are_never_advised(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{n};{n} mg\n{n};{n / 100} g\n" for n in range(1, 60)]
    path.write_text("a;b\n" + "".join(rows))
    note = draft_schema([path], NO_OPTIONS).notes[-1]
    assert "units =" not in note
    assert "convert them to one unit: the column has mg and g" in note


@pytest.mark.parametrize("unit", ["", "-", "+", "5", "m2", ".", "per cent", "e", "E"])
def test_what_is_part_of_a_number_is_no_unit(tmp_path: Path, unit: str) -> None:
    (tmp_path / "table.toml").write_text(f'units = ["{unit}"]')
    with pytest.raises(MalformedError) as caught:
        load_own_table(tmp_path / "table.toml")
    assert (caught.value.code, caught.value.field) == ("bad-table-file", "units")


def test_marks_are_counted_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else blocks that meet forget each other's cells, and doubt is lost."""
    monkeypatch.setattr(quick, "_points", lambda texts: (1, 1, 0))
    marks = QuickMarks(commas=False)
    texts = pa.array(["1.234"])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: marks.look(texts, 0), range(20_000)))
    sys.setswitchinterval(interval)
    assert marks._columns[0] == (20_000, 20_000, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04\x14\0\x06\0" + bytes(90), "an Excel workbook"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "of the old kind"),
        (b"\x1f\x8b\x08\0abc", "compressed (gzip)"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"\xef\xbb\xbf<HTML><body><table>", "a web page"),
        (b"<?xml version='1.0'?>\n<Workbook>", "a web page or XML"),
    ],
)
def test_a_file_with_the_name_of_a_table_is_called_what_it_is(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(MalformedError) as caught:
        draft_schema([path], NO_OPTIONS)
    assert said in str(caught.value)
    assert caught.value.code == "bad-table"


@pytest.mark.parametrize("name", ["PAR1", "BZh", "PK", "<5 years", "%PDF"])
def test_a_column_may_have_such_a_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{name},y\n1,2\n3,4\n")
    assert draft_schema([path], NO_OPTIONS).schema.fields[1].name == "y"


@pytest.mark.parametrize(
    ("header", "doubted"),
    [("37,0.5", True), ("0,1", False), ("1,2", False), ("7,7.5", True), ("x,2020", False), ("x,2020.5", True), ("age,dose", False)],
)  # fmt: skip
def test_a_first_line_of_values_is_doubted(
    tmp_path: Path, header: str, doubted: bool
) -> None:
    """Programs that write columns without names count them."""
    path = tmp_path / "t.csv"
    path.write_text(header + "\n" + "".join(f"{n},{n}.5\n" for n in range(30)))
    notes = draft_schema([path], NO_OPTIONS).notes
    assert any("an unusual name of a column" in each for each in notes) is doubted


def test_a_title_above_the_names_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Ward 3\nage,dose\n" + "1,2\n" * 50)
    with pytest.raises(MalformedError) as caught:
        draft_schema([path], NO_OPTIONS)
    assert "delete what stands above the columns' names" in str(caught.value)
    assert len(caught.value.problems) <= 1


def test_notes_above_the_names_are_one_line(tmp_path: Path) -> None:
    """As statistical offices write: notes of several lengths, then the names."""
    path = tmp_path / "t.csv"
    notes = "Series: unemployed\nArea: all\nAge,16 and over\n\n"
    path.write_text(notes + "series,year,value,\n" + "u,1959,5.8\n" * 50)
    with pytest.raises(MalformedError) as caught:
        draft_schema([path], NO_OPTIONS)
    assert "t.csv, line 1: it has 1 cell, and most lines" in str(caught.value)
    assert len(caught.value.problems) <= 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("age dose\n" + "".join(f"{n} 0.5\n" for n in range(60)), "bad-schema"),
        ('"age" "dose"\n' + '"37" "0.5"\n' * 20, "bad-table"),
    ],
)
def test_spaces_between_cells_are_suspected(
    tmp_path: Path, text: str, code: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(MalformedError) as caught:
        draft_schema([path], NO_OPTIONS)
    assert caught.value.code == code
    assert "spaces" in str(caught.value)


def test_truth_is_no_date(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("event,y\n" + "True,1.5\nFalse,2.5\n" * 20)
    draft = draft_schema([path], NO_OPTIONS)
    assert draft.schema.fields[0].dtype == "bool"
    assert not any("event" in each for each in draft.notes)


def test_a_first_line_of_other_length_than_all_rows_is_one_line(tmp_path: Path) -> None:
    """R leaves the names of rows without a name; scikit-learn's files begin with counts."""
    written_by_r, wine = tmp_path / "r.csv", files("sklearn.datasets.data")
    written_by_r.write_text("age,dose\n" + "".join(f"{n},20,0.5\n" for n in range(50)))
    with as_file(wine / "wine_data.csv") as counted:
        for path in (written_by_r, counted):
            with pytest.raises(MalformedError) as caught:
                draft_schema([path], NO_OPTIONS)
            assert f"{path.name}, line 1: it has" in str(caught.value)
            assert "as R writes names of rows" in str(caught.value)
            assert len(caught.value.problems) <= 1
