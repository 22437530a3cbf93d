"""A recipe that brings weights and a tokenizer: fetched, cut, resumed, read in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.distributed.test_meeting import OWNERS, YES, Parties

pytestmark = pytest.mark.distributed
# A small transformer; what is frozen of it came with the recipe.
BASE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        n = self.first(x)
        x = x + self.out(F.scaled_dot_product_attention(self.query(n), self.key(n), self.value(n)))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList([Block(width), Block(width)])

    def forward(self, pixel):
        x = self.embed(pixel.view(-1, 8, 8) / 16.0)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))
"""
RECIPE = """
import json

import torch
from base import Reader
from torch import nn
from torch.nn import functional as F

from sealift import recipes


class Adapter(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(4, inner.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x):
        return self.inner(x) + x @ self.down.T @ self.up.T


def build():
    settings = json.loads(bytes(recipes.asset("config.json")))
    model = Reader(settings["width"])
    model.load_state_dict(recipes.weights("base.safetensors"))
    model.requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = Adapter(block.query), Adapter(block.value)
    model.head = Adapter(model.head)
    return model


def loss(model, batch):
    return F.cross_entropy(model(batch["pixel"]), batch["digit"])


def configure_optimizers(model):
    trained = [each for each in model.parameters() if each.requires_grad]
    return torch.optim.AdamW(trained, lr=5e-2)


def evaluate(model, batch):
    right = (model(batch["pixel"]).argmax(dim=1) == batch["digit"]).sum()
    return {"accuracy": float(right)}
"""
WIDTH = 32
JOB = 'recipe = "code"\n[training]\nepochs = 2\nbatch_rows = 32\nseed = 7\n'


def base() -> torch.nn.Module:
    """What the recipe brings; random, so that nothing is downloaded."""
    torch.manual_seed(1)
    found: dict[str, Any] = {}
    exec(BASE, found)
    model: torch.nn.Module = found["Reader"](WIDTH)
    return model


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path)
    recipe = tmp_path / "host" / "digits"
    (recipe / "recipe.py").write_text(RECIPE)
    (recipe / "base.py").write_text(BASE)
    (recipe / "job.toml").write_text(JOB)
    assets = recipe / "assets"
    assets.mkdir()
    state = base().state_dict()
    # Many pieces, so that there is something to cut.
    save_file(state, assets / "base.safetensors")
    save_file({"padding": torch.rand(3_000_000)}, assets / "more.safetensors")
    (assets / "config.json").write_text(json.dumps({"width": WIDTH}))
    yield made
    for each in made.typed:
        if each.process.poll() is None:
            each.kill()


def test_an_adapter_is_trained_on_weights_that_came_with_the_recipe(
    parties: Parties,
) -> None:
    host = parties.host("--invite", *OWNERS)
    north = parties.join("north")
    north.wait_text("fetching more.safetensors: ")
    north.kill()
    owners = {"north": parties.join("north", answers=YES[1:])}
    owners |= {name: parties.join(name) for name in OWNERS[1:]}
    for each in owners.values():
        assert each.end() == 0, each.text[-3000:]
    assert host.end() == 0, host.text[-3000:]
    home = parties.folder / "host"
    for name in OWNERS:
        for asset in ("base.safetensors", "config.json", "more.safetensors"):
            kept = parties.folder / name / "recipe" / "assets" / asset
            declared = home / "digits" / "assets" / asset
            assert kept.read_bytes() == declared.read_bytes()
        assert not (parties.folder / name / ".assets").exists()
    model = load_file(home / "model.safetensors")
    places = (
        "blocks.0.query",
        "blocks.0.value",
        "blocks.1.query",
        "blocks.1.value",
        "head",
    )
    assert set(model) == {
        f"{each}.{part}" for each in places for part in ("down", "up")
    }
    assert all(model[f"{each}.up"].abs().max() > 0 for each in places)
    for asset in ("base.safetensors", "config.json", "more.safetensors"):
        kept = home / "recipe" / "assets" / asset
        assert kept.read_bytes() == (home / "digits" / "assets" / asset).read_bytes()
