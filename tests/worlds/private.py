"""Owners who know each other, of whom ada has a privacy budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sealift.release.accountant import PrivateRound, spent_epsilon
from sealift.release.agreement import GroupRule, PrivacyBudget, RunTerms, TrainingRule
from sealift.release.agreement.training import PrivateSteps
from tests.worlds.consortium import OUTPUT, TRAINING, Consortium, make_consortium

ROWS: Final = 40
DELTA: Final = 1e-5
STEPS: Final = PrivateSteps(clip=1.0, noise=1.5, batch=8)
RUN: Final = RunTerms(job="job", plan="ddp", privacy=STEPS)
ROUND: Final = PrivateRound(1.5, 0.2, 5)  # of ROWS rows
OUTPUT_KEPT: Final = replace(OUTPUT, baseline_alone=False)


def training(steps: PrivateSteps | None = STEPS, **changes: Any) -> TrainingRule:
    fields: dict[str, Any] = {"plans": ("ddp",), "rows": ("owner",), "prepare": (False,), "privacy": steps, "privacy_trusts_code": True}  # fmt: skip
    return replace(TRAINING, **(fields | changes))


def budget_of(rounds: int) -> PrivacyBudget:
    """One that allows so many rounds and no more."""
    return PrivacyBudget(epsilon=epsilon_of(rounds) + 1e-9, delta=DELTA)


def epsilon_of(rounds: int) -> float:
    return spent_epsilon([ROUND] * rounds, DELTA)


def with_budget(consortium: Consortium, budget: PrivacyBudget, owner: str) -> Any:
    """Its resources, where this owner's have a budget."""
    return tuple(
        replace(each, rule=replace(each.rule, privacy=budget))
        if each.owner == owner
        else each
        for each in consortium.agreement.resources
    )


def private_consortium(budget: PrivacyBudget, **changes: Any) -> Consortium:
    fields: dict[str, Any] = {"output": OUTPUT_KEPT, "training": training(), "group": GroupRule(3, "owner")}  # fmt: skip
    made = make_consortium(**(fields | changes))
    return made.changed(resources=with_budget(made, budget, "ada"))
