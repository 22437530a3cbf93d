"""What makes a step private: rows drawn by chance, clipped gradients, noise. No recipe's code.

The Gaussian mechanism on a sum of clipped rows, amplified by Poisson sampling (Abadi et al.
2016). Chance comes from the operating system alone, never from a job's seed (rule H12), and
is kept nowhere. Sums are made in float64; noise is drawn in float64 and the noised sum is
rounded to a grid, so that its last bits tell nothing of the sum (Mironov 2012).
Source: spec/privacy.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

_OVERFLOW: Final = 40 * math.log(2)  # a sample is longer than its room: 2**-40
_GRID: Final = 12  # places of a standard deviation, rounded down to a power of two
_WORD: Final = 2.0**-64
_CHANCES: Final = 1 << 32
_BELOW: Final = 1 - 2.0**-20


def draw_rows(rows: int, rate: float) -> Tensor:
    """Which of so many rows a step has, each with the same chance and by itself.

    Args:
        rows: There are.
        rate: Of each, from 0 to 1; rounded down to a multiple of ``2**-32``.

    Returns:
        Their numbers in rising order, ``int64`` on the CPU; there may be none.
    """
    drawn = np.frombuffer(os.urandom(4 * rows), np.uint32)
    found = np.flatnonzero(drawn < min(math.floor(rate * _CHANCES), _CHANCES))
    return torch.from_numpy(found.astype(np.int64))


def room_for(rows: int, rate: float) -> int:
    """Rows that a step computes however many it drew, so that its time tells little.

    A sample is longer with a probability of 2**-40 at most (Bernstein's inequality).
    """
    spread = rows * rate * (1 - rate)
    beyond = _OVERFLOW / 3 + math.sqrt(_OVERFLOW**2 / 9 + 2 * _OVERFLOW * spread)
    return min(rows, math.ceil(rows * rate + beyond))


def add_clipped(
    gradients: Mapping[str, Tensor],
    counts: Tensor,
    clip: float,
    totals: Mapping[str, Tensor],
    *,
    units: int = 0,
) -> None:
    """Add each row's gradient to the totals, clipped over all parameters together.

    In units each number of a row is cut towards zero, so that no row's norm grows by it; the
    norm stays a hair below the clip, so that it does not in float64 either. A gradient that is not finite counts as zero: an error would tell of its row.

    Args:
        gradients: By name, of shape ``(rows, *parameter.shape)``.
        counts: ``bool`` of shape ``(rows,)``: whether a row was drawn, or fills the room.
        clip: Largest L2 norm of a row's gradient.
        totals: By name, ``float64`` of the parameter's shape; changed in place.
        units: The clip is so many whole numbers, which are added up; 0 adds up numbers.
    """
    count = len(counts)
    # Copied, whatever its type: two parameters' gradients may be the same memory.
    flat = {
        n: e.detach().to(torch.float64, copy=True).reshape(count, -1)
        for n, e in gradients.items()
    }
    squares = [each.square().sum(1) for each in flat.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    counted = counts & norms.isfinite()
    weights = torch.where(counted, clip / norms.clamp(min=clip), 0.0)
    for name, each in flat.items():
        each[~counted] = 0.0  # what is not finite is so times zero, too
        if units:
            each *= (weights * (units / clip * _BELOW)).unsqueeze(1)
            found = each.trunc_().sum(0)
        else:
            found = weights @ each
        totals[name].add_(found.view_as(totals[name]))


def add_noise(total: Tensor, sigma: float) -> Tensor:
    """A sum with noise of the normal distribution, rounded to a grid; on the CPU.

    What leaves is a function of the rounded sum alone. The grid is of a power of two, at
    most ``2**-12`` standard deviations wide: what float64 adds to the probability of one of
    its values is a factor of less than ``1 + 2**-34``.

    Args:
        total: ``float64``.
        sigma: Standard deviation of the noise in each number.
    """
    noise = _draw_normal(total.numel()).view(total.shape) * sigma
    grid = 2.0 ** (math.floor(math.log2(sigma)) - _GRID)
    return torch.round((total.cpu() + noise) / grid) * grid


def _draw_normal(count: int) -> Tensor:
    """So many standard normal numbers, ``float64``, by Box and Muller of 64 bits each."""
    pairs = -(-count // 2)
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    lengths = np.sqrt(-2 * np.log((words[0] + 0.5) * _WORD))
    angles = words[1] * (2 * math.pi * _WORD)
    found = np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])
    return torch.from_numpy(found[:count])
