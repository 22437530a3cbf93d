"""Synthetic rows fit every schema, and a recipe trains on them as in a real run."""

from __future__ import annotations

import itertools

import pytest
import torch

from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import DTYPES
from sealift.errors import JobError
from sealift.train.sandboxed.rehearsal import rehearse, synthetic_rows
from tests.unit.train.recipes import LIGHTNING, SETTINGS, load, rows, schema


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("bounds", [{}, {"min": 1, "max": 3}, {"min": 100}])
def test_synthetic_rows_fit_their_schema(dtype: str, bounds: dict[str, int]) -> None:
    field = {"name": "x", "dtype": dtype, "shape": [3]}
    if dtype != "bool":  # which has no bounds
        field |= bounds
    made = schema_from_plain({"fields": [field]})
    table = synthetic_rows(made, 50, seed=1)
    demand_rows(table.numpy(), made)
    assert len(torch.unique(table, dim=0)) > 1
    assert not torch.equal(table, synthetic_rows(made, 50, seed=2))


def test_they_depend_on_seed_and_schema_alone() -> None:
    torch.manual_seed(5)
    first = rows(10)
    torch.manual_seed(6)
    assert torch.equal(rows(10), first)


def test_a_rehearsal_trains_and_evaluates() -> None:
    ticks = itertools.count()
    found = rehearse(
        load(LIGHTNING), schema(), SETTINGS, rows=20, steps=5, clock=lambda: next(ticks)
    )
    assert found.parameters == 10
    assert (found.steps, len(found.losses)) == (5, 2)
    assert found.step_s == 1
    assert set(found.metrics) == {"accuracy"}


def test_sums_are_rehearsed_too() -> None:
    prepare = (
        "\n\ndef prepare(batch):\n"
        "    return {'count': len(batch['y']), 'x': batch['x'].sum(0)}\n"
    )
    build = LIGHTNING.replace(
        "def build():\n",
        "def build(statistics):\n    assert statistics['count'] == 20\n",
    )
    for text, steps in ((build + prepare, 5), (prepare, 0)):
        found = rehearse(
            load(text), schema(), SETTINGS, rows=20, steps=5, clock=lambda: 0.0
        )
        assert found.sums == {"count": "1 whole", "x": "4 float"}
        assert found.steps == steps


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ('{"a": float("nan")}', "infinite or NaN on random rows"),
        ('{"a": torch.tensor([1.0, float("inf")])}', "infinite or NaN"),
        (
            '{"a" if len(batch["y"]) > 1 else "b": 1.0}',
            "some measures for some batches alone",
        ),
        (
            '{"a": 1.0, **({"b": 1.0} if batch["y"].sum() > len(batch["y"]) // 2 else {})}',
            "some measures for some batches alone",
        ),
    ],
)
def test_measures_that_no_agreement_can_list(returned: str, words: str) -> None:
    text = f"{LIGHTNING}\n\ndef evaluate(model, batch):\n    return {returned}\n"
    with pytest.raises(JobError, match=words) as caught:
        rehearse(load(text), schema(), SETTINGS, rows=20, steps=1, clock=lambda: 0.0)
    assert caught.value.code == "bad-recipe"


@pytest.mark.parametrize(
    "returned",
    ["None", "[1, 2]", '{"a": "good"}', '{"a": [1]}', '{"a": torch.tensor(1j)}'],
)
def test_measures_that_are_no_numbers(returned: str) -> None:
    text = f"{LIGHTNING}\n\ndef evaluate(model, batch):\n    return {returned}\n"
    with pytest.raises(JobError, match="dict of numbers and tensors by name"):
        rehearse(load(text), schema(), SETTINGS, rows=20, steps=1, clock=lambda: 0.0)


def test_a_table_of_counts_may_be_empty_for_one_row() -> None:
    counts = "torch.arange(2.0) if len(batch['y']) > 1 else torch.zeros(2)"
    text = f"{LIGHTNING}\n\ndef evaluate(model, batch):\n    return {{'a': {counts}}}\n"
    rehearse(load(text), schema(), SETTINGS, rows=20, steps=1, clock=lambda: 0.0)
