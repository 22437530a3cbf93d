"""What rounds of private steps cost together: the epsilon of everything that was debited.

The accountant is the one of Google's dp-accounting, with Rényi divergences (ADR 0058): any mix of
noises and rates is composed in milliseconds, and its answer is never too low. The owner's
broker, the planner and every reader of a receipt use this one function.
Source: spec/release.md section Budgets.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sealift.errors import UnavailableError

ACCOUNTANT: Final = "RDP (dp-accounting)"
# With noise far below this the accountant's numbers overflow, and it answers zero.
LEAST_NOISE: Final = 1e-6
# Whole orders: each follows term by term from the divergence of the noise alone, which is no
# larger for discrete Gaussian noise (Canonne, Kamath, Steinke 2020) than for that of a line.
_ORDERS: Final = (*range(2, 64), 128, 256, 512, 1024)
SAMPLER: Final = "Poisson, for each row by itself"


@dataclass(frozen=True, slots=True)
class PrivateRound:
    """Equal steps over one table.

    Attributes:
        noise: Standard deviation of the noise, in units of the clip norm (sigma).
        rate: Chance of each row to be drawn for a step (q), above 0 and up to 1.
        steps: How many.
    """

    noise: float
    rate: float
    steps: int


def spent_epsilon(rounds: Iterable[PrivateRound], delta: float) -> float:
    """Epsilon of all these rounds together; infinite where no bound holds.

    Args:
        rounds: Over one table, in any order.
        delta: Chance with which the bound may fail.

    Raises:
        UnavailableError: ``extra-missing``.
    """
    steps = Counter[tuple[float, float]]()
    for each in rounds:
        steps[each.noise, each.rate] += each.steps
    return _epsilon(tuple(sorted((*kind, n) for kind, n in steps.items() if n)), delta)


def require_accountant() -> Any:
    """The library that counts; its import takes seconds, so whoever needs it says when.

    Raises:
        UnavailableError: ``extra-missing``.
    """
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        raise UnavailableError(
            "a privacy budget needs dp-accounting, which is not installed",
            fix="In Sealift's folder, run: pip install '.[privacy]'",
            code="extra-missing",
        ) from None
    # It warns of orders that it leaves out, which makes its answer larger and no less true.
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting, RdpAccountant


def _epsilon(rounds: tuple[tuple[float, float, int], ...], delta: float) -> float:
    if not rounds:
        return 0.0
    if not all(noise >= LEAST_NOISE for noise, _rate, _steps in rounds):
        return math.inf
    try:
        epsilon = float(_composed(rounds).get_epsilon(delta))
    except (ArithmeticError, ValueError):  # noise beside nothing
        return math.inf
    return epsilon if epsilon >= 0 else math.inf  # and not a number


@lru_cache(maxsize=256)
def _composed(rounds: tuple[tuple[float, float, int], ...]) -> Any:
    """What takes the time, and is the same for every delta (15 ms for each kind of round)."""
    library, accountant = require_accountant()
    composed = accountant(_ORDERS)
    for noise, rate, steps in rounds:
        step = library.GaussianDpEvent(noise)
        if rate < 1:
            step = library.PoissonSampledDpEvent(rate, step)
        composed.compose(step, steps)
    return composed
