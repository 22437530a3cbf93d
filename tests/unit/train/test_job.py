"""``job.toml``: every field, and what is wrong with one, by its path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sealift.errors import MalformedError
from sealift.train.settings import (
    JobTable,
    ServingTable,
    TrainingTable,
    TravelTable,
    parse_address,
    parse_job,
    read_job,
)

ROOT = Path(__file__).parents[3]
LEAST: dict[str, Any] = {"name": "job", "agreement": "a.json", "bundle": "code"}


def test_defaults_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('name = "job"\nagreement = "a.json"\nbundle = "/else/code"\n')
    job = read_job(path)
    assert job.agreement == str(tmp_path / "a.json")
    assert job.bundle == "/else/code"
    assert job.output == str(tmp_path / "run")
    assert job.plan == "travel"
    assert job.address == ("127.0.0.1", 7410)
    assert job.travel_settings().lease_s == 60.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"travel": {"orders": "x"}}, "travel.orders"),
        ({"travel": {"order": "random"}}, "travel.order"),
        ({"training": {"epochs": -1}}, "training.epochs"),
        ({"training": {"epochs": 1.0}}, "training.epochs"),
        ({"training": {"seed": True}}, "training.seed"),
        ({"travel": {"lease_s": "20"}}, "travel.lease_s"),
        ({"travel": {"lease_s": float("nan")}}, "travel.lease_s"),
        ({"name": "Not A Name"}, "name"),
        ({"plan": "ddp"}, "plan"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_field_that_does_not_fit(change: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_job({**LEAST, **change})
    assert caught.value.field == field


def test_whole_numbers_are_seconds_too() -> None:
    job = parse_job({**LEAST, "travel": {"lease_s": 20}})
    assert job.travel.lease_s == 20.0


@pytest.mark.parametrize("text", ["7410", ":7410", "host:", "host:70000", "host:x"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(MalformedError, match="not an address"):
        parse_address(text)


def test_the_reference_lists_every_field() -> None:
    page = (ROOT / "docs" / "reference" / "job.md").read_text()
    listed = set(re.findall(r"^\| `([a-z_.]+)`", page, re.M))
    tables = {
        "": JobTable,
        "training.": TrainingTable,
        "travel.": TravelTable,
        "serving.": ServingTable,
    }
    fields = {
        prefix + name
        for prefix, table in tables.items()
        for name in table.model_fields
        if name not in ("training", "travel", "serving")
    }
    assert listed == fields
