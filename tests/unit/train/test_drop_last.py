"""A last batch that is shorter, where the job leaves it out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealift.data.loader.rowtensors import batch_order
from sealift.train.loop.statistics import Measured
from sealift.train.loop.tasks import plan_windows, window_rows
from sealift.train.loop.told import Losses
from sealift.train.loop.trainer import Trainer
from tests.unit.train.joints import cargo, cargo_of, in_place, joint, resource
from tests.unit.train.recipes import LIGHTNING, SETTINGS, rows
from tests.worlds.consortium import make_consortium


@pytest.mark.parametrize(("count", "trained"), [(40, 32), (32, 32), (9, 9)])
def test_a_last_batch_that_is_shorter_is_left_out_on_request(
    count: int, trained: int
) -> None:
    settings = replace(SETTINGS, batch_rows=16, drop_last=True)
    training = joint(settings=settings)
    found = training.work([cargo("north", count)])
    assert training.steps == max(1, trained // 16)
    assert training.rows_trained == found["north-train"].rows == trained
    assert bool(found["north-train"].metrics) == (count == trained)  # rule N5
    windows = plan_windows(count, settings, most=5, least_rows=1)
    assert sum(window_rows(count, settings, windows)) == trained


def test_two_jobs_do_not_tell_the_loss_of_the_row_that_one_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The orchestrator runs it twice: one step of 200 rows, and one of 199."""

    def told(batch_rows: int) -> dict[str, float]:
        settings = replace(SETTINGS, batch_rows=batch_rows, drop_last=True)
        training = joint(LIGHTNING, settings, watch=watched)
        return dict(training.work([cargo("north", 200)])["north-train"].metrics)

    seen: list[Measured] = []

    def watched(_: object, found: Measured) -> None:
        seen.append(found)

    order = batch_order(200, seed=SETTINGS.seed, epoch=0, scope="north-train/0")
    row = rows(200, seed=len("north"))[order[199:]]
    one = joint(LIGHTNING, replace(SETTINGS, batch_rows=1))
    true = one.work([cargo_of(resource("north", 1), row)])["north-train"].metrics
    assert told(200).keys() == {"loss"}
    seen.clear()
    assert told(199) == {}
    assert seen == []
    untold = Losses.__init__

    def tell_all(losses: Losses, *of: Any) -> None:
        untold(losses, *of)
        losses._whole = True

    monkeypatch.setattr(Losses, "__init__", tell_all)  # mutant
    more, fewer = told(200)["loss"], told(199)["loss"]
    assert 200 * more - 199 * fewer == pytest.approx(true["loss"], abs=1e-3)


def test_windows_of_a_job_have_so_many_rows_that_no_two_seeds_give_nearly_the_same() -> (
    None
):
    agreement = make_consortium().agreement
    rule = replace(agreement.output_rule, values_per_visit=16)
    training = Trainer.under(replace(agreement, output=rule), in_place(), SETTINGS)
    for count in (16, 100, 130, 1000):
        windows = training.model_for([cargo("north", count)]).windows
        lengths = window_rows(count, SETTINGS, windows)
        assert sum(lengths) == count
        assert len(lengths) == 1 or min(lengths) >= 64
