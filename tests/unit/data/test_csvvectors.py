"""Columns that become one field: asked for, or where nothing speaks against it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.document import parse_schema, schema_to_toml
from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Schema
from sealift.data.sources.source import Draft, SourceOptions
from sealift.data.sources.table import draft_schema, open_table
from sealift.errors import MalformedError, UsageError


def draft(tmp_path: Path, header: str, row: str, *vectors: tuple[str, str]) -> Draft:
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n" + f"{row}\n" * 30)
    return draft_schema([path], SourceOptions(vectors=vectors))


def names(schema: Schema) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.name, each.shape) for each in schema.fields]


def test_a_table_of_numbered_columns_stays_as_it_is(tmp_path: Path) -> None:
    """Its label is one of them, and nobody but the owner knows which."""
    header = ",".join(f"c{place}" for place in range(20))
    found = draft(tmp_path, header, ",".join(["1.5"] * 20))
    assert names(found.schema) == [(f"c{place}", ()) for place in range(20)]
    assert "--vector c=c0..c19" in found.notes[-1]
    asked = draft(tmp_path, header, ",".join(["1.5"] * 20), ("x", "c0..c18"))
    assert names(asked.schema) == [("x", (19,)), ("c19", ())]
    assert "one field of 19 elements" in asked.notes[-1]


def test_another_type_among_numbered_columns_is_a_doubt(tmp_path: Path) -> None:
    found = draft(tmp_path, "id,c0,c1,c2", "a,1.5,2.5,1")
    assert names(found.schema) == [("id", ()), ("c0", ()), ("c1", ()), ("c2", ())]
    assert "different types" in found.notes[-1]


def test_numbered_columns_beside_others_are_one_field(tmp_path: Path) -> None:
    found = draft(tmp_path, "x_0,x_1,x_2,label", "1.5,2.5,3.5,1")
    assert names(found.schema) == [("x", (3,)), ("label", ())]
    assert "x: one field of 3 elements, from x_0 to x_2" in found.notes


def test_three_thousand_columns_with_names_of_their_own(tmp_path: Path) -> None:
    genes = [f"G{place * 7919 % 3000}A" for place in range(3000)]
    header = ",".join([*genes, "ill"])
    row = ",".join(f"{place}.5" for place in range(3000)) + ",1"
    with pytest.raises(MalformedError) as caught:
        draft(tmp_path, header, row)
    assert "3,001 columns would become fields" in str(caught.value)
    asked = f"values={genes[0]}..{genes[-1]}"
    assert f"--vector {asked}" in str(caught.value)
    found = draft(tmp_path, header, row, ("genes", f"{genes[0]}..{genes[-1]}")).schema
    assert names(found) == [("genes", (3000,)), ("ill", ())]
    assert parse_schema(schema_to_toml(found).encode()) == found
    assert not found.agreed.fields[0].cells.columns
    raw = b"".join(open_table(tmp_path / "t.csv", found).blocks())
    assert np.array_equal(unpack(raw, found)["genes"][29], np.arange(3000) + 0.5)
    # Elements are found by their names, wherever they stand.
    turned = tmp_path / "turned.csv"
    columns = ",".join(reversed([*genes, "ill"]))
    turned.write_text(f"{columns}\n" + ",".join(reversed(row.split(","))) + "\n")
    raw = b"".join(open_table(turned, found).blocks())
    assert np.array_equal(unpack(raw, found)["genes"][0], np.arange(3000) + 0.5)


def test_a_label_like_other_columns_is_not_suggested_as_an_element(
    tmp_path: Path,
) -> None:
    header = ",".join([*(f"g{chr(97 + n % 26)}{n}x" for n in range(300)), "label"])
    with pytest.raises(MalformedError) as caught:
        draft(tmp_path, header, ",".join(["1.5"] * 301))
    assert "values=ga0x..gn299x" in str(caught.value.fix)


@pytest.mark.parametrize("pattern", ["z*", "a..z", "a", "t*"])
def test_a_vector_of_columns_that_cannot_be_one(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="--vector"):
        draft(tmp_path, "a,b,t1,t2,c", "1,2,u,v,3", ("x", pattern))


def test_columns_of_a_field_are_as_many_as_its_elements() -> None:
    text = '[[fields]]\nname = "x"\ndtype = "int8"\nshape = [2]\ncolumns = ["a"]\n'
    with pytest.raises(MalformedError, match="2 elements"):
        parse_schema(text.encode())
    twice = text.replace('["a"]', '["a", "a"]')
    with pytest.raises(MalformedError, match="different"):
        parse_schema(twice.encode())
