"""A last batch that is shorter, where the job leaves it out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.train.loop.tasks import plan_windows, window_rows
from tests.unit.train.joints import cargo, joint
from tests.unit.train.recipes import SETTINGS


@pytest.mark.parametrize(("count", "trained"), [(40, 32), (32, 32), (9, 9)])
def test_a_last_batch_that_is_shorter_is_left_out_on_request(
    count: int, trained: int
) -> None:
    settings = replace(SETTINGS, batch_rows=16, drop_last=True)
    training = joint(settings=settings)
    found = training.work([cargo("north", count)])
    assert training.steps == max(1, trained // 16)
    assert training.rows_trained == found["north-train"].rows == trained
    windows = plan_windows(count, settings, most=5, least_rows=1)
    assert sum(window_rows(count, settings, windows)) == trained
