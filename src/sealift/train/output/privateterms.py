"""What a run's private steps bound, table by table: for receipt, card of the model and page.

Everything follows from the signed agreement and from the rounds that the run's manifest
counts. A round that was begun again, or whose result was lost, cost its owner more; so did
other jobs: these are in the owner's own ledger, and below its budget all together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sealift.errors import MalformedError, PolicyError, UnavailableError
from sealift.ids import check_name
from sealift.release.accountant import (
    ACCOUNTANT,
    SAMPLER,
    PrivateRound,
    spent_epsilon,
)
from sealift.release.agreement import Agreement, PrivacyBudget
from sealift.release.agreement.phrases import count, say_list
from sealift.release.agreement.training import PrivateSteps
from sealift.release.agreement.whole import MAX_PARTIES

_DIGITS: Final = 10_000  # an epsilon is rounded up to four decimal places
_SLACK: Final = 1e-6  # two machines' libraries may differ in the last digits
MAX_TABLES: Final = 16 * MAX_PARTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateTable:
    """One table that private steps were made on.

    Attributes:
        owner: Whose it is.
        rows: Of the table.
        rounds: Of this run over it.
        budget: The most that all jobs together may spend on it; None: its owner set none.
    """

    owner: str
    rows: int
    rounds: int
    budget: PrivacyBudget | None

    def __post_init__(self) -> None:
        check_name(self.owner, what="party name")
        if min(self.rows - 1, self.rounds) < 0:
            raise MalformedError("a table has no rows, or less than no rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateTerms:
    """How a model's steps were private; well-formed, whoever wrote it.

    Attributes:
        unit: Whose data noise hides.
        steps: Clip, noise and expected rows of a step.
        sampler: How rows were drawn.
        accountant: What epsilon is computed by.
        at_home: Whether each owner's own rank drew, clipped and added noise; else one
            accelerator did so for all.
        trusts_code: Whether the recipe is a program that was trusted with this.
        tables: In the agreement's order.
    """

    unit: Literal["row"] = "row"
    steps: PrivateSteps
    sampler: Literal["Poisson, for each row by itself"] = SAMPLER
    accountant: Literal["RDP (dp-accounting)"] = ACCOUNTANT
    at_home: bool
    trusts_code: bool
    tables: tuple[PrivateTable, ...]

    def __post_init__(self) -> None:
        if len(self.tables) > MAX_TABLES:
            raise MalformedError("private steps name too many tables", field="tables")

    def epsilon_of(self, table: PrivateTable, budget: PrivacyBudget) -> float:
        """What this run's rounds over all counted tables of one owner cost together.

        Args:
            table: Of this run.
            budget: Of the table; its delta counts.

        Raises:
            UnavailableError: ``extra-missing``.
        """
        counted = (
            each
            for each in self.tables
            if each.owner == table.owner and each.budget is not None
        )
        rounds = (
            PrivateRound(
                self.steps.noise,
                self.steps.rate(each.rows),
                self.steps.steps(each.rows) * each.rounds,
            )
            for each in counted
        )
        return spent_epsilon(rounds, budget.delta)

    def require_within(self) -> None:
        """Refuse rounds that cost more than an owner's budget, whoever counted them.

        Raises:
            PolicyError: ``privacy-overspent``.
            UnavailableError: ``extra-missing``.
        """
        for table in self.tables:
            budget = table.budget
            if budget is None:
                continue
            found = self.epsilon_of(table, budget)
            if not found <= budget.epsilon * (1 + _SLACK):
                raise PolicyError(
                    f"the run cost more than the privacy budget of {table.owner}",
                    why=f"its {count(table.rounds, 'round')} cost epsilon {found:.4g}; the budget is {budget}",
                    code="privacy-overspent",
                )

    def say(self) -> Iterator[str]:
        """For people: how rows were drawn, what each table spent, who had to be honest.

        Where the accountant is not installed, epsilon is said not to be computed.
        """
        steps = self.steps
        yield (
            f"private steps, unit one {self.unit}: sampler {self.sampler}, {steps.batch:,} rows expected in a step; "
            f"clip {steps.clip:g}; noise {steps.noise:g} times the clip; accountant {self.accountant}"
        )
        for table in self.tables:
            yield self._say_table(table)
        owners = say_list(list(dict.fromkeys(each.owner for each in self.tables)))
        yield f"had to be honest: {self._say_honest(owners)}"
        if self.trusts_code:
            yield (
                "the recipe's program was trusted (privacy_trusts_code = true): it read the rows and could let out more than "
                "the noisy sums"
            )

    def _say_honest(self, owners: str) -> str:
        if not self.at_home:
            return f"the accelerator, which drew rows, clipped and added noise for {owners}, and each owner's own broker, which counted"
        drew = f"for each owner's rows the rank on its own machine ({owners}), which drew rows, clipped and"
        if honest := self.steps.honest_ranks:
            return (
                f"{drew} added its part of the noise, its own broker, which counted, and {honest - 1} other ranks, which added their parts "
                "and told nobody (honest_ranks); not the host"
            )
        return f"{drew} added noise, and its own broker, which counted; no other rank, and not the host"

    def _say_table(self, table: PrivateTable) -> str:
        steps = self.steps
        made = (
            f"{table.owner}: {count(table.rounds, 'round')} of {count(steps.steps(table.rows), 'step')} over "
            f"{count(table.rows, 'row')}, each drawn with the chance {steps.rate(table.rows):.4g}"
        )
        budget = table.budget
        if budget is None:
            return f"{made}; its owner set no budget, and nobody counts other jobs"
        try:
            found = self.epsilon_of(table, budget)
        except UnavailableError as error:
            said = f"epsilon is not computed here, because {error.what}"
        else:
            least = (
                math.ceil(found * _DIGITS) / _DIGITS if math.isfinite(found) else found
            )
            said = f"epsilon {least:g} at delta {budget.delta:g}"
        again = "without rounds that were made again, which its owner's ledger counts"
        return f"{made}; {said}, {again}; with all other jobs at most {budget}"


def private_terms(
    agreement: Agreement, visits: Mapping[str, int]
) -> PrivateTerms | None:
    """How a run's steps were private; None if they were not.

    Args:
        agreement: Verified.
        visits: Training visits by data owner, as the run's manifest has them.
    """
    rule = agreement.training
    if rule is None or rule.privacy is None:
        return None
    tables = [each for each in agreement.resources if each.part == "train"]
    held = Counter(each.owner for each in tables)
    return PrivateTerms(
        steps=rule.privacy,
        at_home=agreement.rows_at_home,
        trusts_code=rule.privacy_trusts_code,
        tables=tuple(
            PrivateTable(
                owner=each.owner,
                rows=each.rows,
                rounds=-(-visits.get(each.owner, 0) // held[each.owner]),
                budget=each.rule.privacy,
            )
            for each in tables
        ),
    )
