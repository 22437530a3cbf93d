"""Texts that a schema's categories do not list, as an owner is shown them."""

from __future__ import annotations

from pathlib import Path

from sealift.data.schema.document import parse_schema
from sealift.data.sources.csvfiles.reader import unlisted_texts

SCHEMA = parse_schema(
    b'[[fields]]\nname = "ward"\ndtype = "int64"\ncategories = ["a", "b"]\n'
    b'[[fields]]\nname = "age"\ndtype = "int64"\n'
)


def counted(folder: Path, text: str) -> dict[str, dict[str, int]]:
    path = folder / "rows.csv"
    path.write_text(text)
    return {name: dict(found) for name, found in unlisted_texts(path, SCHEMA).items()}


def test_texts_are_counted_by_column(tmp_path: Path) -> None:
    rows = ["a,1", "c,2", " c ,3", "d,4", ",5", "b,x"]
    found = counted(tmp_path, "ward,age\n" + "\n".join(rows) + "\n")
    assert found == {"ward": {"c": 2, "d": 1}}


def test_a_table_that_fits_has_none(tmp_path: Path) -> None:
    assert counted(tmp_path, "ward,age\na,1\nb,2\n") == {}


def test_a_column_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert counted(tmp_path, "age\n1\n2\n") == {}
