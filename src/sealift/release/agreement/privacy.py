"""An owner's budget of differential privacy, and what an agreement must be to keep to it.

A budget bounds what everybody together can learn of one row from all that was ever
computed on its table with noise. It is a part of the owner's own rule, so nobody else can
change it. What the owner's broker does not count, no agreement with a budget allows.
Source: spec/release.md section Budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.errors import MalformedError

MAX_EPSILON: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """The most that may be spent on one table, with all that its vault spent on others.

    Attributes:
        epsilon: How much more likely any outcome may become by one row: by a factor of
            at most e to this power.
        delta: Chance with which that may fail.
        unit: Whose data it is about: one row, which is added or removed.

    Raises:
        MalformedError: ``bad-privacy``.
    """

    epsilon: float
    delta: float
    unit: Literal["row"] = "row"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise bad_privacy(
                f"epsilon is {self.epsilon:g}; it must be above 0 and at most {MAX_EPSILON:g}",
                "epsilon",
            )
        if not 0 < self.delta < 1:
            raise bad_privacy(
                f"delta is {self.delta:g}; it must be above 0 and below 1", "delta"
            )

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}, for each {self.unit}"

    def require_rows(self, rows: int) -> None:
        """Refuse a delta that a table of so many rows would make meaningless.

        Raises:
            MalformedError: ``bad-privacy``.
        """
        if self.delta * rows >= 1:
            raise bad_privacy(
                f"delta is {self.delta:g}, and the table has {rows:,} rows: with 1 / rows or "
                "more, whole rows could be shown",
                "delta",
            )


def bad_privacy(why: str, field: str) -> MalformedError:
    """The error for steps or a budget that make no sense."""
    return MalformedError(
        "the numbers for differential privacy are not valid",
        why=why,
        field=field,
        code="bad-privacy",
    )
