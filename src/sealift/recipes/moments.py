"""Mean and variance from sums: exact for whole numbers, shifted for others."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor


def moments(name: str, values: Tensor, *, shift: float = 0.0) -> dict[str, Any]:
    """Count, sum and sum of squares over the first dimension.

    Whole numbers are summed as ``int64``, so nothing is rounded while the sums stay
    below 2^53: for bytes, 1.4e11 rows. Others are summed as ``float64``.

    Args:
        name: Starts the names of the three sums.
        values: (rows, ...); a boolean counts as 0 or 1.
        shift: Subtracted from every value that is not whole. A constant near the mean,
            known to everybody, keeps the variance accurate; no row may decide it.

    Returns:
        ``NAME_count``: an int; ``NAME_sum`` and ``NAME_squares``: (...).
    """
    if values.is_floating_point():
        exact = values.to(torch.float64) - shift
    else:
        exact = values.to(torch.int64)
    return {
        f"{name}_count": len(values),
        f"{name}_sum": exact.sum(dim=0),
        f"{name}_squares": exact.square().sum(dim=0),
    }


def mean_and_variance(
    statistics: Mapping[str, Any], name: str, *, shift: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean and population variance from the totals of ``moments``.

    Of whole numbers both are the exact values, rounded once. Of others the relative
    error of the variance is about rows x 1.1e-16 x (1 + (mean - shift)^2 / variance).

    Args:
        statistics: Totals.
        name: As in ``moments``.
        shift: The same as in ``moments``; of no effect on whole numbers.

    Returns:
        Mean and variance, ``float64``, (...).

    Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance",
    The American Statistician 37 (1983).
    """
    count = int(torch.as_tensor(statistics[f"{name}_count"]))
    sums = torch.as_tensor(statistics[f"{name}_sum"])
    squares = torch.as_tensor(statistics[f"{name}_squares"])
    if count < 1:
        raise ValueError(f"{name} has no rows")
    if sums.is_floating_point():
        mean = sums / count
        return mean + shift, (squares / count - mean.square()).clamp(min=0.0)
    pairs = zip(sums.reshape(-1).tolist(), squares.reshape(-1).tolist(), strict=True)
    exact = [(s / count, _variance(count, s, q)) for s, q in pairs]
    both = torch.tensor(exact, dtype=torch.float64)
    return both[:, 0].reshape(sums.shape), both[:, 1].reshape(sums.shape)


def _variance(count: int, total: int, squares: int) -> float:
    return float(Fraction(count * squares - total * total, count * count))
