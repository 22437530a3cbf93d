"""What was measured on held-out rows: by model, by whose rows, by epoch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sealift.lab.demo.progress import VisitSeen
from sealift.lab.worlds.folder import OWNERS

TOGETHER: Final = "together"
MODELS: Final = (*OWNERS, TOGETHER)  # each owner's own model, and the joint one


def mean(visits: Sequence[VisitSeen], model: str, metric: str) -> float | None:
    """A model's metric over the rows of these visits; None if it was not let out."""
    name = metric if model == TOGETHER else f"alone.{model}.{metric}"
    found = [(visit.rows, visit.metrics.get(name)) for visit in visits]
    told = [(rows, value) for rows, value in found if value is not None]
    if not told:
        return None
    return sum(rows * value for rows, value in told) / sum(rows for rows, _ in told)


def epochs(visits: Sequence[VisitSeen]) -> list[int]:
    """Epochs after which was measured."""
    return sorted({visit.epoch for visit in visits})


def after(visits: Sequence[VisitSeen], epoch: int) -> list[VisitSeen]:
    """The visits that measured after one epoch."""
    return [visit for visit in visits if visit.epoch == epoch]
