"""Recipes as text that are exported, their schemas, and rows for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sealift import recipes
from sealift.data.schema.schema import Field, Schema
from sealift.graph.export import export_recipe
from sealift.release.agreement.terms import GRAPH_ENTRY
from sealift.train.sandboxed.graphrecipe import GraphRecipe, load_recipe
from sealift.train.sandboxed.recipe import Recipe, let_through

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""
TAIL = """
def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def configure_optimizers(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
"""
MLP = f"""{HEAD}
def build():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

{TAIL}
"""
VECTORS = Schema((Field("x", "float32", (6,)), Field("y", "int64", classes=3)))


def program(text: str) -> Recipe:
    """A recipe that is a program; its errors say all."""
    return Recipe({"recipe.py": text.encode()}, "recipe.py", guard=let_through)


def export(text: str, schema: Schema, **more: object) -> dict[str, bytes]:
    """The bundle of its graph recipe."""
    return export_recipe(program(text), schema, **more)  # type: ignore[arg-type]


def load(files: Mapping[str, bytes]) -> GraphRecipe:
    """The graph recipe of a bundle, with its assets provided."""
    own = {n: memoryview(each) for n, each in files.items() if n != GRAPH_ENTRY}
    recipes.provide_assets(own)
    found = load_recipe(
        {GRAPH_ENTRY: files[GRAPH_ENTRY]}, GRAPH_ENTRY, guard=let_through
    )
    assert isinstance(found, GraphRecipe)
    return found


def rows_for(schema: Schema, rows: int, seed: int = 0) -> dict[str, Tensor]:
    """Rows at random, in their ranges."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for each in schema.fields:
        shape = (rows, *each.shape)
        if each.element.kind == "float":
            found[each.name] = torch.rand(shape, generator=draw).to(
                getattr(torch, each.dtype)
            )
        else:
            most = each.classes or 100
            drawn = torch.randint(most, shape, generator=draw)
            found[each.name] = drawn.to(getattr(torch, each.dtype))
    return found


def train_both(text: str, schema: Schema, steps: int = 4, rows: int = 6) -> float:
    """Train a program and its graph alike; how far their losses and states are apart."""
    own = program(text)
    graph = load(export_recipe(own, schema))
    torch.manual_seed(3)
    both: tuple[Any, Any] = own, graph
    models = own.build(), graph.build()
    models[0].load_state_dict(models[1].state_dict())
    optimizers = own.optimization(models[0]), graph.optimization(models[1])
    apart = 0.0
    for step in range(steps):
        batch = rows_for(schema, rows if step < steps - 1 else rows // 2, seed=step)
        losses = []
        for recipe, model, made in zip(both, models, optimizers, strict=True):
            torch.manual_seed(100 + step)
            model.train()
            made.optimizer.zero_grad()
            value = recipe.loss(model, dict(batch), step)
            value.backward()
            made.optimizer.step()
            made.advance(step + 1, 0, let_through)
            losses.append(float(value.detach()))
        apart = max(apart, abs(losses[0] - losses[1]))
    states = (model.state_dict() for model in models)
    for left, right in zip(*(each.values() for each in states), strict=True):
        apart = max(apart, float((left.double() - right.double()).abs().max()))
    return apart
