"""A sketch of which tokens there are and how often, without a list of them.

A count-min sketch: each row of the sketch hashes every token into one of its columns and
counts there. Sketches of parts add up to the sketch of the whole. A column says how many
tokens fell into it, not which; but whoever guesses a token can look it up, so a sketch is
no protection for rare tokens: that is what the agreement's ``statistics_rows`` is for.
Sources: Cormode, Muthukrishnan, "An improved data stream summary" (2005); Steele, Lea,
Flood, "Fast splittable pseudorandom number generators" (2014) for the hash; Whang, Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm" (1990)
for ``count_distinct``.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import torch
from torch import Tensor

_LABEL: Final = b"sealift vocabulary sketch "
MAX_NGRAM: Final = 7  # bytes that fit a signed 64-bit number


def vocabulary(
    name: str, tokens: Tensor, *, width: int = 1024, depth: int = 4
) -> dict[str, Tensor]:
    """A count-min sketch of tokens.

    Args:
        name: Of the sum.
        tokens: Whole numbers, any shape: token ids, or ``ngrams`` of text.
        width: Columns; a power of two.
        depth: Rows, each with a hash of its own.

    Returns:
        ``NAME``: int64, (depth, width).

    Raises:
        ValueError: if the width is no power of two.
    """
    flat = tokens.reshape(-1).to(torch.int64)
    rows = [
        torch.bincount(_hash(flat, row, width), minlength=width) for row in range(depth)
    ]
    return {name: torch.stack(rows)}


def estimate_counts(sketch: Any, tokens: Tensor) -> Tensor:
    """About how often each token was seen; never fewer times than it was.

    Too many by more than 2 x all / width with probability 2^-depth at most, where all is
    the number of tokens seen, as far as the hashes are like random ones; they are public
    and the same for everybody, so whoever wants to can choose tokens that collide.

    Args:
        sketch: Total of ``vocabulary``, (depth, width).
        tokens: Any shape.

    Returns:
        int64, the shape of ``tokens``.
    """
    table = torch.as_tensor(sketch)
    flat = tokens.reshape(-1).to(torch.int64)
    depth, width = table.shape
    found = [table[row][_hash(flat, row, width)] for row in range(depth)]
    return torch.stack(found).amin(dim=0).reshape(tokens.shape)


def count_distinct(sketch: Any) -> float:
    """About how many different tokens were seen, by linear counting.

    The relative standard error of one row is sqrt(width (e^t - t - 1)) / (t width) with
    t = distinct / width: 3 % at t = 1 and width 1024; rows are averaged, which helps a
    little. Infinite when no column is empty any more: take a wider sketch.

    Args:
        sketch: Total of ``vocabulary``, (depth, width).
    """
    table = torch.as_tensor(sketch)
    width = table.shape[1]
    empty = (table == 0).sum(dim=1).to(torch.float64).mean().item()
    return math.inf if empty == 0 else width * math.log(width / empty)


def ngrams(text: Tensor, n: int) -> Tensor:
    """Every run of ``n`` bytes as one whole number, big-endian.

    Args:
        text: uint8, (rows, length).
        n: 1 to 7, at most ``length``.

    Returns:
        int64, (rows, length - n + 1).
    """
    if not 1 <= n <= min(MAX_NGRAM, text.shape[1]):
        raise ValueError(f"n-grams of {n} bytes in rows of {text.shape[1]}")
    wide, length = text.to(torch.int64), text.shape[1] - n + 1
    found = torch.zeros_like(wide[:, :length])
    for place in range(n):
        found = found * 256 + wide[:, place : place + length]
    return found


def _hash(tokens: Tensor, row: int, width: int) -> Tensor:
    """A column for each token: SplitMix64's mixing of token and row, its lowest bits."""
    if width < 2 or width & (width - 1):
        raise ValueError(f"the width {width} is not a power of two above 1")
    digest = hashlib.sha256(_LABEL + str(row).encode()).digest()
    mixed = tokens + int.from_bytes(digest[:8], "big", signed=True)
    for shift, factor in _MIXING:
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return (mixed ^ _shifted(mixed, 31)) & (width - 1)


def _shifted(words: Tensor, shift: int) -> Tensor:
    """64-bit words moved right, zeros coming in."""
    return (words >> shift) & ((1 << (64 - shift)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_MIXING: Final = (
    (30, _signed(0xBF58476D1CE4E5B9)),
    (27, _signed(0x94D049BB133111EB)),
)
