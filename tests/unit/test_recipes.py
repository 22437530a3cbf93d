"""Sums for recipes: they add up, and what is read off them is as good as it says."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sealift.recipes import (
    class_counts,
    count_distinct,
    estimate_counts,
    histogram,
    mean_and_variance,
    moments,
    ngrams,
    quantile,
    vocabulary,
)
from tests.sim.examples import examples


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def added(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] + other[name] for name in one}


WHOLE = torch.randint(0, 17, (60, 4), generator=draw(1), dtype=torch.uint8)
MAKERS = {
    "moments": lambda rows: moments("x", rows),
    "counts": lambda rows: class_counts("x", rows, 17),
    "histogram": lambda rows: histogram("x", rows, [1, 4, 9, 16]),
    "vocabulary": lambda rows: vocabulary("x", ngrams(rows, 2), width=64),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("cut", [1, 7, 59])
def test_parts_add_up_to_the_whole(make, cut: int) -> None:  # type: ignore[no-untyped-def]
    whole = make(WHOLE)
    parts = added(make(WHOLE[:cut]), make(WHOLE[cut:]))
    for name, total in whole.items():
        assert torch.equal(torch.as_tensor(total), torch.as_tensor(parts[name]))


@examples(60)
@given(st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=40))
def test_of_whole_numbers_the_variance_is_exact(values: list[int]) -> None:
    mean, variance = mean_and_variance(
        moments("x", torch.tensor(values).reshape(-1, 1)), "x"
    )
    exact = Fraction(sum(values), len(values))
    spread = sum((value - exact) ** 2 for value in values) / len(values)
    assert mean.item() == float(exact)
    assert variance.item() == float(spread)


def test_far_from_zero_a_shift_saves_the_variance() -> None:
    values = 1e9 + torch.randn(4000, generator=draw(2), dtype=torch.float64)
    true = values.sub(1e9).var(correction=0).item()

    def off(shift: float) -> float:
        sums = moments("x", values, shift=shift)
        mean, variance = mean_and_variance(sums, "x", shift=shift)
        assert mean.item() == pytest.approx(values.mean().item(), abs=1e-5)
        return abs(variance.item() - true) / true

    assert off(1e9) < 1e-7
    assert off(0.0) > 1e-3  # the control: without it, it is lost


def test_no_rows_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no rows"):
        mean_and_variance(moments("x", torch.zeros(0, 3)), "x")


def test_totals_may_come_from_a_file() -> None:
    sums = moments("x", WHOLE)
    plain = {name: torch.as_tensor(each).tolist() for name, each in sums.items()}
    for left, right in zip(
        mean_and_variance(sums, "x"), mean_and_variance(plain, "x"), strict=True
    ):
        assert torch.equal(left, right)


def test_classes_are_counted() -> None:
    found = class_counts("digit", torch.tensor([[2, 0], [2, 3]]), 5)["digit"]
    assert found.tolist() == [1, 0, 2, 1, 0]
    for label in (-1, 5):
        with pytest.raises(ValueError, match=r"not in 0\.\.4"):
            class_counts("digit", torch.tensor([label]), 5)


def test_intervals_are_closed_below() -> None:
    values = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 7.0, math.nan])
    found = histogram("x", values, [0, 1, 2])["x"]
    assert found.tolist() == [1, 2, 1, 3]


def test_a_quantile_is_off_by_an_interval_at_most() -> None:
    values = torch.rand(5000, generator=draw(3)) * 10
    edges = [each / 4 for each in range(41)]
    counts = histogram("x", values, edges)["x"]
    for q in (0.0, 0.1, 0.5, 0.9, 1.0):
        true = torch.quantile(values, q).item()
        assert abs(quantile(counts, edges, q) - true) <= 0.25
    assert quantile(histogram("x", values, [20.0, 30.0])["x"], [20, 30], 0.5) == 20


def zipf(tokens: int, kinds: int) -> Tensor:
    weights = 1 / torch.arange(1, kinds + 1, dtype=torch.float64)
    ids = torch.multinomial(weights, tokens, replacement=True, generator=draw(4))
    return ids * 2_654_435_761 + 12_345


def test_counts_are_never_too_low_and_seldom_too_high() -> None:
    tokens = zipf(20_000, 3000)
    sketch = vocabulary("words", tokens, width=512, depth=4)["words"]
    kinds, true = tokens.unique(return_counts=True)
    excess = estimate_counts(sketch, kinds) - true
    assert int(excess.min()) >= 0
    too_high = (excess > 2 * len(tokens) / 512).double().mean().item()
    assert too_high <= 2**-4
    shallow = vocabulary("words", tokens, width=512, depth=1)["words"]
    worse = (estimate_counts(shallow, kinds) - true).double().mean()
    assert worse > 2 * excess.double().mean()  # depth is of use


@pytest.mark.parametrize("kinds", [20, 300, 1000])
def test_distinct_tokens_are_about_counted(kinds: int) -> None:
    tokens = torch.arange(kinds).repeat(7) * 7_919
    sketch = vocabulary("words", tokens, width=1024)["words"]
    assert count_distinct(sketch) == pytest.approx(kinds, rel=0.1)


def test_a_full_sketch_says_so() -> None:
    tokens = torch.randint(0, 10**9, (5000,), generator=draw(5))
    assert count_distinct(vocabulary("w", tokens, width=64)["w"]) == math.inf


def test_runs_of_bytes() -> None:
    text = torch.tensor([[1, 2, 3], [255, 255, 0]], dtype=torch.uint8)
    assert ngrams(text, 2).tolist() == [[258, 515], [65535, 65280]]
    assert ngrams(text, 1).shape == (2, 3)
    for n in (0, 4):
        with pytest.raises(ValueError, match="n-grams"):
            ngrams(text, n)


def test_a_width_is_a_power_of_two() -> None:
    for width in (0, 1, 100):
        with pytest.raises(ValueError, match="power of two"):
            vocabulary("w", torch.tensor([1]), width=width)
