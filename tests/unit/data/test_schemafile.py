from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sealift import codec
from sealift.data.schema.document import (
    load_schema,
    parse_schema,
    schema_from_plain,
    schema_to_plain,
)
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError, UnavailableError
from sealift.train.output.modelform import FORMAT, form_from_plain

GOOD = """
description = "two fields"
[[fields]]
name = "pixels"
dtype = "float32"
shape = [8, 8]
min = 0
max = 16.0
[[fields]]
name = "label"
dtype = "int64"
classes = 10
description = "which digit"
"""


def refused(text: str) -> MalformedError:
    with pytest.raises(MalformedError) as caught:
        parse_schema(text.encode(), source="schema.toml")
    assert caught.value.code == "bad-schema"
    assert "schema.toml" in str(caught.value)
    return caught.value


def test_a_schema_is_read(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(GOOD)
    assert load_schema(path) == Schema(
        (
            Field("pixels", "float32", (8, 8), minimum=0.0, maximum=16.0),
            Field("label", "int64", classes=10, description="which digit"),
        ),
        "two fields",
    )


def test_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot read"):
        load_schema(tmp_path / "no.toml")


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_bytes(b"#" * (1 << 20) + b"\n" + GOOD.encode())
    with pytest.raises(MalformedError, match="too large"):
        load_schema(path)


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ('name = "pixels"', 'nmae = "pixels"', "fields[0].nmae"),
        ('name = "pixels"\n', "", "fields[0].name"),
        ('name = "pixels"', "name = 3", "fields[0].name"),
        ('name = "label"', 'name = "pixels"', "fields[1].name"),
        ('dtype = "int64"', 'dtype = "int65"', "fields[1].dtype"),
        ("shape = [8, 8]", "shape = 64", "fields[0].shape"),
        ("shape = [8, 8]", "shape = [8, 8.0]", "fields[0].shape"),
        ("shape = [8, 8]", "shape = [8, true]", "fields[0].shape"),
        ("shape = [8, 8]", "shape = [8, 0]", "fields[0].shape"),
        ("min = 0", "min = '0'", "fields[0].min"),
        ("min = 0", "min = nan", "fields[0].min"),
        ("min = 0", "min = 17", "fields[0].min"),
        ("min = 0", f"min = {10**400}", "fields[0].min"),
        ("min = 0", "finite = 1", "fields[0].finite"),
        ("classes = 10", "classes = 10.0", "fields[1].classes"),
        ("classes = 10", "classes = true", "fields[1].classes"),
        ("classes = 10", "finite = true", "fields[1].finite"),
        ('description = "two fields"', "owner = 'me'", "owner"),
        ('description = "two fields"', "description = 1", "description"),
    ],
)
def test_an_error_names_its_path(old: str, new: str, path: str) -> None:
    assert old in GOOD
    assert refused(GOOD.replace(old, new, 1)).field == path


@pytest.mark.parametrize("text", ["", "fields = []", "fields = 3", "fields = [3]"])
def test_no_fields(text: str) -> None:
    assert refused(text).field.startswith("fields")


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a = ", b"[[[[", b"[" * 5000])
def test_not_toml(raw: bytes) -> None:
    with pytest.raises(MalformedError, match="is not TOML"):
        parse_schema(raw)


def test_plain_form_survives_canonical_json() -> None:
    schema = parse_schema(GOOD.encode())
    plain = codec.parse(codec.encode(schema_to_plain(schema)))
    assert schema_from_plain(plain) == schema


def test_plain_form_has_no_defaults() -> None:
    schema = Schema((Field("x", "float32"),))
    assert schema_to_plain(schema) == {"fields": [{"name": "x", "dtype": "float32"}]}


def test_cards_and_schemas_need_no_numpy() -> None:
    program = (
        "import sys, sealift.data.schema.card;"
        "sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_mistyped_key_gets_the_nearest() -> None:
    with pytest.raises(MalformedError, match="Did you mean categories"):
        parse_schema(b'[[fields]]\nname = "x"\ndtype = "int8"\ncategorie = ["a"]\n')
    with pytest.raises(MalformedError, match="Did you mean max_rows"):
        form_from_plain({"format": FORMAT, "max_row": 3})


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('dtype = "float32"\ncategories = ["a"]', "only an integer field"),
        ('dtype = "int8"\ncategories = ["a", "a"]', "all different"),
        ('dtype = "int8"\ncategories = ["a "]', "without outer spaces"),
        (
            'dtype = "int8"\ncategories = ["a"]\nclasses = 2',
            "the categories give the number",
        ),
        ('dtype = "int8"\ncategories = ["a"]\nempty = "b"', "one of the categories"),
        ('dtype = "int8"\nempty = "b"', "must be a category"),
        ('dtype = "int8"\nempty = 0.5', "must be a whole number"),
        ('dtype = "int8"\nempty = true', "must be a whole number"),
        ('dtype = "bool"\nempty = 1', "must be true or false"),
        ('dtype = "int8"\nempty = 300', "does not fit the field"),
        ('dtype = "float32"\nmin = 1\nempty = 0', "does not fit the field"),
        ('dtype = "float32"\nempty = inf', "does not fit the field"),
        ('dtype = "float32"\nempty = "nan"', "finite = false"),
        ('dtype = "bool"\nmissing = "y"', "another field of the same shape"),
        ('dtype = "bool"\nmissing = "z"', "another field of the same shape"),
        ('dtype = "int8"\nmissing = "y"', "a bool field"),
        ('dtype = "bool"\ndate = "%Y"', "a number of days"),
        ('dtype = "int8"\ndate = "Y-m-d"', "not a date format"),
        ('dtype = "int32"\ndate = "%d.%m.%Y %H:%M"', "needs a float64 field"),
        ('dtype = "int8"\ncolumn = " x"', "a column's name"),
        ('dtype = "int8"\ncategories = "a"', "not a list"),
        ('dtype = "int8"\nempty = [1]', "a truth value or text"),
    ],
)
def test_rules_of_cells_that_mean_nothing(field: str, words: str) -> None:
    text = f'[[fields]]\nname = "x"\n{field}\n[[fields]]\nname = "y"\ndtype = "int8"\n'
    with pytest.raises(MalformedError, match=re.escape(words)) as caught:
        parse_schema(text.encode())
    assert caught.value.code == "bad-schema"
