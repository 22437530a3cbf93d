"""`sealift privacy`: what a budget allows, before anybody is invited; what was spent.

Both give the numbers by which the owner's broker decides (``release/accountant.py``).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any, Final

from sealift.cli.console import say, show, unlock
from sealift.errors import UsageError, visible
from sealift.release.accountant import ACCOUNTANT, SAMPLER, PrivateRound, spent_epsilon
from sealift.release.agreement import PrivacyBudget
from sealift.release.agreement.phrases import count, say_surest
from sealift.release.agreement.privacy import bad_privacy
from sealift.release.agreement.training import PrivateSteps
from sealift.release.broker.stores import opened_vault
from sealift.release.vault.ledger import DebitedRound

MAX_ROWS: Final = 1 << 40
MAX_EPOCHS: Final = 100_000
_LEAST_NOISE: Final = 0.05
_MOST_NOISE: Final = 1e5
_DIGITS: Final = 1000  # of what is proposed: three decimal places


def add_parser(subparsers: Any) -> None:
    """Add the noun `privacy`."""
    verbs = subparsers.add_parser("privacy").add_verbs()
    plan = verbs.add_parser(
        "plan",
        run=_plan,
        help="compute the noise that a budget needs, or what noise costs",
        description="With --epsilon it proposes the least noise with which all rounds fit the budget; with "
        "--noise it says the epsilon that they cost. The owner's broker counts by the same function.",
    )
    plan.add_argument("--rows", type=int, required=True, help="rows of the table")
    plan.add_argument(
        "--batch", type=int, required=True, help="expected rows of a step"
    )
    plan.add_argument("--epochs", type=int, required=True, help="rounds, in all jobs")
    plan.add_argument("--delta", type=float, required=True, help="below 1 / rows")
    given = plan.add_mutually_exclusive_group(required=True)
    given.add_argument("--epsilon", type=float, help="the budget")
    given.add_argument("--noise", type=float, help="standard deviation, in units of the clip norm")  # fmt: skip
    plan.add_json()
    ledger = verbs.add_parser(
        "ledger",
        run=_ledger,
        help="show what a vault has spent, and the rounds of each table",
    )
    ledger.add_path("vault")
    ledger.add_file("--key", required=True, help="your identity")
    ledger.add_file("--passphrase-file", help="file with its passphrase")
    ledger.add_json()


def _plan(args: argparse.Namespace) -> None:
    for name, most in (("rows", MAX_ROWS), ("epochs", MAX_EPOCHS)):
        if not 1 <= getattr(args, name) <= most:
            raise bad_privacy(
                f"--{name} is {getattr(args, name)}; it must be 1 or more, and at most {most:,}",
                name,
            )
    asked = args.epsilon if args.epsilon is not None else 1.0
    budget = PrivacyBudget(epsilon=asked, delta=args.delta)
    budget.require_rows(args.rows)
    noise = args.noise
    if noise is None:
        noise = _noise_for(args, budget)
    steps = PrivateSteps(1.0, noise, args.batch)
    epsilon = _epsilon(args, steps)
    if not math.isfinite(epsilon):
        raise bad_privacy(f"noise {noise:g} hides nothing", "noise")
    facts = {
        "noise": noise,
        "steps": steps.steps(args.rows) * args.epochs,
        "rate": round(steps.rate(args.rows), 9),
        "epsilon": math.ceil(epsilon * 10_000) / 10_000,
        "delta": args.delta,
        "sampler": SAMPLER,
        "accountant": ACCOUNTANT,
    }
    show(facts, as_json=args.json, width=10)
    if args.json:
        return
    say(say_surest(epsilon, args.delta))
    say(f"in job.toml: [privacy] with clip = 1.0 (your choice), noise = {noise:g}, batch = {args.batch}")  # fmt: skip


def _epsilon(args: argparse.Namespace, steps: PrivateSteps) -> float:
    made = steps.steps(args.rows) * args.epochs
    return spent_epsilon([PrivateRound(steps.noise, steps.rate(args.rows), made)], args.delta)  # fmt: skip


def _noise_for(args: argparse.Namespace, budget: PrivacyBudget) -> float:
    """The least noise of three decimal places with which all rounds fit."""

    def fits(thousandths: int) -> bool:
        steps = PrivateSteps(1.0, thousandths / _DIGITS, args.batch)
        return _epsilon(args, steps) <= budget.epsilon

    low, high = round(_LEAST_NOISE * _DIGITS) - 1, round(_MOST_NOISE * _DIGITS)
    if not fits(high):
        raise UsageError(
            "no noise is large enough for this budget",
            fix="Plan fewer rounds, or a larger epsilon or delta",
            code="bad-privacy",
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high / _DIGITS


def _ledger(args: argparse.Namespace) -> None:
    with opened_vault(args.vault, unlock(args, args.key)) as vault:
        rounds = vault.ledger.rounds()
    tables: dict[str, list[DebitedRound]] = {}
    for each in rounds:
        tables.setdefault(each.content, []).append(each)
    # As the broker composes them: tables are not told apart, the same people may be in two.
    spent = f"epsilon {rounds[-1].epsilon:.4g}, delta {rounds[-1].delta:g}" if rounds else ""  # fmt: skip
    accounts = {table: _account(debited) for table, debited in tables.items()}
    if args.json:
        print(json.dumps({"spent": spent, "tables": accounts}))
        return
    if not rounds:
        say("no round of private steps was debited in this vault")
        return
    show({"spent": spent}, as_json=False, width=8)
    for table, account in accounts.items():
        print(visible(table))
        show(account, as_json=False, width=8)


def _account(rounds: Sequence[DebitedRound]) -> dict[str, Any]:
    jobs = dict.fromkeys(f"{each.line}/{each.job}" for each in rounds)
    return {
        "rounds": count(len(rounds), "round"),
        "steps": sum(each.cost.steps for each in rounds),
        "jobs": ", ".join(jobs),
    }
