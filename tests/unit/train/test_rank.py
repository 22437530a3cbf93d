"""What a rank demands of its orchestrator and of other ranks before it works for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.codec import encode
from sealift.errors import JobError, SealiftError
from sealift.lab.worlds.consortium import make_consortium
from sealift.release.agreement import Agreement
from sealift.release.agreement.resources import GroupRule
from sealift.train.job.runningjob import JobShapes
from sealift.train.ranks.rank import agreed_settings, demand_one_level
from sealift.travel.settings import (
    JobSettings,
    RunSettings,
    SlicesSettings,
    TrainingSettings,
    TravelSettings,
)
from sealift.travel.visit.messages import StartJob

RANKS = len(make_consortium().agreement.data_owners)
AGREED = JobSettings(slices=SlicesSettings(count=RANKS))


def grouped() -> Agreement:
    return replace(make_consortium().agreement, group=GroupRule(RANKS, "owner"))


def told(settings: JobSettings, shapes: JobShapes | None = None) -> JobSettings:
    start = StartJob("digits", encode(settings))
    return agreed_settings(start, grouped(), shapes or JobShapes())


def test_what_is_agreed_is_done() -> None:
    assert told(AGREED) == AGREED


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (JobSettings(), "group-not-agreed"),
        (JobSettings(slices=SlicesSettings(count=RANKS + 1)), "group-not-agreed"),
        (replace(AGREED, travel=TravelSettings(mixed=True)), "cargo-not-agreed"),
        (replace(AGREED, training=TrainingSettings(epochs=0)), "nothing-to-make"),
        (replace(AGREED, training=TrainingSettings(batch_rows=0)), "bad-field"),
        (replace(AGREED, training=TrainingSettings(epochs=1 << 40)), "bad-field"),
        (replace(AGREED, run=RunSettings(work_s=-1.0)), "bad-field"),
        (
            replace(AGREED, slices=SlicesSettings(count=RANKS, max_norm=-1.0)),
            "bad-field",
        ),
    ],
)
def test_an_orchestrator_gets_no_more_than_agreed(
    asked: JobSettings, code: str
) -> None:
    with pytest.raises(SealiftError) as refused:
        told(asked)
    assert refused.value.code == code


def test_a_job_goes_on_in_the_shape_in_which_it_began() -> None:
    shapes = JobShapes()
    told(AGREED, shapes)
    told(AGREED, shapes)
    with pytest.raises(SealiftError) as refused:
        told(replace(AGREED, training=TrainingSettings(seed=2)), shapes)
    assert refused.value.code == "other-shape"


def test_a_rank_of_another_level_gets_nothing() -> None:
    demand_one_level("tee", ("tee", "tee"))
    with pytest.raises(JobError, match="tee here, development elsewhere") as refused:
        demand_one_level("tee", ("tee", "development"))
    assert refused.value.code == "levels-differ"
