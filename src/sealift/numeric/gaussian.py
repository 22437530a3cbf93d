"""Whole numbers of the discrete Gaussian distribution, drawn exactly, from the system's randomness.

A number x comes with a probability in proportion to ``exp(-x**2 / (2 * variance))``. Proposals
are of the discrete Laplace distribution, as in Canonne, Kamath and Steinke 2020, algorithms 2 and
3. Each chance ``exp(-g)`` is compared with 64 random bits in float64; what lies too near to tell
is decided by as many more bits and digits as it takes, so that no rounding changes any
probability.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MARGIN: Final = 2.0**-40  # float64's error in a chance is below 2**-45
_BITS: Final = 64


def draw_discrete_gaussian(count: int, variance: int) -> NDArray[np.int64]:
    """So many of them, each by itself; the generator keeps no state.

    Args:
        count: Of numbers.
        variance: The distribution's parameter, from 1 to ``2**87``.
    """
    scale = math.isqrt(variance) + 1
    found = np.empty(count, np.int64)
    done = 0
    while done < count:
        # About three of four proposals are taken.
        asked = (count - done) * 3 // 2 + 16
        low, high = _draw_below(scale, asked), _draw_geometric(asked)
        sizes = low + scale * high
        negative = np.frombuffer(os.urandom(asked), np.uint8) & 1 == 1

        def exponent(at: int, low: Any = low, sizes: Any = sizes) -> Fraction:
            beyond = Fraction(int(sizes[at])) - Fraction(variance, scale)
            return Fraction(int(low[at]), scale) + beyond**2 / (2 * variance)

        near = low / scale + (sizes - variance / scale) ** 2 / (2.0 * variance)
        taken = _happens(near, exponent)
        taken &= ~(negative & (sizes == 0))  # zero would come twice
        some = np.where(negative, -sizes, sizes)[taken][: count - done]
        found[done : done + some.size] = some
        done += some.size
    return found


def _draw_below(end: int, count: int) -> NDArray[np.int64]:
    """Whole numbers from 0, each with the same probability."""
    found = np.empty(count, np.int64)
    done, shift = 0, np.uint64(_BITS - end.bit_length())
    while done < count:
        words = _draw_words(2 * (count - done)) >> shift
        some = words[words < end][: count - done]
        found[done : done + some.size] = some
        done += some.size
    return found


def _draw_geometric(count: int) -> NDArray[np.int64]:
    """How often something of the chance ``1 / e`` happens in a row."""
    found = np.zeros(count, np.int64)
    going = np.arange(count)
    while going.size:
        going = going[_happens(np.ones(going.size), lambda _at: Fraction(1))]
        found[going] += 1
    return found


def _happens(
    near: NDArray[np.float64], exponent: Callable[[int], Fraction]
) -> NDArray[np.bool_]:
    """Whether something of the chance ``exp(-g)`` happens, for each ``g`` by itself.

    Args:
        near: Each ``g`` as float64 has it.
        exponent: The ``g`` of a place, exactly.
    """
    words = _draw_words(near.size)
    apart = np.exp(-near) - words * 2.0**-_BITS
    found: NDArray[np.bool_] = apart > 0
    for at in np.flatnonzero(np.abs(apart) < _MARGIN):
        found[at] = _is_below(int(words[at]), exponent(int(at)))
    return found


def _is_below(word: int, exponent: Fraction) -> bool:
    """Whether a uniform number whose first 64 bits are these is below ``exp(-exponent)``.

    Further bits are drawn until no bound of it leaves a doubt.
    """
    bits = _BITS
    while True:
        # Each of the two steps errs by half of its last digit at most.
        steps = Context(prec=bits // 2)
        power = steps.divide(
            Decimal(-exponent.numerator), Decimal(exponent.denominator)
        )
        chance = Fraction(steps.exp(power)) * (1 << bits)
        error = chance * (abs(exponent) + 2) / 10 ** (bits // 2 - 1)
        if word + 1 <= chance - error:
            return True
        if word >= chance + error:
            return False
        word = word << _BITS | int(_draw_words(1)[0])
        bits += _BITS


def _draw_words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), np.uint64)
