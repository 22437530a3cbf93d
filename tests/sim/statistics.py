"""A job that makes statistics of the digits, and what they must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from sealift.demo.folder import World
from tests.sim.jobworld import RECIPE, Wishes

OWNERS = ("north", "east", "south")
PREPARE = """
import torch
from sealift.recipes import class_counts, moments

def prepare(batch):
    pixels = batch["pixels"].to(torch.int64)
    return moments("pixels", pixels) | class_counts("digits", batch["label"], 10)
"""
BUILD = """
from sealift.recipes import mean_and_variance

def build(statistics):
    torch.manual_seed(int(statistics["digits"][3]))
    mean, variance = mean_and_variance(statistics, "pixels")
    made = Small()
    made.register_buffer("mean", mean.float())
    return made
"""
NAMES = ("digits", "pixels_count", "pixels_sum", "pixels_squares")
RULE = {
    "statistics": str(list(NAMES)).replace("'", '"'),
    "statistics_rows": "100",
    "digits": "3",
}


def statistics_alone(**more: Any) -> Wishes:
    """No model, no training."""
    rule = {**RULE, **more.pop("rule", {})}
    return Wishes(
        owners=OWNERS, recipe=PREPARE, epochs=0, prepare="true", rule=rule, **more
    )


def trained_on(**more: Any) -> Wishes:
    """A model that is built on the sums."""
    rule = {**RULE, **more.pop("rule", {})}
    recipe = PREPARE + RECIPE.replace("def build():\n    return Small()\n", BUILD)
    return Wishes(owners=OWNERS, recipe=recipe, prepare="true", rule=rule, **more)


def expected(world: World, owners: tuple[str, ...] = OWNERS) -> dict[str, Any]:
    """The totals, from the tables themselves."""
    tables = [np.load(world.path / "tables" / each / "train.npz") for each in owners]
    pixels = np.concatenate([each["pixels"] for each in tables]).astype(np.int64)
    labels = np.concatenate([each["label"] for each in tables])
    return {
        "digits": np.bincount(labels, minlength=10).astype(float).tolist(),
        "pixels_count": float(len(pixels)),
        "pixels_sum": pixels.sum(0).astype(float).tolist(),
        "pixels_squares": (pixels**2).sum(0).astype(float).tolist(),
    }
