"""Tasks: each makes a world of its own, and its recipe learns from its rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.document import load_schema
from sealift.data.schema.rows import demand_rows
from sealift.data.sources.table import open_table
from sealift.demo.folder import OWNERS
from sealift.demo.job import Travel, make_world
from sealift.demo.tasks import ACCURACY, TASKS, Metric, ShownTask
from sealift.release.agreement.signed import load_signed, verify
from sealift.train.job.settings import read_job
from sealift.train.sandboxed.recipe import Recipe

EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def recipe_of(task: ShownTask) -> Recipe:
    return Recipe({"recipe.py": task.recipe}, "recipe.py")


def rows_of(folder: Path) -> tuple[torch.Tensor, object]:
    schema = load_schema(folder / "schema.toml")
    table = open_table(folder / "train.npz", schema)
    raw = bytearray(b"".join(table.blocks()))
    rows = torch.frombuffer(raw, dtype=torch.uint8).reshape(-1, schema.row_bytes)
    return rows, schema


def measured(
    recipe: Recipe, model: torch.nn.Module, batch: dict[str, torch.Tensor]
) -> dict[str, float]:
    with torch.no_grad():
        return recipe.evaluate(model.eval(), batch)


@EVERY_TASK
def test_its_world_agrees_with_its_job(task: ShownTask, tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", task, Travel(buffers=2, mixed=True))
    agreement = verify(load_signed(world.agreement)).agreement
    job = read_job(world.job)
    assert agreement.data_owners == OWNERS
    assert agreement.output.metrics == task.metric_names
    assert agreement.output.baseline_alone
    assert (agreement.travel.buffers, agreement.travel.mixed) == (2, True)
    assert (job.travel.buffers, job.travel.mixed) == (2, True)
    for resource in agreement.resources:
        assert resource.row_bytes == task.schedule.row_bytes


@EVERY_TASK
def test_by_default_one_buffer_is_agreed_on(task: ShownTask, tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", task)
    agreement = verify(load_signed(world.agreement)).agreement
    assert (agreement.travel.buffers, agreement.travel.mixed) == (1, False)


@EVERY_TASK
def test_its_recipe_learns_and_measures(task: ShownTask, tmp_path: Path) -> None:
    task.write_tables(tmp_path)
    rows, schema = rows_of(tmp_path / OWNERS[0])
    demand_rows(rows.numpy(), schema)
    torch.manual_seed(0)
    recipe = recipe_of(task)
    model = recipe.build()
    optimizer = recipe.optimization(model).optimizer
    batch = batch_from_rows(rows[: task.schedule.batch_rows], schema)
    before = measured(recipe, model, batch)
    for step in range(40):
        optimizer.zero_grad()
        recipe.loss(model.train(), batch, step).backward()
        optimizer.step()
    after = measured(recipe, model, batch)
    assert set(after) == set(task.metric_names)
    for metric in task.metrics:
        gained = after[metric.name] - before[metric.name]
        assert gained < 0 if metric.lower_is_better else gained > 0


@EVERY_TASK
def test_it_is_told_in_words(task: ShownTask) -> None:
    assert set(task.words.private) == set(OWNERS)
    assert ACCURACY in task.metric_names  # `--json` names it in every task
    assert re.fullmatch(r"[a-z]+", task.name)


def test_a_byte_sees_what_stands_before_it_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = recipe_of(TASKS["text"]).build().eval()
    for parameter in model.parameters():  # blocks start as nothing: wake them
        torch.nn.init.normal_(parameter, std=0.1)
    text = torch.randint(256, (1, 64))
    changed = text.clone()
    changed[0, 40] = (changed[0, 40] + 1) % 256
    same = (model(text) == model(changed)).all(dim=2)[0]
    assert same[:40].all()
    assert not same[40:].any()


def test_metrics_are_told_with_their_unit() -> None:
    bits, share = (
        Metric("b", "bits", "bits", lower_is_better=True),
        Metric("s", "share"),
    )
    assert (bits.say(2.468), share.say(0.967)) == ("2.47 bits", "96.7%")
