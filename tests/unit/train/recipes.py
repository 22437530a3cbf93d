"""Small recipes as text, a schema and rows that fit it."""

from __future__ import annotations

import torch
from torch import Tensor

from sealift.data.schema.document import parse_schema
from sealift.data.schema.schema import Schema
from sealift.train.sandboxed.recipe import Recipe
from sealift.train.sandboxed.rehearsal import synthetic_rows
from sealift.train.sandboxed.training import GroupRows
from sealift.travel.settings import TrainingSettings

SCHEMA_TOML = b"""
[[fields]]
name = "x"
dtype = "float32"
shape = [4]
min = -3.0
max = 3.0

[[fields]]
name = "y"
dtype = "int64"
classes = 2
"""

PLAIN = """
import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))


def configure_optimizers(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
"""

LIGHTNING = """
import torch
from torch import nn
from torch.nn import functional as F


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 2)

    def training_step(self, batch, step):
        return {"loss": F.cross_entropy(self.layers(batch["x"]), batch["y"])}

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=1e-2)]


def build():
    return Small()


def evaluate(model, batch):
    right = (model.layers(batch["x"]).argmax(1) == batch["y"]).sum()
    return {"accuracy": right}
"""

SETTINGS = TrainingSettings(seed=3, batch_rows=8, threads=1)


def schema() -> Schema:
    return parse_schema(SCHEMA_TOML)


def rows(count: int, seed: int = 1) -> Tensor:
    return synthetic_rows(schema(), count, seed=seed)


def table(count: int, seed: int = 1) -> GroupRows:
    return GroupRows([rows(count, seed)], schema())


def load(text: str, **others: str) -> Recipe:
    """A recipe of these files; ``a__b`` stands for ``a/b.py``."""
    files = {f"{name.replace('__', '/')}.py": each for name, each in others.items()}
    bundle = {"recipe.py": text, **files}
    return Recipe({path: body.encode() for path, body in bundle.items()}, "recipe.py")


def threads_of_torch() -> int:
    return int(torch.get_num_threads())
