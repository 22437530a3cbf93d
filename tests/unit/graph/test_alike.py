"""A graph that would compute something else than its program is found before it is proposed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from sealift.data.schema.document import schema_to_plain
from sealift.graph.export import export_recipe
from sealift.train.sandboxed.parentpipe import WorkerEnd
from sealift.train.sandboxed.rehearsal import find_difference
from sealift.train.sandboxed.training import enter_stream
from sealift.train.sandboxed.trying import TriedRecipe
from sealift.train.worker.messages import Exported, NotExported, TrialOrder
from sealift.travel.settings import TrainingSettings
from tests.unit.graph.models import HEAD, MLP, TAIL, VECTORS, load, program

SETTINGS = TrainingSettings(epochs=1, batch_rows=8, threads=1)
MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.n = 0

    def forward(self, x):
        {forward}


def build():
    return Net()
"""


def text(forward: str, before: str = "", tail: str = TAIL) -> str:
    return f"{HEAD}\n{before}\n{MODEL.format(forward=forward)}\n{tail}"


def difference(recipe: str, *others: TrainingSettings) -> str:
    """With the settings, and with others."""
    own = program(recipe)
    enter_stream(SETTINGS.seed, "build")
    graph = load(export_recipe(own, VECTORS))
    return "".join(
        find_difference(own, graph, VECTORS, each) for each in (SETTINGS, *others)
    )


BODY = "return self.last(F.relu(self.first(x)))"
REVERSED = """
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient
"""


@pytest.mark.parametrize(
    "recipe", [MLP, text(BODY), text("return self.last(F.dropout(self.first(x), 0.3, self.training))")]
)  # fmt: skip
def test_what_is_the_same_is_found_so(recipe: str) -> None:
    assert difference(recipe, replace(SETTINGS, drop_last=True)) == ""


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")
@pytest.mark.parametrize(
    "recipe",
    [
        text("with torch.no_grad():\n            y = F.relu(self.first(x))\n        return self.last(y)"),
        text("y = self.last(self.first(x))\n        return y * float(y.abs().mean())"),
        text("return self.last(Reversed.apply(self.first(x)))", REVERSED),
        text("self.n += 1\n        return self.last(self.first(x)) * self.n"),
        text(
            BODY,
            tail=TAIL.replace("AdamW(", "Adam(").replace("lr=1e-2", "lr=1e-2, weight_decay=0.5, decoupled_weight_decay=True"),
        ),
        text(BODY, tail=TAIL.replace("    return torch.optim", "    model.first.weight.register_hook(lambda g: -g)\n    return torch.optim")),
    ],
    ids=["no-grad", "float", "autograd-function", "counter", "decoupled", "hook"],
)  # fmt: skip
def test_what_tracing_loses_is_found(recipe: str) -> None:
    assert difference(recipe)


@pytest.mark.parametrize("forward", [BODY, f"self.n += 1\n        {BODY} * self.n"])
def test_a_host_is_told_that_its_graph_would_differ(forward: str) -> None:
    said: list[object] = []
    order = TrialOrder(
        entry="recipe.py", schema=schema_to_plain(VECTORS), settings=SETTINGS,
        rows=16, steps=2, bundle=0, inputs={}, outputs={}, export=True,
    )  # fmt: skip
    parent = SimpleNamespace(buffers=memoryview(bytearray(1 << 20)), answer=said.append)
    files = {"recipe.py": text(forward).encode()}
    TriedRecipe(order, cast("WorkerEnd", parent), files).do()
    (answer,) = said
    if forward == BODY:
        assert isinstance(answer, Exported)
    else:
        assert isinstance(answer, NotExported)
        assert "computes something else" in answer.why
