"""What a job needs of its agreement is known, and asked, before anything starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.data.schedule.visits import plan_job
from sealift.errors import PolicyError, SealiftError
from sealift.release.agreement import Agreement
from sealift.release.agreement.resources import GroupRule
from sealift.train.plans import (
    PLANS,
    Coverage,
    PlanName,
    PlannedWork,
    require_planned,
)
from sealift.travel.settings import (
    JobSettings,
    SlicesSettings,
    TrainingSettings,
    TravelSettings,
    training_rule_of,
)
from tests.unit.train.test_private_jobs import TERMS
from tests.worlds.consortium import OUTPUT, make_consortium

AGREEMENT = make_consortium(("ada", "bern"), cell_rows=4).agreement


def agreement_for(
    settings: JobSettings, plan: PlanName = "travel", **output: object
) -> Agreement:
    rule = replace(OUTPUT, **output)  # type: ignore[arg-type]
    training = training_rule_of(settings, plan, runs=1)
    owners = len(AGREEMENT.data_owners)
    group = GroupRule(owners, "owner") if plan == "ddp" else None
    return replace(AGREEMENT, output=rule, training=training, group=group)


def job(epochs: int, **fields: object) -> JobSettings:
    training = TrainingSettings(epochs=epochs, batch_rows=16)
    return JobSettings(training=training, **fields)  # type: ignore[arg-type]


@given(
    epochs=st.integers(0, 5),
    every=st.integers(0, 3),
    prepare=st.booleans(),
    mixed=st.booleans(),
    cells=st.integers(1, 4),
)
def test_it_is_the_whole_plan_without_making_it(
    *, epochs: int, every: int, prepare: bool, mixed: bool, cells: int
) -> None:
    agreement = AGREEMENT
    longest = max(each.longest_cell_bytes for each in agreement.resources)
    settings = JobSettings(
        training=TrainingSettings(epochs=epochs, evaluate_every=every, prepare=prepare),
        travel=TravelSettings(mixed=mixed, buffer_bytes=cells * longest),
    )
    plan = plan_job(agreement.resources, settings.visits, cells * longest)
    work = PlannedWork.of(settings, agreement.resources)
    counted = Counter((s.holder, g.purpose) for g in plan for s in g.stops)
    assert +work.visits == counted
    stops = [stop for group in plan for stop in group.stops]
    assert work.coverage(agreement.data_owners) == Coverage.of(
        stops, agreement.data_owners
    )


@pytest.mark.parametrize("plan", ["local", "travel", "ddp"])
def test_more_rounds_than_agreed_are_refused_before_the_first(plan: PlanName) -> None:
    """All plans ask; a job that needs exactly what is agreed is no more than that."""
    owners = len(AGREEMENT.data_owners)
    slices = SlicesSettings(count=owners) if plan == "ddp" else SlicesSettings()
    settings = job(1_200, slices=slices)
    allowed = agreement_for(settings, plan, max_visits=1_200)
    few = agreement_for(settings, plan, max_visits=1_199)
    PLANS[plan].check_terms(settings, allowed)
    with pytest.raises(PolicyError) as caught:
        PLANS[plan].check_terms(settings, few)
    assert caught.value.code == "too-many-visits"
    assert "1,200" in str(caught.value)
    assert "1,199" in str(caught.value)


@pytest.mark.parametrize(
    ("epochs", "buffer_bytes", "code"),
    [
        (2, "auto", ""),
        (2, 1 << 20, "output-withheld"),
        (3, 1 << 20, ""),
        (0, "auto", ""),
    ],
)
def test_what_no_run_could_reach_is_refused(
    epochs: int, buffer_bytes: Any, code: str
) -> None:
    """Three visits to each owner; a buffer that is chosen later may mean more of them."""
    settings = job(epochs, travel=TravelSettings(buffer_bytes=buffer_bytes))
    found = ""
    try:
        require_planned(settings, agreement_for(settings, min_visits=3))
    except SealiftError as error:
        found = error.code
    assert found == code


def test_a_buffer_that_cuts_a_private_table_is_refused_before_anybody_signs() -> None:
    whole = max(each.total_bytes for each in AGREEMENT.resources)
    one_cell = max(each.longest_cell_bytes for each in AGREEMENT.resources)
    for buffer_bytes, mixed, code in (
        (whole, False, ""), (one_cell, False, "privacy-not-enforced"),
        (3 * whole, True, "privacy-not-enforced"),
    ):  # fmt: skip
        travel = TravelSettings(buffer_bytes=buffer_bytes, mixed=mixed)
        settings = JobSettings(
            training=TrainingSettings(epochs=1, batch_rows=TERMS.batch),
            travel=travel,
            privacy=TERMS,
        )
        agreement = agreement_for(settings)
        training = replace(agreement.training_rule, privacy_trusts_code=True)
        agreement = replace(agreement, training=training)
        assert _code_of(settings, agreement) == code


@pytest.mark.parametrize(("stop_after", "code"), [(0, ""), (2, "bad-choice")])
def test_a_job_that_keeps_its_state_does_not_end_early(
    stop_after: int, code: str
) -> None:
    training = TrainingSettings(
        epochs=4,
        evaluate_every=1,
        keep_state=True,
        keep="best",
        measure="accuracy",
        stop_after=stop_after,
    )
    owners = len(AGREEMENT.data_owners)
    settings = JobSettings(training=training, slices=SlicesSettings(count=owners))
    agreement = agreement_for(settings, "ddp")
    runs = replace(agreement.training_rule, runs=3)
    assert _code_of(settings, replace(agreement, training=runs), "ddp") == code


def _code_of(
    settings: JobSettings, agreement: Agreement, plan: PlanName = "travel"
) -> str:
    try:
        PLANS[plan].check_terms(settings, agreement)
    except SealiftError as error:
        return error.code
    return ""


def test_a_plan_that_no_receipt_could_name_is_refused() -> None:
    longest = max(each.longest_cell_bytes for each in AGREEMENT.resources)
    settings = job(100_000, travel=TravelSettings(buffer_bytes=longest))
    cells = sum(each.cells for each in AGREEMENT.resources if each.part == "train")
    assert 100_000 * cells > 600_000
    agreement = agreement_for(settings, max_visits=1 << 40)
    with pytest.raises(SealiftError) as caught:
        require_planned(settings, agreement)
    assert caught.value.code == "plan-too-long"
