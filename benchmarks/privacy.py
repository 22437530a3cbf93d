"""What private steps cost in accuracy: two tables at several budgets, beside no privacy.

The product's own loop, on one owner's table in one process. Digits: 1,797 images of 8x8
pixels; breast cancer: 569 rows of 30 measures (both of scikit-learn). A quarter of the rows
is held out. Features are divided by the power of ten above their largest value among all rows,
which is not private.
Clip, batch and epochs were set by hand for each table before any run; choosing them again on
real rows would spend of the budget, and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, pstdev
from typing import Any, Final

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from benchmarks.report import BenchReport, start_report
from sealift.data.loader.rowtensors import column_views
from sealift.data.schema.document import parse_schema
from sealift.data.schema.schema import Schema
from sealift.release.accountant import PrivateRound, spent_epsilon
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.tasks import SliceId
from sealift.train.sandboxed.recipe import Recipe
from sealift.train.sandboxed.training import GroupRows, Training
from sealift.travel.settings import TrainingSettings

EPSILONS: Final = (1.0, 3.0, 8.0)
DELTA: Final = 1e-5
CLIP: Final = 1.0
SEEDS: Final = 5
RECIPE: Final = """
import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(nn.Linear(FIELDS, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES))


def configure_optimizers(model):
    return torch.optim.Adam(model.parameters(), lr=RATE)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def evaluate(model, batch):
    return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).sum()}
"""


@dataclass(frozen=True, slots=True)
class Table:
    """One table and how it is trained on.

    Attributes:
        scale: Each field is divided by it.
    """

    name: str
    features: Any
    labels: Any
    scale: Any
    classes: int
    batch: int
    epochs: int
    rate: float
    units: int = 32

    def parts(self) -> tuple[Schema, Tensor, Tensor]:
        """The schema, the rows that are trained on, and those that are held out."""
        width = self.features.shape[1]
        fields = f'[[fields]]\nname = "x"\ndtype = "float32"\nshape = [{width}]\n'
        label = f'[[fields]]\nname = "y"\ndtype = "int64"\nclasses = {self.classes}\n'
        schema = parse_schema((fields + label).encode())
        raw = torch.zeros(len(self.labels), schema.row_bytes, dtype=torch.uint8)
        columns = column_views(raw, schema)
        columns["x"][:] = torch.from_numpy(self.features / self.scale)
        columns["y"][:] = torch.from_numpy(self.labels)
        order = torch.randperm(len(raw), generator=torch.Generator().manual_seed(0))
        held = len(raw) // 4
        return schema, raw[order[held:]], raw[order[:held]]

    def recipe(self) -> Recipe:
        """Its network."""
        text = RECIPE.replace("FIELDS", str(self.features.shape[1]))
        text = text.replace("UNITS", str(self.units)).replace("RATE", str(self.rate))
        text = text.replace("CLASSES", str(self.classes))
        return Recipe({"recipe.py": text.encode()}, "recipe.py")


def tables() -> list[Table]:
    """Both tables."""
    digits, cancer = datasets.load_digits(), datasets.load_breast_cancer()
    largest = 10.0 ** np.ceil(np.log10(cancer.data.max(0)))
    return [
        Table("digits", digits.data, digits.target, 16.0, 10, 64, 40, 5e-3),
        Table(
            "breast cancer", cancer.data, cancer.target, largest / 4, 2, 32, 40, 1e-2
        ),
    ]


def noise_for(epsilon: float, rate: float, steps: int) -> float:
    """The least noise with which so many steps cost no more, to a thousandth."""
    low, high = 0.2, 100.0
    while high - low > 1e-3:
        noise = (low + high) / 2
        spent = spent_epsilon([PrivateRound(noise, rate, steps)], DELTA)
        low, high = (low, noise) if spent <= epsilon else (noise, high)
    return high


def run(*, quick: bool = False) -> BenchReport:
    """Train everything; about ten minutes, with ``quick`` about one."""
    report = start_report("privacy")
    report.real = [
        "training by the product's own loop, in this process, without sandbox or other parties",
        f"epsilon by the accountant of brokers, delta {DELTA:g}, unit row",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for table in tables():
            for epsilon in (None, *EPSILONS):
                report.rows.append(_measure(table, epsilon, 1 if quick else SEEDS))
    finally:
        torch.set_num_threads(threads)
    return report


def _measure(table: Table, epsilon: float | None, seeds: int) -> dict[str, Any]:
    schema, rows, held = table.parts()
    terms = PrivateSteps(clip=CLIP, noise=1.0, batch=table.batch)
    steps, rate = terms.steps(len(rows)) * table.epochs, terms.rate(len(rows))
    noise = 0.0 if epsilon is None else noise_for(epsilon, rate, steps)
    found = []
    for seed in range(seeds):
        settings = TrainingSettings(seed=seed, batch_rows=table.batch)
        training = Training(table.recipe(), settings)
        data = GroupRows([rows], schema)
        if epsilon is None:
            for epoch in range(table.epochs):
                training.train_slice(data, [SliceId(epoch, "bench", 0)])
        else:
            private = PrivateSteps(clip=CLIP, noise=noise, batch=table.batch)
            where = [SliceId(0, "bench", 0)]
            training.train_privately(data, where, private, steps=steps)
        found.append(training.evaluate(held, schema)["accuracy"])
    return {
        "table": table.name,
        "epsilon": "none" if epsilon is None else f"{epsilon:g}",
        "noise": round(noise, 3),
        "rows": len(rows),
        "batch": table.batch,
        "steps": steps,
        "seeds": seeds,
        "accuracy": round(mean(found), 4),
        "spread": round(pstdev(found), 4),
    }
