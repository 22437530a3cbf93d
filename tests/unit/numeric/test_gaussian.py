"""Discrete Gaussian noise: against the probabilities that it is defined by.

Bounds on what is drawn by chance are so wide that one test in 10^12 fails by chance alone.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from sealift.numeric import gaussian
from sealift.numeric.gaussian import draw_discrete_gaussian

_MOST = {1: 90.0, 17: 140.0, 100: 220.0}  # of chi-square, by variance


def chi_square(found: np.ndarray, variance: int) -> float:
    """Over the values that are expected 8 times or more; the others are one value."""
    values = np.arange(-1000, 1001)
    expected = np.exp(-(values**2) / (2 * variance))
    expected *= found.size / expected.sum()
    often = expected >= 8
    seen = np.bincount(found + 1000, minlength=2001)
    pairs = [(seen[often], expected[often])]
    rare = np.array([seen[~often].sum()]), np.array([max(expected[~often].sum(), 1.0)])
    return sum(float(((s - e) ** 2 / e).sum()) for s, e in (*pairs, rare))


@pytest.mark.parametrize("variance", _MOST)
def test_each_number_comes_as_often_as_its_probability_says(variance: int) -> None:
    found = draw_discrete_gaussian(200_000, variance)
    assert chi_square(found, variance) < _MOST[variance]
    assert chi_square(found // 2, variance) > 1000  # control


def test_what_is_decided_exactly_has_the_same_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every comparison goes the slow way, which else one in 2**39 does."""
    monkeypatch.setattr(gaussian, "_MARGIN", 2.0)
    assert chi_square(draw_discrete_gaussian(2000, 17), 17) < _MOST[17]


@pytest.mark.parametrize("variance", [1 << 50, (1 << 84) - 3])
def test_wide_noise_has_the_moments_of_a_normal_one(variance: int) -> None:
    count = 100_000
    scaled = draw_discrete_gaussian(count, variance) / math.sqrt(variance)
    root = math.sqrt(count)
    assert abs(scaled.mean()) < 8 / root
    assert abs((scaled**2).mean() - 1) < 8 * math.sqrt(2) / root
    assert abs((scaled**4).mean() - 3) < 8 * math.sqrt(96) / root
    halves = scaled.reshape(2, -1)
    assert abs((halves[0] * halves[1]).mean()) < 8 / math.sqrt(count / 2)


@pytest.mark.parametrize("exponent", [Fraction(1), Fraction(1, 3), Fraction(97, 7)])
def test_no_rounding_decides_whether_something_happens(
    exponent: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just below and just above the chance, told apart by its series in whole fractions."""
    term, chance = Fraction(1), Fraction(0)
    for n in range(1, 200):
        chance += term
        term *= -exponent / n
    edge = int(chance * 2**64)
    assert gaussian._is_below(edge - 1, exponent)
    assert not gaussian._is_below(edge + 1, exponent)
    further = int(chance * 2**128) - (edge << 64)
    for bits, below in ((further - 1, True), (further + 1, False)):
        monkeypatch.setattr(
            gaussian, "_draw_words", lambda count, b=bits: np.array([b], np.uint64)
        )
        assert gaussian._is_below(edge, exponent) is below


def test_no_seed_decides_what_is_drawn() -> None:
    found = []
    for _ in range(2):
        np.random.seed(1)
        found.append(draw_discrete_gaussian(8, 1 << 40).tolist())
    assert found[0] != found[1]
    assert draw_discrete_gaussian(0, 5).size == 0
