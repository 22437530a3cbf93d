"""Tables that can be read and may mean something else: what a draft says of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.data.sources.source import NO_OPTIONS, Draft
from sealift.data.sources.table import check_tables, draft_schema
from sealift.errors import MalformedError, UsageError

ROWS = 60
NUMBERS = [f"{row * 37 % 101 / 10 + 1:.1f}" for row in range(ROWS)]


def draft(folder: Path, texts: list[str], *, name: str = "v") -> Draft:
    """Of the texts, one after the other, beside a column of numbers."""
    path = folder / "t.csv"
    cells = [texts[row % len(texts)] for row in range(max(ROWS, len(texts)))]
    lines = [f"{cell};{row % 7}.5" for row, cell in enumerate(cells)]
    path.write_text("\n".join([f"{name};w", *lines, ""]), "utf-8")
    return draft_schema([path], NO_OPTIONS)


def mixed(*odd: str) -> list[str]:
    return [
        odd[row % len(odd)] if row % 5 == 0 else NUMBERS[row] for row in range(ROWS)
    ]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (mixed("<0.5", "> 200"), "'<0.5', look like numbers; to use them, write a number"),
        (["<0.5", ">200", "7.1"], "categories, although its cells, such as '<0.5'"),
        (["JA", "ja", "nein"], 'write "ja" = "JA" under [synonyms.v]'),
        (["big city", "big  city", "town"], "look like one category"),
        (["caf\u00e9", "cafe\u0301", "tea"], r'"cafe\u0301" and "caf\u00e9" look like one' ),
        (["ill", "ill\u200b", "well"], "'ill\\u200b' has a character that cannot be seen"),
        (["Yes", "No", "1", "0"], '"No" beside 0 and 1'),
        (["m\ufffdn", "w"], "looks damaged"),
        (["mÃ¤nnlich", "weiblich"], "looks damaged"),
        (mixed("-999"), 'write missing = ["-999"]'),
        (mixed("9999"), 'write missing = ["9999"]'),
        (mixed("#N/A", "--", "?", "#DIV/0!", "None", "unknown"), "missing = ["),
        (["7"], "the same number in every row"),
        ([str(row + 100) for row in range(ROWS)], "it counts the rows"),
        (["20240131", "20240229", "19991201"], 'date = "%Y%m%d"'),
        ([f"{each}-" for each in NUMBERS], "minus before the number"),
        ([f"{each}D+02" for each in NUMBERS], "write e instead of d"),
        ([f"\u2212{each}" for each in NUMBERS], "without the character U+2212"),
        ([f"{each}\u200b" for each in NUMBERS], "without the character U+200B"),
        (["\u0661\u0662", "\u0663"] * 20, "write 12, without the character U+0661"),
        ([f"{120 + row}/{80 + row}" for row in range(ROWS)], "each of the two numbers"),
        ([f"{row % 24}:{row:02}" for row in range(ROWS)], "such as minutes"),
        ([f"[{row}, 2]" for row in range(ROWS)], "a column of each value"),
        (mixed("50%"), "write all cells with the percent sign, or none"),
        ([f"code{row % 200}" for row in range(900)], "more than 50 different texts"),
        (["1.5", ""], "a row without its label does not belong in the table"),
    ],
)  # fmt: skip
def test_what_a_draft_says(tmp_path: Path, texts: list[str], said: str) -> None:
    notes = draft(tmp_path, texts).notes[1:]
    assert any(said in note for note in notes), notes


@pytest.mark.parametrize(
    "texts",
    [
        [*NUMBERS, "999", "999", "700"],  # near the others
        ["-999", "-5", "3", "-999"],  # negative numbers are usual
        [str(row * 2) for row in range(ROWS)],
        ["20240131", "20241331"],  # no month 13
        [str(-(2**63)), str(2**63 - 1)],  # whose difference is no int64
        ["<5", ">5"],  # two categories, and no number
        ["Yes", "No"],
        ["caf\u00e9", "th\u00e9"],
    ],
)
def test_what_is_usual_is_not_doubted(tmp_path: Path, texts: list[str]) -> None:
    assert not draft(tmp_path, texts).notes[1:]


def test_true_and_1_in_one_column_are_one_truth(tmp_path: Path) -> None:
    found = draft(tmp_path, ["TRUE", "0", "false", "1"])
    assert found.schema.fields[0].dtype == "bool"
    check_tables([tmp_path / "t.csv"], found.schema, NO_OPTIONS)


def test_a_second_mark_of_utf_8_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert (
        draft(tmp_path, NUMBERS, name="\ufeff\ufeffv").schema.fields[0].cells.column
        == ""
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v,y\n1,2\n\x1a", "ends with the character 0x1A"),
        (
            "# by a program\n# of today\nv,y\n" + "1,2\n" * 9,
            "line 1: it has 1 cell, and most",
        ),
        (
            "v y\n" + "".join(f"{row}x {row}\n" for row in range(9)),
            "write commas, semicolons, tabs or bars",
        ),
    ],
)
def test_files_that_are_no_table_yet(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(MalformedError) as caught:
        check_tables([path], draft_schema([path], NO_OPTIONS).schema, NO_OPTIONS)
    assert said in f"{caught.value} {caught.value.fix}"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("t.csv.gz", "Unpack"),
        ("t.xlsx", "save the table as CSV"),
        ("t.txt", "ends in .csv"),
    ],
)
def test_kinds_that_are_not_read(tmp_path: Path, name: str, fix: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(UsageError, match=fix):
        draft_schema([tmp_path / name], NO_OPTIONS)
