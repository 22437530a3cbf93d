"""Steps that all slices make together: the same bits in one task and as ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from sealift.data.schedule.visits import Stop
from sealift.train.loop.statistics import Measured
from sealift.train.worker.executor import RecipeExecutor
from tests.unit.train.ranked import World, joined
from tests.unit.train.recipes import rows

NORMED = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(9, 9).requires_grad_(False)
        self.wide = nn.Linear(9, 2, dtype=torch.float64)
        self.tied = self.wide
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen = self.seen + 1
        if self.seen == 2 and (x == 3).all():
            raise ValueError("a second step of threes")
        found = F.dropout(self.norm(self.conv(x.unsqueeze(1))), 0.3, self.training)
        found = self.frozen(found.flatten(1)) * (1 + self.seen / 100)
        return self.wide(found.double())


def build():
    return Net()


class Noisy(torch.optim.AdamW):
    def step(self):
        super().step()
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.add_(torch.rand_like(each), alpha=1e-3 * each.requires_grad)


def configure_optimizers(model):
    return Noisy(model.parameters(), lr=1e-2)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
"""
UNEVEN = [[24, 17], [50], [9]]


@pytest.fixture(scope="module")
def shops() -> Iterator[list[RecipeExecutor]]:
    """Random streams belong to a process: ranks that draw need one each."""
    files = {"recipe.py": NORMED.encode()}
    with ExitStack() as stack:
        yield [
            stack.enter_context(RecipeExecutor(files, "recipe.py")) for _ in range(3)
        ]


@pytest.mark.distributed
@pytest.mark.parametrize("counts", [[[32], [32]], UNEVEN])
def test_ranks_compute_the_bits_of_one_task(
    shops: list[RecipeExecutor], counts: list[list[int]]
) -> None:
    world = World(NORMED, counts, work=shops.__getitem__)
    ranks = world.apart()
    assert [each.error for each in ranks] == [None] * len(counts)
    slices, told = replace(world, work=None).here()
    for rank, one in zip(ranks, slices, strict=True):
        assert rank.trainer.joint == one.trainer.joint
        assert rank.trainer.summed == one.trainer.summed
    assert [e for each in ranks for e in each.told] == sorted(told, key=_place)
    before = ranks[0].before
    assert len({each.trainer.digest() for each in ranks}) == len(counts)  # own buffers
    assert joined(before, slices) == joined(before, [each.slice for each in ranks])


@pytest.mark.long
def test_a_recipe_that_fails_on_one_rank_ends_all(shops: list[RecipeExecutor]) -> None:
    """Each at its own word, and none is taken for a worker that died."""
    world = World(NORMED, [[24]] * 3, work=shops.__getitem__)
    tables = [rows(24) for _ in range(3)]
    tables[1][:, :16] = torch.full((24, 4), 3.0).view(torch.uint8)
    ranks = replace(world, tables=tables).apart()
    codes = [each.error and each.error.code for each in ranks]
    assert codes == ["rank-failed", "recipe-error", "rank-failed"]
    assert all(each.trainer.joint == each.before for each in ranks)


def _place(told: tuple[Stop, Measured]) -> tuple[str, int]:
    return told[0].holder, told[0].first_row
