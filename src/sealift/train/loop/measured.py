"""Numbers measured on slices of rows, and which of them may leave (rule H8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sealift.release.agreement import OutputRule

ALONE: Final = "alone"


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers that a group of slices gave, raw or let out.

    Attributes:
        rows: Rows that they cover.
        metrics: By name; ``alone.OWNER.NAME`` for a baseline.
        curve: Mean losses of the windows that the slice's steps were cut into.
        curve_rows: Rows of each window.
        shared: Whether the rows are several owners', so that nobody owns the numbers.
    """

    rows: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    curve_rows: tuple[int, ...] = ()
    shared: bool = False


def let_out(found: Measured, rule: OutputRule) -> Measured:
    """What of the numbers may leave: those that the output rule names, rounded.

    ``alone.OWNER.NAME`` needs ``baseline_alone`` besides the name. Anything else, and
    anything that is not finite, stays inside, as does every number measured on fewer
    rows than the rule says: a visit of one row must not tell about that row. Where the
    loss leaves in windows, its mean is made of the rounded ones and so no further value.
    """
    hidden = found.shared and rule.audience == "owner"
    if found.rows < rule.metric_rows or hidden:
        return Measured(found.rows, shared=found.shared)
    metrics = {
        name: round(value, rule.digits)
        for name, value in found.metrics.items()
        if _named(name, rule) and math.isfinite(value)
    }
    curve = tuple(round(value, rule.digits) for value in found.curve)
    if "loss" not in metrics or len(curve) < 2 or len(curve) > rule.values_per_visit:
        return Measured(found.rows, metrics, shared=found.shared)
    pairs = zip(curve, found.curve_rows, strict=True)
    mean = sum(value * rows for value, rows in pairs) / sum(found.curve_rows)
    if not math.isfinite(mean):  # of numbers that are, but too large to add up
        return Measured(found.rows, shared=found.shared)
    metrics["loss"] = round(mean, rule.digits)
    return Measured(found.rows, metrics, curve, found.curve_rows, found.shared)


def _named(name: str, rule: OutputRule) -> bool:
    if name.startswith(f"{ALONE}."):
        return rule.baseline_alone and name.rpartition(".")[2] in rule.metrics
    return name in rule.metrics
