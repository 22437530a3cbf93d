"""``job.toml``: every field, and what is wrong with one, by its path."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.attest.level import Level
from sealift.codec import decode, encode
from sealift.errors import MalformedError, PolicyError, UsageError
from sealift.release.agreement import ServersRule
from sealift.release.agreement.training import PrivateSteps
from sealift.train.job.settings import (
    JobTable,
    ServingTable,
    check_servers,
    parse_address,
    parse_job,
    read_job,
)
from sealift.travel.settings import (
    JobSettings,
    RunSettings,
    ServersSettings,
    SlicesSettings,
    Timeouts,
    TrainingSettings,
    TravelSettings,
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
    assert (job.run.lease_s, job.run.work_s) == (60.0, 3600.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"travel": {"orders": "x"}}, "travel.orders"),
        ({"travel": {"order": "random"}}, "travel.order"),
        ({"training": {"epochs": -1}}, "training.epochs"),
        ({"training": {"epochs": 1.0}}, "training.epochs"),
        ({"training": {"seed": True}}, "training.seed"),
        ({"travel": {"lease_s": 20}}, "travel.lease_s"),
        ({"travel": {"buffers": 3}}, "travel.buffers"),
        ({"travel": []}, "travel"),
        ({"run": {"patience": "long"}}, "run.patience"),
        ({"run": {"lease_s": 20}}, "run.lease_s"),
        ({"run": {"work_s": 10**5000}}, ""),
        ({"run": {"advanced": {"lease_s": "20"}}}, "run.advanced.lease_s"),
        ({"run": {"advanced": {"lease_s": date(2026, 1, 1)}}}, "run.advanced.lease_s"),
        ({"run": {"advanced": {"lease_s": float("nan")}}}, "run.advanced.lease_s"),
        ({"run": {"advanced": {"lease_s": 0}}}, "run.advanced.lease_s"),
        ({"name": "Not A Name"}, "name"),
        ({"plan": "ring"}, "plan"),
        ({"slices": {"count": 17}}, "slices.count"),
        ({"slices": {"max_norm": float("inf")}}, "slices.max_norm"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_field_that_does_not_fit(change: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_job({**LEAST, **change})
    assert caught.value.field == field


def test_whole_numbers_are_seconds_too() -> None:
    job = parse_job({**LEAST, "run": {"work_s": 20}})
    assert job.run.work_s == 20.0


def test_what_stands_in_the_advanced_table_counts_and_not_the_patience() -> None:
    run = parse_job(
        {**LEAST, "run": {"patience": "lan", "advanced": {"meet_s": 7}}}
    ).run
    assert (run.meet_s, run.lease_s) == (7.0, 20.0)


@pytest.mark.parametrize(("buffer", "asked"), [("auto", 0), (64, 64)])
def test_a_buffer_may_be_the_accelerators_choice(buffer: object, asked: int) -> None:
    job = parse_job({**LEAST, "travel": {"buffer_bytes": buffer}})
    assert job.travel.asked_bytes == asked


def test_settings_cross_as_they_are() -> None:
    job = parse_job({**LEAST, "run": {"advanced": {"wait_s": 1.5}}})
    assert decode(JobSettings, encode(job.settings)) == job.settings


@pytest.mark.parametrize("text", ["7410", ":7410", "host:", "host:70000", "host:x"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(MalformedError, match="not an address"):
        parse_address(text)


def names(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)]


def test_the_reference_lists_every_field() -> None:
    page = (ROOT / "docs" / "reference" / "job.md").read_text()
    # A field's line says its defaults too; other tables have two columns.
    listed = set(re.findall(r"^\| `([a-zA-Z_.]+)` \|.*\|.*\|", page, re.M))
    tables: dict[str, Any] = {
        "": JobTable.model_fields,
        "training.": names(TrainingSettings),
        "travel.": names(TravelSettings),
        "slices.": names(SlicesSettings),
        "servers.": names(ServersSettings),
        "run.": names(RunSettings),
        "run.advanced.": names(Timeouts),
        "serving.": ServingTable.model_fields,
        "privacy.": names(PrivateSteps),
    }
    found = {
        prefix + name
        for prefix, table in tables.items()
        for name in table
        if f"{prefix}{name}." not in tables
    }
    found = found - {"training.parameters"} | {"parameters"}  # a section of its own
    assert listed == found


def test_a_table_within_tables_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"[{'.'.join('a' * 20_000)}]\n")
    with pytest.raises(MalformedError):
        read_job(path)


APART = ServersSettings(P="p:7000", M="m:7000", Z="[::1]:7000")
RULE = ServersRule(P="cloud-a", M="cloud-b", Z="cloud-c")


def demand(servers: ServersSettings, rule: ServersRule | None, level: Level) -> None:
    agreement = SimpleNamespace(servers=rule, accept=(level,))
    check_servers(servers, cast("Any", agreement))


def test_servers_are_three_each_on_a_host_of_its_own() -> None:
    demand(APART, RULE, Level.UNTRUSTED_GPU)
    together = replace(APART, M="P:7001")
    demand(together, RULE, Level.DEVELOPMENT)
    with pytest.raises(PolicyError, match=r"P and M .*on P") as refused:
        demand(together, RULE, Level.UNTRUSTED_GPU)
    assert refused.value.code == "servers-not-apart"
    for servers, rule in ((replace(APART, Z=""), RULE), (APART, None)):
        with pytest.raises(UsageError) as missing:
            demand(servers, rule, Level.DEVELOPMENT)
        assert missing.value.code == "servers-missing"
