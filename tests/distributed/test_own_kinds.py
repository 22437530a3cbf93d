"""Owners bring other kinds of tables than text, and split rows to measure on from their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from sealift.data.schema.card import read_card
from sealift.train.output.modelfacts import read_facts
from tests.sim.joining import HOST, meet
from tests.sim.joining import RECIPE as MEETING
from tests.unit.data.sourcefiles import save_to_disk

pytestmark = [pytest.mark.distributed, pytest.mark.long]
RECIPE = """
import torch
from torch import nn


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear({inputs}, 3)

    def _loss(self, batch):
        found = self.line(batch["{field}"].float().flatten(1) / 255)
        return nn.functional.cross_entropy(found, batch["label"])

    def training_step(self, batch, step):
        return self._loss(batch)

    def evaluate(self, batch):
        return {{"loss": self._loss(batch) * len(batch["label"])}}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def build():
    return Line()
"""
IMAGES = """
[[fields]]
name = "image"
dtype = "uint8"
shape = [3, 4, 4]

[[fields]]
name = "label"
dtype = "int64"
categories = ["ant", "bee", "cat"]
"""
NUMBERS = """
[[fields]]
name = "x"
dtype = "float32"
shape = [2]

[[fields]]
name = "label"
dtype = "int64"
categories = ["ant", "bee", "cat"]
"""


def write_recipe(folder: Path, schema: str, inputs: int, field: str) -> None:
    recipe = folder / HOST / MEETING
    recipe.mkdir(parents=True)
    (recipe / "recipe.py").write_text(RECIPE.format(inputs=inputs, field=field))
    (recipe / "schema.toml").write_text(schema)
    (recipe / "job.toml").write_text("[training]\nepochs = 1\nbatch_rows = 8\n")


def test_folders_of_images_and_rows_held_out_of_them(tmp_path: Path) -> None:
    """South lacks a class, and its folders are numbered as everybody's."""
    colours = np.random.default_rng(0)
    kinds = {"north": ("ant", "bee", "cat"), "south": ("cat", "bee")}
    for name, classes in kinds.items():
        for each in classes:
            folder = tmp_path / name / "images" / each
            folder.mkdir(parents=True)
            for row in range(50):
                pixels = colours.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{row}.png")
    write_recipe(tmp_path, IMAGES, 48, "image")
    said = meet(tmp_path, dict.fromkeys(kinds, ("images", "33%")))
    measured = {}
    for name, classes in kinds.items():
        sealed = tmp_path / name / "sealed"
        train = read_card(sealed / f"{name}-train.resource.json").resource
        held = read_card(sealed / f"{name}-heldout.resource.json").resource
        assert train.rows + held.rows == 50 * len(classes)
        assert any(f"{held.rows} rows fit" in line for line in said[name]), said[name]
        measured[name] = held.rows
    facts = read_facts(tmp_path / HOST / "model.safetensors")
    assert facts.heldout == measured  # of both owners
    assert facts.measures.keys() == {"loss"}


def test_arrays_parquet_and_saved_data_sets(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    labels = np.arange(60) % 3
    for name in ("north", "south", "west"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "north" / "t.npz", x=numbers, label=labels)
    lists = pa.array(numbers.tolist(), pa.list_(pa.float32()))
    table = pa.table({"x": lists, "label": pa.array(labels)})
    parquet.write_table(table, tmp_path / "south" / "t.parquet")
    # West numbers its classes in another order.
    other = pa.table({"x": lists, "label": pa.array(2 - labels)})
    features = {"label": {"names": ["cat", "bee", "ant"], "_type": "ClassLabel"}}
    save_to_disk(tmp_path / "west" / "t", other, features)
    write_recipe(tmp_path, NUMBERS, 2, "x")
    meet(
        tmp_path,
        {"north": ("t.npz", None), "south": ("t.parquet", None), "west": ("t", None)},
    )
