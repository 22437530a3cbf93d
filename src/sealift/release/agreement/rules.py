"""What may leave the accelerator, who gets the model, and how it may visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.codec import MAX_INTEGER
from sealift.ids import check_name
from sealift.release.agreement.consistency import (
    require_distinct,
    require_positive,
    require_within,
)
from sealift.release.agreement.resources import MAX_LEASE_S

Audience = Literal["everyone", "owner"]
MAX_DIGITS: Final = 6

_COUNTS: Final = (
    "values_per_visit",
    "metric_rows",
    "min_visits",
    "min_holders",
    "min_rows",
    "min_owner_rows",
    "statistics_rows",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """What may leave the accelerator (rule H8); it enforces this itself.

    Attributes:
        metrics: Names of the numbers that may leave.
        digits: Decimal places that they are rounded to.
        values_per_visit: Most values of one metric from one visit: a slice's steps are
            cut into so many windows at most, each of ``metric_rows`` rows at least.
        metric_rows: Fewest rows that a number which leaves is measured on.
        audience: Who sees numbers measured on an owner's rows: ``everyone`` or only
            the ``owner`` of the rows.
        min_visits: Training visits to every holder before a model leaves.
        max_visits: Visits to one holder at most: to train, and as many to measure.
        min_holders: Distinct holders visited before a model leaves.
        min_rows: Distinct rows trained on before a model leaves.
        min_owner_rows: Distinct rows of each owner among them.
        baseline_alone: Whether a model of each owner's rows alone is trained, to
            compare; its numbers follow this rule, the model itself never leaves.
        recipe_text: Whether the recipe's output and exception text leave.
        statistics: Names of the sums of ``prepare`` that may leave, as totals.
        statistics_rows: Fewest rows that such a total is made of.
        model_to: Parties that get the model; empty for the model owner alone.
        approved_by: Parties that must approve of the model before it leaves.
    """

    metrics: tuple[str, ...]
    digits: int
    values_per_visit: int
    metric_rows: int
    audience: Audience
    min_visits: int
    max_visits: int
    min_holders: int
    min_rows: int
    baseline_alone: bool
    recipe_text: bool
    min_owner_rows: int = 1
    statistics: tuple[str, ...] = ()
    statistics_rows: int = 1
    model_to: tuple[str, ...] = ()
    approved_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.metrics:
            check_name(name.replace("_", "-"), what="metric name")
        for name in self.statistics:
            check_name(name.replace("_", "-"), what="statistic's name")
        for name in ("metrics", "statistics", "model_to", "approved_by"):
            require_distinct(getattr(self, name), name)
        require_within(self.digits, 0, MAX_DIGITS, "digits")
        for name in _COUNTS:
            require_within(getattr(self, name), 1, MAX_INTEGER, name)
        require_within(self.max_visits, self.min_visits, MAX_INTEGER, "max_visits")


@dataclass(frozen=True, slots=True)
class TravelRule:
    """How the accelerator may visit; a job may ask for less, never for more.

    Attributes:
        buffers: 1: one owner's rows are gone before the next owner is met. 2: the next
            owner's rows load while these are trained on (rule H2).
        lease_s: Longest lease, in seconds.
        mixed: Whether batches may be drawn across several owners' rows.
    """

    buffers: Literal[1, 2]
    lease_s: float
    mixed: bool = False

    def __post_init__(self) -> None:
        require_positive(self.lease_s, MAX_LEASE_S, "lease_s")
