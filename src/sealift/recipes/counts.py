"""Counts per class and per interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def class_counts(name: str, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """How many labels there are of each class.

    Args:
        name: Of the sum.
        labels: Whole numbers from 0 to ``classes`` - 1, any shape.
        classes: How many classes.

    Returns:
        ``NAME``: int64, (classes,).

    Raises:
        ValueError: for a label that is no class.
    """
    flat = labels.reshape(-1).to(torch.int64)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < classes:
        raise ValueError(f"{name}: a label is not in 0..{classes - 1}")
    return {name: torch.bincount(flat, minlength=classes)}


def histogram(name: str, values: Tensor, edges: Sequence[float]) -> dict[str, Tensor]:
    """How many values lie between fixed edges.

    Args:
        name: Of the sum.
        values: Any shape; NaN counts as above the last edge.
        edges: Ascending; constants that everybody knows, or they tell about rows.

    Returns:
        ``NAME``: int64, (len(edges) + 1,). Entry 0 counts values below the first edge,
        entry i those with edges[i - 1] <= value < edges[i], the last one the rest.
    """
    bounds = torch.tensor(list(edges), dtype=torch.float64)
    places = torch.bucketize(values.reshape(-1).to(torch.float64), bounds, right=True)
    return {name: torch.bincount(places, minlength=len(bounds) + 1)}


def quantile(counts: Any, edges: Sequence[float], q: float) -> float:
    """A quantile from the totals of ``histogram``, interpolated within its interval.

    It is off by the width of that interval at most. Below the first and above the last
    edge nothing is known: the edge is returned.

    Args:
        counts: Totals of one histogram, (len(edges) + 1,).
        edges: The same as in ``histogram``.
        q: From 0 to 1.
    """
    per_interval = torch.as_tensor(counts)
    wanted = q * float(per_interval.sum())
    reached = per_interval.cumsum(0)
    place = int(torch.searchsorted(reached.to(torch.float64), max(wanted, 1e-9)))
    if place == 0 or place >= len(edges):
        return float(edges[min(place, len(edges) - 1)])
    low, high = edges[place - 1], edges[place]
    before = float(reached[place - 1])
    return float(low + (high - low) * (wanted - before) / float(per_interval[place]))
