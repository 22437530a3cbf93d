"""Training steps of a graph recipe beside those of the program that it was made of.

Both arms make the same step on the same batch: gradients set to none, loss, backward pass,
optimizer. A call of an arm makes as many steps as take about the same time for each model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from benchmarks.report import BenchReport, interleaved, start_report
from sealift import recipes
from sealift.data.schema.schema import Field, Schema
from sealift.graph.export import export_recipe
from sealift.release.agreement.terms import GRAPH_ENTRY
from sealift.train.sandboxed.graphrecipe import load_recipe
from sealift.train.sandboxed.recipe import Recipe, let_through
from tests.unit.graph.larger import GPT, RESNET
from tests.unit.graph.models import HEAD, rows_for

REPEATS: Final = 41
QUICK_REPEATS: Final = 11
BAR: Final = 1.05
MLP: Final = f"""{HEAD}
def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)
"""


@dataclass(frozen=True)
class Measured:
    """A model that is trained, and how many steps one call makes."""

    text: str
    schema: Schema
    rows: int
    steps: int


MODELS: Final = {
    "MLP 64-64-10": Measured(
        MLP,
        Schema((Field("x", "float32", (64,)), Field("y", "int64", classes=10))),
        rows=32,
        steps=200,
    ),
    "ResNet-18, 32 x 32": Measured(
        RESNET,
        Schema((Field("x", "float32", (3, 32, 32)), Field("y", "int64", classes=5))),
        rows=16,
        steps=2,
    ),
    "GPT, 10 M parameters, 64 tokens": Measured(
        GPT.replace(
            "vocab=50, T=11, d=32, heads=4, depth=2",
            "vocab=2048, T=63, d=320, heads=5, depth=8",
        ),
        Schema((Field("x", "int64", (64,), classes=2048),)),
        rows=4,
        steps=1,
    ),
}


def run(*, quick: bool = False) -> BenchReport:
    """Measure three models; about five minutes, with ``quick`` under two."""
    report = start_report("graph")
    report.real = ["both arms in one process, on the CPU, with two threads"]
    torch.set_num_threads(2)
    for name, each in MODELS.items():
        arms, parameters, operations = _arms(each)
        spent = interleaved(arms, QUICK_REPEATS if quick else REPEATS, warm_up=2)
        eager, graph = spent["eager"].median, spent["graph"].median
        report.rows.append(
            {
                "model": name,
                "parameters": parameters,
                "operations": operations,
                "rows": each.rows,
                "eager_ms": round(eager / each.steps * 1000, 4),
                "graph_ms": round(graph / each.steps * 1000, 4),
                "ratio": round(graph / eager, 3),
                "bar": BAR,
            }
        )
        report.keep_highest("graph_beside_eager", graph / eager)
    return report


def _arms(measured: Measured) -> tuple[dict[str, Callable[[], object]], int, int]:
    own = Recipe({"recipe.py": measured.text.encode()}, "recipe.py", guard=let_through)
    files = export_recipe(own, measured.schema)
    assets = {n: memoryview(e) for n, e in files.items() if n != GRAPH_ENTRY}
    recipes.provide_assets(assets)
    graph = load_recipe(files, GRAPH_ENTRY, guard=let_through)
    batch = rows_for(measured.schema, measured.rows)
    arms: dict[str, Callable[[], object]] = {}
    parameters = 0
    for name, recipe in (("eager", own), ("graph", graph)):
        model: Any = recipe.build()
        model.train()
        parameters = sum(each.numel() for each in model.parameters())
        optimizer = recipe.optimization(model).optimizer
        arms[name] = _Steps(recipe, model, optimizer, batch, measured.steps)
    document = vars(graph)["document"]
    return arms, parameters, len(document.loss.nodes)


class _Steps:
    """So many steps on one batch."""

    def __init__(
        self, recipe: Any, model: Any, optimizer: Any, batch: Any, steps: int
    ) -> None:
        self._recipe, self._model = recipe, model
        self._optimizer, self._batch, self._steps = optimizer, batch, steps

    def __call__(self) -> None:
        for step in range(self._steps):
            self._optimizer.zero_grad()
            self._recipe.loss(self._model, self._batch, step).backward()
            self._optimizer.step()
