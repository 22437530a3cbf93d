"""N6: a recipe that stood by maps what its task brings, and gets no more than that to read."""

from __future__ import annotations

import os
from io import FileIO

import pytest

from sealift.train.loop.held import Held, MemoryFile
from sealift.train.loop.trainer import Trainer
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.settings import TrainingSettings
from tests.unit.train.joints import cargo

pytestmark = pytest.mark.distributed

# It stood by before its task came, so what maps the task's files is its own by then.
GREEDY = """
import sys
import torch
from torch import nn

pipe = sys.modules["sealift.train.sandboxed.parentpipe"]
receiver = sys.modules.get("sealift.train.sandboxed.recipeworker")
FOUND = pipe.__dict__.setdefault("FOUND", set())
plain = pipe.map_copy

def greedy(descriptor, length, start=0):
    try:
        pipe.map_area(descriptor, length, start)
        FOUND.add(1)  # it could write them
    except OSError:
        pass
    if start:
        page = start - start % 4096
        if any(plain(descriptor, 4096, page - 4096)):
            FOUND.add(2)  # it read what lies beside its stretch
    return plain(descriptor, length, start)

if receiver is not None:
    receiver.map_copy = greedy

def build():
    return nn.Linear(4, 2)

def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)

def loss(model, batch):
    return model(batch["x"]).sum() * 0.0 + float(sum(FOUND))
"""


def loaded(executor: RecipeExecutor) -> None:
    """Wait until who stands by has loaded the recipe: it would not, once a task is there."""
    standbys = executor._standbys
    assert standbys is not None
    assert standbys._next is not None
    standbys._next[1]._over.wait()


def found() -> float:
    """What the recipe could do, as its loss on bob's rows: 1 to write, 2 to read beside."""
    told: list[str] = []
    settings = TrainingSettings(seed=1, batch_rows=16)
    with RecipeExecutor(
        {"recipe.py": GREEDY.encode()}, "recipe.py", tell=told.append
    ) as executor:
        executor.compute_on("cpu")
        executor.stand_by(settings, [])
        loaded(executor)
        training = Trainer(executor, settings, alone=("ada", "bob"))
        training.build()
        loaded(executor)
        training.work([cargo("ada")])  # ada's own model lies beside the joint one now
        loaded(executor)
        loss = training.work([cargo("bob")])["bob-train"].metrics["loss"]
    assert told[-1].startswith("3 of 3 tasks began in a process ")
    return loss


def test_a_standbys_recipe_writes_no_state_and_reads_none_but_its_own() -> None:
    assert found() == 0.0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["writes", "reads"])
def test_it_could_by_another_descriptor(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the recipe does what it says."""
    if kind == "writes":
        monkeypatch.setattr(
            MemoryFile, "open_to_read", lambda self: FileIO(os.dup(self.descriptor))
        )
    else:
        monkeypatch.setattr(Held, "by_itself", lambda self: self)
    assert found() == {"writes": 1.0, "reads": 2.0}[kind]
