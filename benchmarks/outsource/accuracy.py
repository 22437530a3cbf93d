"""What eight bits cost: digit readers trained in float32, and with quantized products.

The same weights, batches and optimizer for both, a seed each. The products are made in
place: servers give the same numbers bit for bit. Of each layer's products the head-room is
counted: bits between the largest number that came out and half its modulus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import mean, stdev
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.outsource.models import DigitsTransformer, digits_cnn, digits_mlp
from benchmarks.report import BenchReport, Row
from sealift.demo.tasks import load_images
from sealift.numeric.kernels import best_kernels
from sealift.numeric.residues import F32, I16
from sealift.outsource.convert import Route, convert
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind

Descend = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_sgd: Final[Descend] = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
MODELS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Descend]]] = {
    "mlp": (digits_mlp, (64,), _sgd),
    "cnn": (digits_cnn, (1, 8, 8), _sgd),
    "transformer": (
        DigitsTransformer,
        (8, 8),
        partial(torch.optim.AdamW, lr=0.002),
    ),
}
BATCH: Final = 32
EPOCHS: Final = 10
HELD_OUT: Final = 360
Step = Callable[[int, int], AbstractContextManager[None]]


class HeadRoom(PlainProducts):
    """Counts how close products come to half their modulus."""

    def __init__(self) -> None:
        self._left: dict[str, dict[Direction, Counter[int]]] = {}

    def forward(self, exchange: Forward, x: I16, w: I16, scale: float) -> F32:
        """See ``PlainProducts``."""
        found = super().forward(exchange, x, w, scale)
        self._note(exchange.layer, "forward", found, scale)
        return found

    def backward(
        self, exchange: Backward, dy: I16, scales: tuple[float, ...]
    ) -> list[F32]:
        """See ``PlainProducts``."""
        layer = self._calls[exchange.call][0]
        found = super().backward(exchange, dy, scales)
        for each in zip(exchange.wants, found, scales, strict=True):
            self._note(layer, *each)
        return found

    def rows(self, model: str) -> Iterator[Row]:
        """One a layer: of its forward product and both gradients, calls by bits left."""
        for name, left in self._left.items():
            row: Row = {"model": model, "layer": name}
            yield row | {
                f"{direction}_bits_left": " ".join(
                    f"{bits}:{calls}" for bits, calls in sorted(counted.items())
                )
                for direction, counted in left.items()
            }

    def _note(
        self, layer: Layer, direction: Direction, found: F32, scale: float
    ) -> None:
        largest = max(float(np.abs(found).max(initial=0)) / scale, 1.0)
        bits = int(np.log2(layer.basis(direction).modulus // 2 / largest))
        counted = self._left.setdefault(layer.name, {})
        counted.setdefault(direction, Counter())[bits] += 1


@dataclass(frozen=True, slots=True)
class Images:
    """Pixels from 0 to 1, and what they show."""

    x: Tensor
    y: Tensor


def measure_accuracy(report: BenchReport, seeds: int) -> None:
    """All models, over seeds; the worst gap is the ratio."""
    torch.set_num_threads(1)
    for name, (make, shape, descend) in MODELS.items():
        products, found = HeadRoom(), dict[str, list[float]]()
        for seed in range(seeds):
            train, held = _split(seed, shape)
            for way in ("float32", "quantized"):
                torch.manual_seed(seed)
                model = make()
                step = _plain if way == "float32" else _quantized(model, products, seed)
                optimizer = descend(model.parameters())
                accuracy = _train(model, optimizer, train, held, seed, step)
                found.setdefault(way, []).append(100 * accuracy)
        gaps = [f - q for f, q in zip(*found.values(), strict=True)]
        report.rows.append(
            {
                "model": name,
                "seeds": seeds,
                **{
                    f"{way}_percent": round(mean(each), 2)
                    for way, each in found.items()
                },
                "gap_points": round(mean(gaps), 2),
                "standard_error": round(stdev(gaps) / sqrt(seeds), 2),
            }
        )
        report.rows += products.rows(name)
        report.keep_highest("accuracy_gap_points", mean(gaps))


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Images,
    held: Images,
    seed: int,
    step: Step,
) -> float:
    """The share of held-out rows that are read rightly, by the same arithmetic."""
    order, number = torch.Generator().manual_seed(seed), 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train.x), generator=order).split(BATCH):
            optimizer.zero_grad()
            with step(len(rows), number):
                cross_entropy(model(train.x[rows]), train.y[rows]).backward()
            optimizer.step()
            number += 1
    with torch.no_grad(), step(len(held.x), number):
        found = model(held.x).argmax(1)
    return float((found == held.y).float().mean())


def _quantized(model: nn.Module, products: PlainProducts, seed: int) -> Step:
    route = Route()
    names = convert(model, route)
    route.edges = frozenset((names[0], names[-1]))
    multiplier = Multiplier(products, best_kernels(), seed)

    @contextmanager
    def step(rows: int, number: int) -> Iterator[None]:
        route.begin()
        multiplier.begin(StepKind("train", rows), number, Recorder())
        with route.to(multiplier, keeps=True):
            yield
        multiplier.settle()

    return step


def _plain(_rows: int, _number: int) -> AbstractContextManager[None]:
    return nullcontext()


def _split(seed: int, shape: tuple[int, ...]) -> tuple[Images, Images]:
    pixels, labels = load_images()
    x, y = torch.from_numpy(pixels / 16).reshape(-1, *shape), torch.from_numpy(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    return Images(x[train], y[train]), Images(x[held], y[held])
