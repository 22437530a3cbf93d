"""Synthetic rows fit every schema, and a recipe trains on them as in a real run."""

from __future__ import annotations

import itertools

import pytest
import torch

from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import DTYPES
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
