"""What a recipe may use: its assets, and sums for its ``prepare``.

Whatever ``prepare`` returns is added over all rows of all owners, so everything here is a
sum: parts add up to the whole, in whatever slices the rows come. Each maker returns a
dict that ``prepare`` returns, alone or merged with others; each reader takes the totals,
as ``build(statistics)`` gets them or as ``statistics.json`` holds them.

A vocabulary is a count-min sketch: each row of it hashes every token into one of its
columns and counts there. Sketches of parts add up to that of the whole. A column says how
many tokens fell into it, not which; but whoever guesses a token can look it up, so a
sketch is no protection for rare tokens: the agreement's ``statistics_rows`` is.
Sources: Cormode, Muthukrishnan, "An improved data stream summary" (2005); Steele, Lea,
Flood, "Fast splittable pseudorandom number generators" (2014) for the hash; Whang,
Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm" (1990) for
``count_distinct``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import torch
from safetensors.torch import load
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


def class_counts(name: str, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """How many labels there are of each class.

    Args:
        name: Of the sum.
        labels: Whole numbers from 0 to ``classes`` - 1, any shape.
        classes: How many classes.

    Returns:
        ``NAME``: int64, (classes,).

    Raises:
        ValueError: for a label that is no class.
    """
    flat = labels.reshape(-1).to(torch.int64)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < classes:
        raise ValueError(f"{name}: a label is not in 0..{classes - 1}")
    return {name: torch.bincount(flat, minlength=classes)}


def histogram(name: str, values: Tensor, edges: Sequence[float]) -> dict[str, Tensor]:
    """How many values lie between fixed edges.

    Args:
        name: Of the sum.
        values: Any shape; NaN counts as above the last edge.
        edges: Ascending; constants that everybody knows, or they tell about rows.

    Returns:
        ``NAME``: int64, (len(edges) + 1,). Entry 0 counts values below the first edge,
        entry i those with edges[i - 1] <= value < edges[i], the last one the rest.
    """
    bounds = torch.tensor(list(edges), dtype=torch.float64)
    places = torch.bucketize(values.reshape(-1).to(torch.float64), bounds, right=True)
    return {name: torch.bincount(places, minlength=len(bounds) + 1)}


def quantile(counts: Any, edges: Sequence[float], q: float) -> float:
    """A quantile from the totals of ``histogram``, interpolated within its interval.

    It is off by the width of that interval at most. Below the first and above the last
    edge nothing is known: the edge is returned.

    Args:
        counts: Totals of one histogram, (len(edges) + 1,).
        edges: The same as in ``histogram``.
        q: From 0 to 1.
    """
    per_interval = torch.as_tensor(counts)
    wanted = q * float(per_interval.sum())
    reached = per_interval.cumsum(0)
    place = int(torch.searchsorted(reached.to(torch.float64), max(wanted, 1e-9)))
    if place == 0 or place >= len(edges):
        return float(edges[min(place, len(edges) - 1)])
    low, high = edges[place - 1], edges[place]
    before = float(reached[place - 1])
    return float(low + (high - low) * (wanted - before) / float(per_interval[place]))


_given: dict[str, memoryview] = {}


def asset(name: str) -> memoryview:
    """The bytes of a file of the recipe's ``assets/``, to read; they are not copied.

    Args:
        name: Its path below ``assets/``: ``tokenizer.json``.

    Raises:
        FileNotFoundError: if the agreement names no such file.
    """
    try:
        return _given[f"assets/{name}"]
    except KeyError:
        raise FileNotFoundError(f"the recipe has no assets/{name}") from None


def weights(name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file of the recipe's ``assets/``; copies.

    Args:
        name: Its path below ``assets/``: ``model.safetensors``.

    Raises:
        FileNotFoundError: as ``asset``.
        safetensors.SafetensorError: it is no such file.
    """
    return load(bytes(asset(name)))


def has_assets() -> bool:
    """Whether the recipe that runs here has any."""
    return bool(_given)


def provide_assets(files: Mapping[str, memoryview]) -> None:
    """Have ``asset`` return these, by their paths in the bundle; what runs recipes calls it."""
    _given.clear()
    _given.update(files)


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
