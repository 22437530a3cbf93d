"""Statistics by the plan ``local``, and what a hostile ``prepare`` comes to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sealift.demo.tasks import ROW_BYTES
from sealift.errors import JobError, UsageError
from sealift.release.agreement.signed import load_signed, verify
from sealift.train.job.settings import check_job, read_job
from sealift.train.loop.held import read_of
from sealift.train.loop.statistics import totals_file
from tests.sim.jobworld import Wishes, change, fresh_world, train_here, write_job
from tests.sim.statistics import NAMES, OWNERS, expected, statistics_alone, trained_on


def test_statistics_alone_are_exact(tmp_path: Path) -> None:
    world = fresh_world(tmp_path, statistics_alone())
    ran = train_here(world)
    found = {name: each.nested() for name, each in ran.statistics.items()}
    assert found == expected(world)
    assert (ran.model, ran.weights, ran.steps, ran.metrics) == (b"", None, 0, {})
    assert sum(ran.prepared.values()) == found["pixels_count"]
    assert set(ran.prepared) == set(OWNERS)
    file = json.loads(totals_file(ran.statistics, ran.prepared))
    assert file == {"rows": ran.prepared, "statistics": found}


@pytest.mark.parametrize(
    "other",
    [
        {"buffer_bytes": 37 * ROW_BYTES},
        {"order": "by-size", "buffer_bytes": 100 * ROW_BYTES},
        {"seed": 9},
    ],
)
def test_they_do_not_depend_on_slices_or_order(
    tmp_path: Path, other: dict[str, object]
) -> None:
    world = fresh_world(tmp_path, statistics_alone(**other))
    found = train_here(world).statistics
    assert {name: each.nested() for name, each in found.items()} == expected(world)


def test_a_model_is_built_on_the_totals(tmp_path: Path) -> None:
    ran = train_here(fresh_world(tmp_path / "a", trained_on(epochs=1)))
    again = train_here(fresh_world(tmp_path / "b", trained_on(epochs=1)))
    assert ran.weights is not None
    assert ran.weights == again.weights
    assert set(ran.statistics) == set(NAMES)
    fewer = trained_on(epochs=1, rule={"min_holders": "1"})
    world = fresh_world(tmp_path / "c", fewer)
    model = train_here(world).model
    assert b"mean" in read_of(model, 0, len(model))


def test_only_what_is_named_leaves_rounded(tmp_path: Path) -> None:
    recipe = (
        "def prepare(batch):\n"
        "    x = batch['pixels']\n"
        "    return {'third': float(x.sum()) / 3, 'first_row': x[0].double()}\n"
    )
    rule = {"statistics": '["third"]', "digits": "2"}
    wishes = statistics_alone(rule=rule)
    world = fresh_world(tmp_path, Wishes(**{**vars(wishes), "recipe": recipe}))
    found = train_here(world).statistics
    assert set(found) == {"third"}
    assert found["third"].values == (round(found["third"].values[0], 2),)


def test_too_few_rows_tell_nothing(tmp_path: Path) -> None:
    world = fresh_world(tmp_path, statistics_alone(rule={"statistics_rows": "5000"}))
    with pytest.raises(JobError, match="5000") as refusal:
        train_here(world)
    assert refusal.value.code == "statistics-withheld"


HOSTILE = {
    "a row in names": "return {f'p{int(v)}_{i}': 1 for i, v in enumerate(batch['pixels'][0])}",
    "a shape that depends on rows": "return {'s': batch['pixels'][: int(batch['label'][0]) + 1]}",
    "NaN": "return {'s': float('nan')}",
    "infinite": "return {'s': batch['pixels'].sum() / 0.0}",
    "too large": "import torch\n    return {'s': torch.zeros(70_000)}",
    "beyond whole numbers": "return {'s': 2**62}",
    "beyond any machine": "return {'s': 2**99}",
    "no numbers": "return {'s': 'north'}",
    "rows themselves": "return batch['pixels']",
    "complex": "return {'s': batch['pixels'].to(dtype=__import__('torch').complex64)}",
    "nothing, then something": "return {} if batch['label'][0] % 2 else {'s': 1}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_prepare_gets_nothing_out(tmp_path: Path, body: str) -> None:
    recipe = f"def prepare(batch):\n    {body}\n"
    wishes = statistics_alone(rule={"statistics": '["s"]'}, buffer_bytes=50 * ROW_BYTES)
    world = fresh_world(tmp_path, Wishes(**{**vars(wishes), "recipe": recipe}))
    with pytest.raises(JobError) as refusal:
        train_here(world)
    assert refusal.value.code == "bad-recipe"


def test_a_job_that_would_make_nothing_does_not_start(tmp_path: Path) -> None:
    world = fresh_world(tmp_path, statistics_alone())
    agreement = verify(load_signed(world.agreement))
    check_job(read_job(world.job), agreement)
    write_job(world, Wishes(epochs=0))
    with pytest.raises(UsageError) as refusal:
        check_job(read_job(world.job), agreement)
    assert refusal.value.code == "nothing-to-make"
    change(world, statistics_alone(rule={"statistics": "[]"}))
    with pytest.raises(UsageError) as refusal:
        check_job(read_job(world.job), verify(load_signed(world.agreement)))
    assert refusal.value.code == "nothing-to-make"
