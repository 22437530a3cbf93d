"""What a rank demands of its orchestrator and of other ranks before it works for them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.codec import encode
from sealift.errors import JobError, SealiftError
from sealift.lab.worlds.consortium import make_consortium
from sealift.release.agreement import Agreement
from sealift.release.agreement.resources import GroupRule
from sealift.train.job.runningjob import JobShapes
from sealift.train.loop.faults import bad_row
from sealift.train.output.uses import Uses
from sealift.train.ranks.rank import agreed_settings, demand_one_level
from sealift.train.ranks.rankedjob import RankedJob
from sealift.travel.settings import (
    JobSettings,
    RunSettings,
    SlicesSettings,
    TrainingSettings,
    TravelSettings,
)
from sealift.travel.visit.messages import StartJob
from tests.sim.paperwork import signed_receipt
from tests.unit.train.joints import cargo

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


class Home:
    """What a rank lends its rows from, and keeps receipts in."""

    def __init__(self, content: bytes) -> None:
        self.kept: list[Any] = []
        loaded = cargo("ada")
        self.stop = loaded.stop
        self.agreement = SimpleNamespace(resource=lambda name: loaded.resource)
        self.tables = SimpleNamespace(read=lambda stop: content)
        signed = signed_receipt(make_consortium(), ())
        self.handout = SimpleNamespace(receipt_for=lambda *how: signed)
        self._uses: list[Uses] = []
        self.receipts = SimpleNamespace(keep=lambda *how: self.kept.append(how))

    def use(self) -> None:
        of: Any = self
        with RankedJob._lend_rows(of, self.stop):
            raise JobError("the recipe failed", code="recipe-killed")


def test_rows_that_were_used_have_a_receipt_whatever_came_of_it() -> None:
    home = Home(bytes(cargo("ada").memory.view))
    with pytest.raises(JobError, match="the recipe failed"):
        home.use()
    assert len(home.kept) == 1
    assert [len(each.receipts) for each in home._uses] == [1]


def test_rows_that_do_not_fit_their_schema_are_not_used() -> None:
    home = Home(b"\xff" * len(cargo("ada").memory.view))
    with pytest.raises(JobError, match="do not fit") as refused:
        home.use()
    assert refused.value.code == "bad-row"
    assert home.kept == []


def test_which_row_is_bad_is_not_the_recipes_to_say() -> None:
    def work(*how: Any) -> Any:
        raise bad_row("x", "not a number")

    job: Any = SimpleNamespace(
        agreement=SimpleNamespace(agreement=grouped()),
        leases=SimpleNamespace(await_proven=lambda owners: None),
        keys=SimpleNamespace(owners=()),
        trainer=SimpleNamespace(statistics=b""),
        _slice=SimpleNamespace(work=work),
        _beside=None,
    )
    with pytest.raises(JobError) as refused:
        RankedJob._work(job, "train", 0)
    assert refused.value.code == "recipe-garbled"


@pytest.mark.parametrize(("sums", "nbytes"), [(b"", 0), (b"sums", 8)])
def test_no_model_is_built_before_the_sums_that_it_is_built_on(
    sums: bytes, nbytes: int
) -> None:
    class Trainer:
        statistics = sums

        @property
        def joint(self) -> Any:
            assert sums, "built too early"
            return SimpleNamespace(
                model=lambda: {"w": SimpleNamespace(content=b"8" * 8)}
            )

    training = TrainingSettings(prepare=True)
    job: Any = SimpleNamespace(
        settings=replace(AGREED, training=training), trainer=Trainer()
    )
    assert RankedJob._model_bytes(job) == nbytes
