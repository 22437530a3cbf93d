"""A folder of images, and an adapter of a small transformer, typed at terminals."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from sealift.train.output.modelfacts import read_facts
from tests.newcomer.parties import YES, Newcomers

pytestmark = pytest.mark.distributed
OWNERS = ("north", "south")
ROWS = 240  # of which by the chance of a key never fewer than 16 are held out
ANSWERS = dict.fromkeys(OWNERS, YES)
IMAGES = """
import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))

    def forward(self, batch):
        return self.layers(batch["image"].float() / 255)

    def training_step(self, batch, step):
        return nn.functional.cross_entropy(self(batch), batch["label"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def build():
    return Reader()


def predict(model, batch):
    return {"label": model(batch).argmax(1)}


def evaluate(model, batch):
    return {"accuracy": float((model(batch).argmax(1) == batch["label"]).sum())}
"""
KINDS = ("ant", "bee", "cat")
# A transformer whose weights come with the recipe; its adapter alone is trained.
ADAPTER = """
import json

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from sealift import recipes


class Reader(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model(input_ids=batch["tokens"]).logits

    def training_step(self, batch, step):
        return nn.functional.cross_entropy(self(batch), batch["urgent"])

    def configure_optimizers(self):
        trained = [each for each in self.parameters() if each.requires_grad]
        return torch.optim.AdamW(trained, lr=0.01)


def build():
    settings = json.loads(bytes(recipes.asset("config.json")))
    model = BertForSequenceClassification(BertConfig(**settings))
    model.load_state_dict(recipes.weights("base.safetensors"))
    wanted = {"target_modules": ["query", "value"], "modules_to_save": ["classifier"]}
    return Reader(get_peft_model(model, LoraConfig(r=4, **wanted)))


def predict(model, batch):
    return {"urgent": model(batch).softmax(1)[:, 1]}


def evaluate(model, batch):
    return {"accuracy": float((model(batch).argmax(1) == batch["urgent"]).sum())}
"""
SCHEMA = """
[[fields]]
name = "tokens"
dtype = "int64"
shape = [12]
classes = 64

[[fields]]
name = "urgent"
dtype = "int64"
classes = 2
"""
SETTINGS = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16,
}  # fmt: skip
JOB = 'recipe = "code"\n[training]\nepochs = {}\nbatch_rows = 16\n'
Figure = Callable[[str, object], None]


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Newcomers]:
    made = Newcomers(tmp_path, OWNERS, "recipe")
    yield made
    made.close()


def train(parties: Newcomers, data: str, *more: str) -> None:
    host = parties.invite()
    owners = parties.join(data, *more, answers=ANSWERS)
    for each in owners.values():
        assert each.end() == 0, each.text[-5000:]
    assert host.end() == 0, host.text[-5000:]


def test_a_folder_of_images(parties: Newcomers, record_property: Figure) -> None:
    """Each owner's photographs have a size of their own; south has none of one kind."""
    began_s = time.monotonic()
    chance = np.random.default_rng(0)
    folders = {f"{name}/images": KINDS[place:] for place, name in enumerate(OWNERS)}
    for place, (folder, kinds) in enumerate({**folders, "host/new": KINDS}.items()):
        for kind in kinds:
            home = parties.folder / folder / kind
            home.mkdir(parents=True)
            for row in range(2 if folder == "host/new" else 100):
                pixels = chance.integers(0, 120, (10 + place, 12, 3), dtype=np.uint8)
                pixels[..., KINDS.index(kind)] += 120
                Image.fromarray(pixels).save(home / f"{row}.png")
    words = ["data", "schema", "../north/images", "--image-size", "8x8"]
    parties.run("host", *words, "-o", "recipe/schema.toml")
    (parties.recipe / "recipe.py").write_text(IMAGES)
    (parties.recipe / "job.toml").write_text(JOB.format(4))
    train(parties, "images", "--image-size", "8x8")
    facts = read_facts(parties.home / "model.safetensors")
    assert facts.train["north"] + facts.heldout["north"] == 300
    assert facts.train["south"] + facts.heldout["south"] == 200
    words = ["predict", "model.safetensors", "new", "--image-size", "8x8"]
    parties.run("host", *words, "-o", "predictions.csv")
    assert len(read_column(parties.home / "predictions.csv", "label")) == 6
    took_s = time.monotonic() - began_s
    record_property("figure", f"newcomer's folder of images: {took_s:.0f} s")


def read_column(path: Path, name: str) -> list[str]:
    with path.open() as file:
        return [row[name] for row in csv.DictReader(file)]


def test_an_adapter_of_a_small_transformer(
    parties: Newcomers, record_property: Figure
) -> None:
    """peft and transformers as they are installed, in a sandbox without a network."""
    began_s = time.monotonic()
    base = write_base(parties)
    chance = np.random.default_rng(1)
    for name in (*OWNERS, "host"):
        tokens = chance.integers(0, 64, (ROWS, 12))
        urgent = (tokens[:, 0] > 32).astype(np.int64)
        path = parties.folder / name / "train.npz"
        np.savez(path, tokens=tokens, **({} if name == "host" else {"urgent": urgent}))
    (parties.recipe / "recipe.py").write_text(ADAPTER)
    (parties.recipe / "schema.toml").write_text(SCHEMA)
    (parties.recipe / "job.toml").write_text(JOB.format(2))
    train(parties, "train.npz")
    trained = load_file(parties.home / "model.safetensors")
    assert not trained.keys() & base.keys()
    assert {name.rpartition("lora_")[2][:1] for name in trained if "lora" in name} == {
        "A", "B",
    }  # fmt: skip
    assert any(each.abs().max() for n, each in trained.items() if "lora_B" in n)
    for name in OWNERS:
        kept = parties.folder / name / "recipe" / "assets" / "base.safetensors"
        assert load_file(kept).keys() == base.keys()
    words = ["predict", "model.safetensors", "train.npz", "-o", "predictions.csv"]
    parties.run("host", *words)
    assert len(read_column(parties.home / "predictions.csv", "urgent")) == ROWS
    took_s = time.monotonic() - began_s
    record_property("figure", f"newcomer's adapter of a transformer: {took_s:.0f} s")


def write_base(parties: Newcomers) -> dict[str, Any]:
    """Weights that were made here, and what the transformer is built by."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.manual_seed(0)
    config = transformers.BertConfig(**SETTINGS)
    state = transformers.BertForSequenceClassification(config).state_dict()
    assets = parties.recipe / "assets"
    assets.mkdir()
    save_file(state, assets / "base.safetensors")
    (assets / "config.json").write_text(json.dumps(SETTINGS))
    return dict(state)
