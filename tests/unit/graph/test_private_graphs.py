"""Private steps of a recipe without a program: rows are apart by what it is."""

from __future__ import annotations

import pytest
import torch

from sealift.errors import JobError
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.faults import REASONS
from sealift.train.sandboxed.placement import HERE
from sealift.train.sandboxed.privatesteps import PrivateGradients, row_gradients
from sealift.train.sandboxed.recipe import let_through
from tests.unit.graph.models import (
    HEAD,
    MLP,
    TAIL,
    VECTORS,
    export,
    load,
    rows_for,
)

TERMS = PrivateSteps(clip=1.0, noise=1.0, batch=4)
COUNTING = f"""{HEAD}
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.seen.add_(x.sum(0))
        return self.layer(x)


def build():
    return Counting()
{TAIL}"""


def gradients(text: str) -> PrivateGradients:
    recipe = load(export(text, VECTORS))
    batch = rows_for(VECTORS, 8)
    return PrivateGradients(
        recipe,
        recipe.build(),
        TERMS,
        8,
        lambda rows: {name: each[rows] for name, each in batch.items()},
        placement=HERE,
        guard=let_through,
    )


def test_a_graph_makes_private_steps() -> None:
    steps = gradients(MLP)
    steps.set(0)
    found = [each.grad for each in steps._model.parameters()]
    assert all(each is not None and bool(each.abs().sum() > 0) for each in found)


def test_no_rows_gradient_depends_on_another_row() -> None:
    recipe = load(export(MLP, VECTORS))
    model, batch = recipe.build(), rows_for(VECTORS, 6)
    before = row_gradients(recipe, model, batch, 0)
    batch["x"][3:] += 1.0
    after = row_gradients(recipe, model, batch, 0)
    for name, each in before.items():
        assert torch.allclose(each[:3], after[name][:3], atol=1e-7)
        assert not torch.allclose(each[3:], after[name][3:])  # control


@pytest.mark.parametrize(
    "text",
    [
        MLP.replace("nn.ReLU()", "nn.BatchNorm1d(16)"),
        COUNTING,
    ],
    ids=["rows are mixed", "a buffer goes on, and would have no noise"],
)
def test_what_is_of_several_rows_is_refused(text: str) -> None:
    with pytest.raises(JobError) as raised:
        gradients(text)
    assert raised.value.why == REASONS["batch-norm"][0]
