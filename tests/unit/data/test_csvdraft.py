"""Drafts of schemas: what the text of a table looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.data.schema.schema import Schema
from sealift.data.sources.source import NO_OPTIONS, Draft, SourceOptions
from sealift.data.sources.table import check_tables, draft_schema, open_table
from sealift.errors import MalformedError, UsageError


def draft(tmp_path: Path, **columns: list[str]) -> Draft:
    path = tmp_path / "t.csv"
    rows = zip(*columns.values(), strict=True)
    text = "\n".join(";".join(row) for row in [tuple(columns), *rows])
    path.write_text(text + "\n")
    found = draft_schema([path], NO_OPTIONS)
    again = schema_from_plain(schema_to_plain(found.schema))
    assert again == found.schema
    return found


def plain(schema: Schema) -> list[dict[str, object]]:
    fields: list[dict[str, object]] = schema_to_plain(schema)["fields"]
    return fields


def cells(*texts: str, times: int = 20) -> list[str]:
    return list(texts) * times


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        (("1", "-2"), {"dtype": "int64"}),
        (("1.0", "2"), {"dtype": "int64"}),
        (("1.5", "2"), {"dtype": "float32"}),
        (("1,5", "2"), {"dtype": "float32"}),
        (("1", *["2"] * 18, "97.5"), {"dtype": "float32"}),
        (("1e300", "2.5"), {"dtype": "float64"}),
        (("true", "False"), {"dtype": "bool"}),
        (("m", "w"), {"dtype": "int64", "categories": ["m", "w"]}),
        (("2020-01-31", "1999-12-01"), {"dtype": "int32", "date": "%Y-%m-%d"}),
        (("31.01.2020", "01.02.2020"), {"dtype": "int32", "date": "%d.%m.%Y"}),
        (("31/01/2020", "01/02/2020"), {"dtype": "int32", "date": "%d/%m/%Y"}),
        (
            ("2020-01-31 10:00:00", "1999-12-01 11:00:00"),
            {"dtype": "float64", "date": "%Y-%m-%d %H:%M:%S"},
        ),
    ],
)
def test_a_column_is_what_its_cells_are(
    tmp_path: Path, texts: tuple[str, ...], field: dict[str, object]
) -> None:
    column = cells(*texts)
    found = draft(tmp_path, x=column, z=["1"] * len(column)).schema
    assert plain(found)[0] == {"name": "x", **field}
    assert open_table(tmp_path / "t.csv", found).rows == len(column)


def test_a_column_with_one_text_is_noted(tmp_path: Path) -> None:
    found = draft(tmp_path, x=cells("a", "a"), y=cells("b", "c"), z=cells("d", ""))
    assert plain(found.schema)[0]["categories"] == ["a"]
    noted = [each for each in found.notes if "the same text in every row" in each]
    assert len(noted) == 1
    assert noted[0].startswith("x: ")
    assert open_table(tmp_path / "t.csv", found.schema).rows == 40


def test_what_sas_writes_where_nothing_is(tmp_path: Path) -> None:
    found = draft(tmp_path, x=cells("1", "."), y=cells("a", "b")).schema
    assert plain(found)[0] == {"name": "x", "dtype": "int64", "empty": 0}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([f"P{number}" for number in range(40)], "mostly different"),
        ([f"t{number % 21}" for number in range(40)], "mostly different"),
        ([f"t{number % 51}" for number in range(400)], "more than 50"),
        (cells("01/02/2020", "03/04/2020"), "two possible formats"),
        (cells("", "NA"), "all its cells are empty"),
    ],
)
def test_what_makes_no_field_is_left_out(
    tmp_path: Path, texts: list[str], why: str
) -> None:
    found = draft(tmp_path, x=texts, z=["1"] * len(texts))
    assert found.schema.leave_out == ("x",)
    assert [each["name"] for each in plain(found.schema)] == ["z"]
    assert any(why in note for note in found.notes)
    check_tables([tmp_path / "t.csv"], found.schema, NO_OPTIONS)


def test_twenty_texts_in_forty_rows_are_categories(tmp_path: Path) -> None:
    """The control of the above, on its edge."""
    texts = [f"t{number % 20}" for number in range(40)]
    found = draft(tmp_path, x=texts, z=texts)
    assert len(found.schema.fields[0].cells.categories) == 20


def test_empty_cells_get_a_rule_and_an_indicator(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        n=cells("1", "", "3"),
        t=cells("a", "", "missing"),
        d=cells("31.01.2020", "NA", "01.02.2020"),
    )
    assert plain(found.schema) == [
        {"name": "n", "dtype": "int64", "empty": 0},
        {"name": "n_missing", "dtype": "bool", "missing": "n"},
        {
            "name": "t",
            "dtype": "int64",
            "categories": ["a", "missing", "missing_"],
            "empty": "missing_",
        },
        {"name": "d", "dtype": "int32", "empty": 0, "date": "%d.%m.%Y"},
        {"name": "d_missing", "dtype": "bool", "missing": "d"},
    ]
    assert open_table(tmp_path / "t.csv", found.schema).rows == 60


def test_names_as_they_are_become_names_of_fields(tmp_path: Path) -> None:
    names = [
        "Größe (cm)",
        "größe_cm",
        "2nd",
        "Pixel_0",
        "Pixel_1",
        "Pixel_2",
        "x0",
        "x",
    ]
    found = draft(tmp_path, **{name: cells("1.5", "2") for name in names}).schema
    assert [(each.name, each.cells.column, each.shape) for each in found.fields] == [
        ("grosse_cm", "Größe (cm)", ()),
        ("grosse_cm_2", "größe_cm", ()),
        ("c_2nd", "2nd", ()),
        ("pixel", "Pixel", (3,)),
        ("x0", "", ()),
        ("x", "", ()),
    ]
    assert open_table(tmp_path / "t.csv", found).rows == 40
    assert all(not each.cells.column for each in found.agreed.fields)


@pytest.mark.parametrize(
    "names", [["icd_10", "icd_11"], ["x_0", "x1"], ["x_1", "x_2"], ["x_00", "x_01"]]
)
def test_numbers_in_names_that_count_nothing(tmp_path: Path, names: list[str]) -> None:
    found = draft(tmp_path, **{name: cells("1.5", "2") for name in names}).schema
    assert [each.name for each in found.fields] == names
    assert open_table(tmp_path / "t.csv", found).rows == 40


def test_columns_without_a_name_are_numbered(tmp_path: Path) -> None:
    """As pandas writes its index, and spreadsheets an end of line."""
    path = tmp_path / "t.csv"
    path.write_text(";x;\n" + "".join(f"{row};1.5;\n" for row in range(20)))
    found = draft_schema([path], NO_OPTIONS).schema
    assert [(each.name, each.cells.column) for each in found.fields] == [
        ("column_1", "column 1"),
        ("x", ""),
    ]
    assert found.leave_out == ("column 3",)
    assert open_table(path, found).rows == 20


def test_the_few_cells_that_are_unlike_their_column_are_told(tmp_path: Path) -> None:
    texts = [str(number) for number in range(37)] + ["unbekannt", "ca. 5", "--"]
    found = draft(tmp_path, x=texts, z=["1"] * 40)
    with pytest.raises(MalformedError, match="3 problems") as caught:
        check_tables([tmp_path / "t.csv"], found.schema, NO_OPTIONS)
    assert [line.split(":")[0] for line in caught.value.problems] == [
        f"t.csv, line {line}, column x" for line in (39, 40, 41)
    ]


def test_one_draft_for_training_and_heldout_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;y\n" + "r;1\ns;2\n" * 10)
    (tmp_path / "b.csv").write_text("y,x\n" + "1.5,q\n2,r\n" * 10)
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    found = draft_schema(paths, NO_OPTIONS).schema
    assert found.fields[0].cells.categories == ("q", "r", "s")
    assert found.fields[1].dtype == "float32"
    check_tables(paths, found, NO_OPTIONS)
    alone = draft_schema(paths[:1], NO_OPTIONS).schema
    with pytest.raises(MalformedError) as caught:
        check_tables(paths, alone, NO_OPTIONS)
    assert caught.value.problems  # 'q', and numbers that are not whole
    (tmp_path / "b.csv").write_text("y,x\n1,r\n2,q\n")
    (tmp_path / "a.csv").write_text("x;y\nr;1\nq;2\n")
    with pytest.raises(MalformedError, match="2 tables do not fit") as caught:
        check_tables(paths, alone, NO_OPTIONS)
    assert len(caught.value.problems) == 2


def test_options_of_other_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(UsageError, match="--fields cannot be used with"):
        draft_schema([tmp_path / "a.csv"], SourceOptions(fields=(("x", "x"),)))
    with pytest.raises(UsageError, match="several"):
        draft_schema([tmp_path / "a.npz", tmp_path / "b.npz"], NO_OPTIONS)


def test_a_draft_tells_no_value_of_a_number(tmp_path: Path) -> None:
    texts = [f"{1000 + number * 137.13:.2f}" for number in range(50)]
    assert plain(draft(tmp_path, x=texts, z=texts).schema)[0] == {
        "name": "x",
        "dtype": "float32",
    }
