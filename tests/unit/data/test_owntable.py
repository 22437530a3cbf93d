"""`table.toml`: how one owner's file is written, which is nobody else's matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.document import parse_schema
from sealift.data.schema.owntable import (
    AS_IT_LOOKS,
    load_own_table,
    own_table_of,
)
from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.csvfiles.draft import draft_own_table
from sealift.data.sources.csvfiles.reader import read_rows, unlisted_texts
from sealift.data.sources.csvfiles.structure import look_at
from sealift.data.sources.problems import Problems
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import draft_schema, open_table
from sealift.errors import MalformedError

SCHEMA = parse_schema(b"""
[[fields]]
name = "age"
dtype = "float32"
[[fields]]
name = "sex"
dtype = "int64"
categories = ["m", "w"]
[[fields]]
name = "born"
dtype = "int32"
date = "%Y-%m-%d"
[[fields]]
name = "cost"
dtype = "float64"
empty = 0
""")
TABLE = """
encoding = "cp1251"
decimal = ","
thousands = "."
units = ["EUR", "%"]
leave_out = ["Bemerkung"]
[columns]
age = "Alter (J)"
cost = "Kosten"
[dates]
born = "%d.%m.%Y"
[synonyms.sex]
"муж" = "m"
"жен" = "w"
"""
ROWS = (
    "Bemerkung;Alter (J);sex;born;Kosten\n"
    "ok;40,5;муж;31.12.1980;1.234,50 EUR\n"
    "ok;1.234;жен;01.02.1990;EUR -12\n"
    ";7;m;01.02.1990;\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(ROWS, "cp1251")
    (tmp_path / "table.toml").write_text(TABLE)
    return tmp_path / "t.csv"


def read(path: Path, schema: Schema, options: SourceOptions) -> dict[str, list]:
    raw = b"".join(open_table(path, schema, options).blocks())
    return {name: column.tolist() for name, column in unpack(raw, schema).items()}


def test_a_file_is_read_as_its_owner_says(path: Path) -> None:
    options = SourceOptions(own=own_table_of(path, None))
    assert read(path, SCHEMA, options) == {
        "age": [40.5, 1234, 7],
        "sex": [0, 1, 0],
        "born": [4017, 7336, 7336],
        "cost": [1234.5, -12, 0],
    }


def test_nothing_of_it_is_agreed(path: Path) -> None:
    own = own_table_of(path, None)
    assert own.schema_here(SCHEMA) != SCHEMA
    assert own.schema_here(SCHEMA).agreed == SCHEMA.agreed
    assert own_table_of(Path("/nowhere/t.csv"), None) == AS_IT_LOOKS


def test_texts_that_have_a_synonym_are_listed(path: Path) -> None:
    own = own_table_of(path, None)
    assert not unlisted_texts(path, SCHEMA, own)
    path.write_text(ROWS.replace("жен", "женщина"), "cp1251")
    assert unlisted_texts(path, SCHEMA, own) == {"sex": {"женщина": 1}}


def test_a_stated_mark_is_the_only_one(tmp_path: Path) -> None:
    """What is not written so is refused, and never read as another number."""
    (tmp_path / "t.csv").write_text("x;y\n1.5;1\n1,5;2\n")
    (tmp_path / "table.toml").write_text('decimal = ","\n')
    schema = parse_schema(
        b'leave_out=["y"]\n[[fields]]\nname = "x"\ndtype = "float32"\n'
    )
    options = SourceOptions(own=own_table_of(tmp_path / "t.csv", None))
    with pytest.raises(MalformedError, match=r"line 2, column x: '1\.5'"):
        open_table(tmp_path / "t.csv", schema, options)
    # Without it nothing in this file decides what a point is.
    (tmp_path / "t.csv").write_text("x;y\n1.234;1\n1,234;2\n")
    with pytest.raises(MalformedError, match="and 1 more cell"):
        open_table(tmp_path / "t.csv", schema)
    (tmp_path / "table.toml").write_text('decimal = ","\nthousands = "."\n')
    options = SourceOptions(own=own_table_of(tmp_path / "t.csv", None))
    assert read(tmp_path / "t.csv", schema, options)["x"] == [1234, np.float32(1.234)]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('colums = "x"', "colums"),
        ('encoding = "klingon"', "encoding"),
        ('encoding = "base64"', "encoding"),
        ('decimal = ";"', "decimal"),
        ('decimal = ","\nthousands = ","', "thousands"),
        ("leave_out = 5", "leave_out"),
        ("[columns]\nage = 5", "columns.age"),
        ("[columns]\nage = []", "columns.age"),
        ('[columns]\nage = ""', "columns.age"),
        ("columns = 5", "columns"),
        ("[dates]\nborn = 5", "dates.born"),
        ("[synonyms]\nsex = 5", "synonyms.sex"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "table.toml").write_text(text)
    with pytest.raises(MalformedError) as caught:
        load_own_table(tmp_path / "table.toml")
    assert caught.value.code == "bad-table-file"
    assert caught.value.field == field
    assert caught.value.fix


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbf", b"# K\xf6ln\n"])
def test_a_table_file_as_editors_save_it(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "table.toml"
    path.write_bytes(raw + b'decimal = ","\n')
    if raw.startswith(b"#"):
        with pytest.raises(MalformedError, match="line 1 is not UTF-8") as caught:
            load_own_table(path)
        assert "UTF-8" in caught.value.fix
    else:
        assert load_own_table(path).decimal == ","


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[columns]\naeg = "Alter"', "columns.aeg"),
        ('[dates]\nage = "%Y-%m-%d"', "dates.age"),
        ('[dates]\nborn = "%H"', "dates.born"),
        ('[columns]\nage = ["a", "b"]', "columns.age"),
        ('[synonyms.sex]\nx = "unknown"', "synonyms.sex"),
    ],
)
def test_what_does_not_fit_the_fields(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "table.toml").write_text(text)
    with pytest.raises(MalformedError) as caught:
        load_own_table(tmp_path / "table.toml").schema_here(SCHEMA)
    assert caught.value.code == "bad-table-file"
    assert str(caught.value).count("table.toml") == 1
    assert caught.value.field == field


def test_bytes_that_are_not_of_the_stated_encoding(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"x\n1\n\x81\n")
    (tmp_path / "table.toml").write_text('encoding = "cp1250"\n')
    own = own_table_of(tmp_path / "t.csv", None)
    with pytest.raises(MalformedError, match="is not cp1250"):
        look_at(tmp_path / "t.csv", Problems("t"), own)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_named_and_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;s\n1,5;a\n2,5;b\n" * 1 + "1,5;a\n2,5;b\n", encoding)
    with pytest.raises(MalformedError, match="looks like UTF-16") as caught:
        draft_schema([path], NO_OPTIONS)
    assert f'encoding = "{encoding}"' in str(caught.value.fix)
    (tmp_path / "table.toml").write_text(f'encoding = "{encoding}"\n')
    options = SourceOptions(own=own_table_of(path, None))
    schema = draft_schema([path], options).schema
    assert read(path, schema, options) == {"x": [1.5, 2.5] * 2, "s": [0, 1] * 2}


DOUBTFUL = {
    "cp1250": ["mężczyzna", "kobieta"],
    "cp1251": ["жен", "муж"],
    "koi8-r": ["жен", "муж"],
    "mac-roman": ["thé", "café"],
    "cp1253": ["άνδρας", "γυναίκα"],
    "cp437": ["Köln", "Säle"],
}


@pytest.mark.parametrize("encoding", DOUBTFUL)
def test_doubt_about_an_encoding_is_said(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{row},{DOUBTFUL[encoding][row % 2]}" for row in range(40)]
    path.write_text("a,b\n" + "\n".join(rows) + "\n", encoding)
    note, *_ = draft_schema([path], NO_OPTIONS).notes
    assert f'encoding = "{encoding}"' in note
    assert any(word in note for word in DOUBTFUL[encoding])
    right = parse_schema(
        'leave_out = ["a"]\n[[fields]]\nname = "b"\ndtype = "int64"\n'
        f"categories = {DOUBTFUL[encoding]}\n".encode()
    )
    with pytest.raises(MalformedError, match="read as Windows-1252"):
        open_table(path, right)
    (tmp_path / "table.toml").write_text(f'encoding = "{encoding}"\n')
    options = SourceOptions(own=own_table_of(path, None))
    assert read(path, right, options)["b"] == [0, 1] * 20
    assert not any(
        "encoding" in each for each in draft_schema([path], options).notes[1:]
    )


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("Größe", "'Größe'"),
        ("façade", "'façade'"),
        ("l\u2019été", "été'"),
        ("25 °C", ""),
        ("m²", ""),
        ("¿qué?", "qué'"),
        ("naïve", "'naïve'"),
    ],
)
def test_western_words_are_an_example_and_no_doubt(
    tmp_path: Path, word: str, shown: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + f"1,{word}\n" * 40, "cp1252")
    note = draft_schema([path], NO_OPTIONS).notes[0]
    assert note.startswith("t.csv: Windows-1252, commas")
    assert "another encoding" not in note
    assert shown in note
    assert ("encoding = " in note) == bool(shown)


@pytest.mark.parametrize(
    ("encoding", "word", "read_as"),
    [
        ("cp1250", "Plzeň", "Plzeò"),
        ("cp1250", "nő", "nõ"),
        ("cp1257", "Rīga", "Rîga"),
        ("cp1255", "שלום", "ùìåí"),
    ],
)
def test_a_word_of_another_encoding_is_shown_as_it_was_read(
    tmp_path: Path, encoding: str, word: str, read_as: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + f"1,{word}\n2,plain\n" * 40, encoding)
    note = draft_schema([path], NO_OPTIONS).notes[0]
    assert f"'{read_as}'" in note
    assert "encoding = " in note
    assert encoding != "cp1255" or f'encoding = "cp1255" reads {word!r}' in note


def test_one_byte_per_letter_is_not_stated_of_utf_8(tmp_path: Path) -> None:
    """It would read other letters, and refuse none of them."""
    path = tmp_path / "t.csv"
    (tmp_path / "table.toml").write_text('encoding = "cp1251"\n')
    options = SourceOptions(own=own_table_of(path, None))
    for raw in ("a,b\n1,муж\n".encode(), "\ufeffa,b\n1,x\n".encode()):
        path.write_bytes(raw)
        with pytest.raises(MalformedError, match="is UTF-8, and table"):
            draft_schema([path], options)
    for raw in ("a,b\n1,муж\n".encode("cp1251"), b"a,b\n1,x\n"):
        path.write_bytes(raw)
        draft_schema([path], options)


def test_a_comma_is_another_byte_in_ebcdic(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n1,234;1\n5,678;2\n", "cp037")
    (tmp_path / "table.toml").write_text('encoding = "cp037"\ndelimiter = ";"\n')
    options = SourceOptions(own=own_table_of(path, None))
    schema = parse_schema(
        b'leave_out=["y"]\n[[fields]]\nname = "x"\ndtype = "float32"\n'
    )
    with pytest.raises(MalformedError, match="'1,234'"):
        open_table(path, schema, options)


AGE = parse_schema(b'[[fields]]\nname = "age"\ndtype = "int8"\n')


def own_of(folder: Path, text: str) -> SourceOptions:
    (folder / "table.toml").write_text(text)
    return SourceOptions(own=load_own_table(folder / "table.toml"))


def test_what_is_left_out_is_there_and_in_no_field(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age;Name\n5;x\n")
    for left_out, words in (("age", "a field uses"), ("Nane", "no column 'Nane'")):
        options = own_of(tmp_path, f'leave_out = ["{left_out}", "Name"]')
        with pytest.raises(MalformedError, match=words) as caught:
            open_table(path, AGE, options)
        assert (caught.value.code, caught.value.field) == (
            "bad-table-file",
            "leave_out",
        )
    assert "Name" in caught.value.fix
    with pytest.raises(MalformedError, match="no column 'Nane'"):
        draft_schema([path], options)
    assert read(path, AGE, own_of(tmp_path, 'leave_out = ["Name"]')) == {"age": [5]}


def test_a_column_that_was_named_is_not_replaced_by_another(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age\n5\n")
    with pytest.raises(MalformedError, match="2 problems") as caught:
        open_table(path, AGE, own_of(tmp_path, '[columns]\nage = "Alter"'))
    assert any("'Alter' is missing" in each for each in caught.value.problems)


def test_rows_to_predict_have_any_other_columns(tmp_path: Path) -> None:
    """Also one that is called like a field, and a table.toml about other fields."""
    path = tmp_path / "t.csv"
    path.write_text("age;Alter;y\n5;6;7\n")
    own = own_of(
        tmp_path, 'leave_out = ["Name"]\n[columns]\nage = "Alter"\nill = "krank"'
    ).own
    assert read_rows(path, AGE, own)["age"].tolist() == [6]


@pytest.mark.parametrize(
    ("cells", "own", "numbers"),
    [
        (["1.234,50", "7,25"], 'thousands = "."\ndecimal = ","\n', [1234.5, 7.25]),
        (["12%", "7.5%"], 'units = ["%"]\n', [12, 7.5]),
        (["$12", "-$7.25"], 'units = ["$"]\n', [12, -7.25]),
        (["1\u00a0234", "7"], 'thousands = " "\n', [1234, 7]),
        (["11 034", "7"], 'thousands = " "\n', [11034, 7]),
        (
            ["1 234,5 zł", "7 zł"],
            'thousands = " "\ndecimal = ","\nunits = ["zł"]\n',
            [1234.5, 7],
        ),
        (["1'234", "7"], 'thousands = "\'"\n', [1234, 7]),
        (["1\u2019234", "7"], 'thousands = "\'"\n', [1234, 7]),
        (
            ["EUR 1,234,568", "EUR 7"],
            'thousands = ","\ndecimal = "."\nunits = ["EUR"]\n',
            [1234568, 7],
        ),
    ],
)
def test_what_looks_like_numbers_is_said_to(
    tmp_path: Path, cells: list[str], own: str, numbers: list[float]
) -> None:
    """With a cell, and with what makes numbers of them."""
    path = tmp_path / "t.csv"
    texts = [cell.replace("7", str(number)) for number in range(80) for cell in cells]
    path.write_text("a;b\n" + "".join(f"1;{text}\n" for text in texts), "utf-8")
    drafted = draft_schema([path], NO_OPTIONS)
    assert drafted.schema.leave_out == ("b",)
    assert "look like numbers" in drafted.notes[-1]
    assert "xa0" not in drafted.notes[-1]
    for line in own.splitlines():
        assert line in drafted.notes[-1]
    (tmp_path / "table.toml").write_text(own)
    options = SourceOptions(own=own_table_of(path, None))
    schema = draft_schema([path], options).schema
    assert [each.name for each in schema.fields] == ["a", "b"]
    assert schema.fields[1].element.kind in ("int", "float")
    values = read(path, schema, options)["b"]
    assert len(values) == 160
    assert values[14:16] == numbers  # where the 7 of the cells is a 7


@pytest.mark.parametrize(
    "text", ["P{}", "text {}", "#{}", "{} rue", "A{}B", "10.0.0.{}", "555-00{}"]
)
def test_what_has_digits_is_not_always_a_number(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n" + "".join(f"1;{text.format(n)}\n" for n in range(10, 90)))
    note = draft_schema([path], NO_OPTIONS).notes[-1]
    assert "look like numbers" not in note
    assert "dates" not in note


def test_brackets_are_said_to_be_a_minus(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n" + "".join(f"1;({n}.5)\n2;{n}.5\n" for n in range(80)))
    note = draft_schema([path], NO_OPTIONS).notes[-1]
    assert "'(0.5)', look like numbers" in note
    assert "minus" in note


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("patient_id", True),
        ("PatientID", True),
        ("Fall-Nr.", True),
        ("valid", False),
        ("", True),
        ("Unnamed: 0", True),
    ],
)
def test_an_identifier_is_noted(tmp_path: Path, name: str, noted: bool) -> None:
    path = tmp_path / "t.csv"
    for tens, expected in ((False, noted), (True, False)):
        rows = "".join(f"{n // 10 if tens else n};1\n" for n in range(200))
        path.write_text(f"{name};y\n{rows}")
        notes = draft_schema([path], NO_OPTIONS).notes
        assert any("identifier" in note for note in notes) == expected


def test_a_draft_names_a_column_for_one_field_and_guesses_none(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Diagnose;Alter;survtime\n" + "1;2;3\n" * 20)
    fields = tuple(Field(name, "float32") for name in ("diag", "diagnosis", "size"))
    text = draft_own_table(look_at(path, Problems("t")), Schema(fields))
    lines = text.splitlines()
    assert '# diag = "Diagnose"' in lines
    assert '# diagnosis = "?"' in lines
    assert '# size = "?"' in lines
    assert '# leave_out = ["Alter", "survtime"]' in lines


def test_units_of_all_columns_are_one_line_of_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;c\n" + "".join(f"{n} mg;{n} zł;1\n" for n in range(80)))
    text = draft_own_table(look_at(path, Problems("t")), None)
    assert '# units = ["mg", "zł"]' in text


def test_a_draft_changes_nothing_until_it_is_changed(
    path: Path, tmp_path: Path
) -> None:
    structure = look_at(path, Problems("t"), own_table_of(path, None))
    for schema in (None, SCHEMA):
        text = draft_own_table(structure, schema)
        (tmp_path / "draft.toml").write_text(text)
        assert load_own_table(tmp_path / "draft.toml") == load_own_table_of_nothing(
            tmp_path
        )
    assert '# leave_out = ["Bemerkung"' in text
    assert "# age = " in text
    lines = (line.removeprefix("# ") for line in text.splitlines())
    kept = [
        line for line in lines if line.startswith(("encoding", "delimiter", "[columns"))
    ]
    (tmp_path / "draft.toml").write_text("\n".join(kept))
    assert load_own_table(tmp_path / "draft.toml").delimiter == ";"


def load_own_table_of_nothing(tmp_path: Path) -> object:
    (tmp_path / "draft2.toml").write_text("")
    from dataclasses import replace

    return replace(load_own_table(tmp_path / "draft2.toml"), source="draft.toml")


MARKED = "age,ward,born\n" + "".join(
    f"{20 + n if n % 7 else '?'},{'ab'[n % 2] if n % 9 else '-'},{'2020-01-02' if n % 8 else '?'}\n"
    for n in range(63)
)


def test_what_a_file_writes_for_nothing_is_an_empty_cell(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(MARKED)
    drafted = draft_schema([path], NO_OPTIONS)
    (note,) = [each for each in drafted.notes if 'missing = ["?"]' in each]
    assert note.startswith("left out: age")
    own = own_of(tmp_path, 'missing = ["?", " - "]\n')
    drafted = draft_schema([path], own)
    fields = {each.name: each for each in drafted.schema.fields}
    assert fields["age"].cells.empty == 0
    assert fields["ward"].cells.categories == ("a", "b", "missing")
    assert fields["born"].cells.date == "%Y-%m-%d"
    found = read_rows(path, drafted.schema, own.own)
    assert found["age"].tolist()[:2] == [0, 21]
    assert found["age_missing"].tolist()[:8] == [True, *[False] * 6, True]
    assert found["ward"].tolist()[:3] == [2, 1, 0]
    assert found["born_missing"].tolist()[:9] == [True, *[False] * 7, True]


def test_a_number_that_stands_for_nothing_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age\n30\n-999\n40\n")
    schema = parse_schema(b'[[fields]]\nname = "age"\ndtype = "int64"\nempty = 0\n')
    own = own_of(tmp_path, 'missing = ["-999"]\n').own
    assert read_rows(path, schema, own)["age"].tolist() == [30, 0, 40]
    assert read_rows(path, schema, NO_OPTIONS.own)["age"].tolist() == [30, -999, 40]


@pytest.mark.parametrize("written", ["missing = [1]", 'missing = [""]', "missing = 7"])
def test_what_stands_for_nothing_is_a_text(tmp_path: Path, written: str) -> None:
    with pytest.raises(MalformedError) as caught:
        own_of(tmp_path, written)
    assert (caught.value.code, caught.value.field) == ("bad-table-file", "missing")


def test_a_cell_without_a_number_says_how_it_may_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age\n30\nunknown\n")
    schema = parse_schema(b'[[fields]]\nname = "age"\ndtype = "int64"\nempty = 0\n')
    with pytest.raises(MalformedError) as caught:
        read_rows(path, schema, NO_OPTIONS.own)
    assert 'missing = ["unknown"]' in str(caught.value)
