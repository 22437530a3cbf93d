"""A job's settings and the agreement: each one is agreed on, or says why nobody has to."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from sealift.errors import PolicyError
from sealift.release.agreement import RunTerms
from sealift.release.agreement.training import LIMITS, SETTINGS
from sealift.travel.settings import (
    NOT_AGREED,
    JobSettings,
    RunSettings,
    SlicesSettings,
    TrainingSettings,
    TravelSettings,
    run_terms,
    training_rule_of,
)


def names(table: Any, before: str = "") -> list[str]:
    """Dotted names of all settings."""
    found = []
    for each in fields(table):
        value = getattr(table, each.name)
        name = f"{before}{each.name}"
        found += names(value, f"{name}.") if is_dataclass(value) else [name]
    return found


def test_every_setting_is_agreed_on_or_has_its_reason() -> None:
    agreed, others = set(SETTINGS.values()), set(NOT_AGREED)
    assert agreed | others == set(names(JobSettings()))
    assert not agreed & others
    assert all(len(reason) > 20 for reason in NOT_AGREED.values())


def test_what_a_job_does_not_say_is_what_a_run_has() -> None:
    assert run_terms("job", "travel", JobSettings()) == RunTerms(
        job="job", plan="travel"
    )


def test_the_rule_of_a_job_allows_it_and_nothing_else() -> None:
    slices = SlicesSettings(count=2, sync="step", max_norm=0.5)
    job = JobSettings(
        training=TrainingSettings(epochs=3, batch_rows=64, seed=7, drop_last=True),
        travel=TravelSettings(buffer_bytes=1 << 20, on_missing="wait"),
        slices=slices,
        run=RunSettings(device="cuda:3", checkpoint_every=2),
    )
    rule = training_rule_of(job, "ddp", runs=1)
    rule.require(run_terms("any", "ddp", job))
    assert (rule.plans, rule.runs, rule.device) == (("ddp",), 1, ("cuda",))
    for other in (
        replace(job, training=replace(job.training, seed=8)),
        replace(job, slices=replace(slices, max_norm=0.0)),
        replace(job, travel=replace(job.travel, buffer_bytes="auto")),
        replace(job, run=RunSettings(device="cpu", checkpoint_every=2)),
    ):
        with pytest.raises(PolicyError) as caught:
            rule.require(run_terms("any", "ddp", other))
        assert caught.value.code == "settings-differ"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_which_gpu_a_machine_uses_is_its_own_matter(device: Any) -> None:
    rule = training_rule_of(JobSettings(run=RunSettings(device="cuda")), "local", 1)
    rule.require(run_terms("any", "local", JobSettings(run=RunSettings(device=device))))


def test_limits_are_those_of_a_job() -> None:
    """A side of a range that is left out allows what a job may write, and no more."""
    from sealift.train.job.settings import parse_job

    tables = {name: setting.split(".") for name, setting in SETTINGS.items()}
    for name, (low, high) in LIMITS.items():
        table, field = tables[name]
        base = {"name": "a", "agreement": "a", "bundle": "b"}
        for value in (low, high):
            if name != "buffer_bytes" or value:  # 0 is `auto`
                parse_job({**base, table: {field: value}})
        if name not in ("clip_norm", "max_norm", "sum_bound"):
            for value in (low - 1, high + 1):
                with pytest.raises(Exception, match=field):
                    parse_job({**base, table: {field: value}})
