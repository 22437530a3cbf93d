"""What a step of several slices comes to, and which recipes cannot make one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from sealift.errors import JobError, MalformedError
from sealift.train.loop.buckets import Trained, cut_buckets
from sealift.train.loop.faults import REASONS
from sealift.train.loop.states import TensorBytes, TrainingState
from sealift.train.loop.tasks import Together
from sealift.train.sandboxed.torchstate import as_tensors
from tests.unit.train.ranked import World
from tests.unit.train.recipes import SETTINGS

LINEAR = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x))


def build():
    return Net()


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
"""
LOSS = 'return F.cross_entropy(model(batch["x"]), batch["y"])'


def weights(state: TrainingState) -> torch.Tensor:
    return torch.cat([each.flatten() for each in as_tensors(state.tensors).values()])


def test_a_step_is_one_over_the_rows_of_all_slices() -> None:
    """12 rows of two slices, or of one: the same gradient but for its last bits."""
    world = World(LINEAR, [[8], [4]])
    (several, _), told = world.here()
    table = torch.cat([world.table(0, 8), world.table(1, 4)])
    alone = World(LINEAR, [[12], [12]], replace(SETTINGS, batch_rows=12))
    alone.tables = [table, table]
    (one, _), _ = alone.here()
    assert several.trainer.steps == one.trainer.steps == 1
    found, wanted = weights(several.trainer.joint), weights(one.trainer.joint)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.allclose(found, weights(world.slice(0).trainer.joint), atol=1e-3)
    assert [each.rows for _, each in told] == [8, 4]


def test_rows_that_do_not_divide_count_by_their_share() -> None:
    together = Together((20, 9))
    shares = [[together.share(n, step, 8) for n in (0, 1)] for step in range(3)]
    assert together.steps(8) == 3
    assert shares == [[0.5, 0.5], [8 / 9, 1 / 9], [1.0, 0.0]]


def test_buckets_follow_the_parameters_alone() -> None:
    def tensor(dtype: str, count: int) -> TensorBytes:
        size = {"F32": 4, "F64": 8, "BF16": 2}[dtype]
        return TensorBytes(dtype, (count,), memoryview(bytes(size * count)))

    tensors = {"a": tensor("F32", 3), "b": tensor("F32", 5), "c": tensor("F64", 1)}
    found = cut_buckets(Trained(("c", "b", "a")), tensors, 32)
    assert [each.names for each in found] == [("c",), ("b", "a")]
    assert [(each.start, each.length) for each in found] == [(0, 8), (64, 32)]
    assert len(cut_buckets(Trained(("c", "b", "a")), tensors, 31)) == 3
    for odd in (Trained(("a", "d")), Trained(("a", "a")), Trained(()), Trained(("h",))):
        with pytest.raises(MalformedError):
            cut_buckets(odd, tensors | {"h": tensor("BF16", 1)}, 64)


CHANGES = {
    "a backward pass of its own": (LOSS, f"model(batch['x']).sum().backward(); {LOSS}"),
    "a parameter freed on the way": (
        LOSS,
        f"model.first.requires_grad_(not model.first.weight.requires_grad); {LOSS}",
    ),
    "a gradient that lies elsewhere": (
        "return Net()",
        "net = Net(); net.first.weight.register_post_accumulate_grad_hook("
        "lambda p: setattr(p, 'grad', p.grad.clone())); return net",
    ),
    "another precision": ("return Net()", "return Net().bfloat16()"),
    "a parameter of nobody": (
        "model.parameters()",
        "[*model.parameters(), nn.Parameter(torch.ones(1))]",
    ),
    "activations that run again": (
        LOSS,
        "from torch.utils.checkpoint import checkpoint; x = batch['x'].requires_grad_()\n"
        "    run = lambda x: model.second(checkpoint(model.first, x, use_reentrant=True))\n"
        "    return F.cross_entropy(run(x) + run(x), batch['y'])",
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_cannot_be_added_up_is_refused(change: tuple[str, str]) -> None:
    assert change[0] in LINEAR
    with pytest.raises(JobError, match=re.escape(REASONS["gradients"][0])) as caught:
        World(LINEAR.replace(*change), [[32], [32]]).here()
    assert caught.value.code == "bad-recipe"


def test_a_gradient_that_is_no_number_is_told_with_its_parameter() -> None:
    odd = LOSS.replace(
        "return", "model.second.bias.register_hook(lambda g: g / 0);return"
    )
    with pytest.raises(JobError, match=r"second\.bias") as caught:
        World(LINEAR.replace(LOSS, odd), [[32], [32]]).here()
    assert caught.value.code == "not-finite"


def test_digests_within_an_epoch_change_no_bit() -> None:
    plain = World(LINEAR, [[20], [9]])
    watched: Any = replace(plain, settings=replace(SETTINGS, digest_every=1))
    states = [[s.trainer.joint for s in each.here()[0]] for each in (plain, watched)]
    assert states[0] == states[1]
