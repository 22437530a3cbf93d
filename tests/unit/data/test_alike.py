"""Tables of several owners that one model may learn from, and those that it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealift.data.schema.alike import demand_alike
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.data.schema.owntable import OwnTable
from sealift.errors import MalformedError
from sealift.release.agreement import Resource
from tests.unit.train.joints import resource

AGE = {"name": "age", "dtype": "int64", "empty": 0}
GENES = {"name": "genes", "dtype": "int8", "shape": [2], "columns": ["BRCA1", "TP53"]}
SEX = {"name": "sex", "dtype": "int64", "categories": ["f", "m"]}


def table(owner: str, *fields: dict[str, Any]) -> Resource:
    return replace(resource(owner, 8), schema={"fields": list(fields)})


def test_bounds_descriptions_and_columns_are_each_owners_own() -> None:
    other = {**AGE, "min": 0, "max": 99, "description": "years", "column": "Age 0"}
    demand_alike([table("north", AGE, SEX), table("east", other, SEX)])
    german = {"name": "born", "dtype": "int32", "date": "%d.%m.%Y"}
    agreed = {**german, "date": "%Y-%m-%d"}
    demand_alike([table("north", german, GENES), table("east", agreed, GENES)])
    demand_alike([])


def test_elements_mean_the_same_in_all_tables() -> None:
    """Else one owner's first gene is trained as another one's."""
    turned = {**GENES, "columns": ["TP53", "BRCA1"]}
    unlisted = {key: GENES[key] for key in GENES if key != "columns"}
    for other in (turned, unlisted):
        with pytest.raises(MalformedError, match="genes: its schema has") as caught:
            demand_alike([table("north", GENES), table("east", other)])
        assert caught.value.code == "mixed-schemas"


def test_cards_keep_the_order_and_not_the_names() -> None:
    def agreed(**more: Any) -> dict[str, Any]:
        plain = {"fields": [{**GENES, **more}]}
        own = OwnTable(columns={"genes": ("Gen 1", "Gen 2")})
        schema = schema_from_plain(plain)
        assert own.schema_here(schema).agreed == schema.agreed
        assert schema_from_plain(schema_to_plain(schema.agreed)) == schema.agreed
        return schema_to_plain(schema.agreed)["fields"][0]

    one, other = agreed(), agreed(columns=["TP53", "BRCA1"])
    assert "columns" not in one
    assert one["columns_digest"] != other["columns_digest"]
    declared = {key: one[key] for key in one}
    demand_alike([table("north", GENES), table("east", declared)])
    with pytest.raises(MalformedError):
        schema_from_plain({"fields": [{**one, "columns_digest": "x"}]})


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ((SEX, AGE), "sex where north-train has age"),
        ((AGE,), "no field where north-train has sex"),
        (
            (AGE, SEX, {"name": "x", "dtype": "int8"}),
            "x where north-train has no field",
        ),
        (
            ({**AGE, "dtype": "int32"}, SEX),
            'age: dtype is "int32", in north-train "int64"',
        ),
        (({**AGE, "empty": 1}, SEX), "age: empty is 1, in north-train 0"),
        (
            (AGE, {**SEX, "categories": ["m", "f"]}),
            'sex: categories is ["m", "f"], in north-train ["f", "m"]',
        ),
        (
            (AGE, {"name": "sex", "dtype": "int64", "classes": 2}),
            'sex: categories is not said, in north-train ["f", "m"]',
        ),
        (({**AGE, "shape": [2]}, SEX), "age: shape is [2], in north-train not said"),
    ],
)
def test_every_difference_is_named(
    fields: tuple[dict[str, Any], ...], line: str
) -> None:
    with pytest.raises(MalformedError) as caught:
        demand_alike([table("north", AGE, SEX), table("east", *fields)])
    assert caught.value.code == "mixed-schemas"
    found = [*caught.value.problems, str(caught.value)]
    assert any(f"east-train: {line}" in each for each in found)
