"""Words of figures: none on another, and numbers that can be read."""

from __future__ import annotations

import itertools
import re

import pytest

from sealift.view.charts import Curve, plot, say_number


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.25, "0.25"),
        (12.0, "12"),
        (1500.0, "1,500"),
        (2e6, "2,000,000"),
        (1e20, "1e+20"),
    ],
)
def test_a_number_on_an_axis(value: float, said: str) -> None:
    assert say_number(value) == said


@pytest.mark.parametrize(
    "epochs",
    [[1, 2, 3, 50], [*range(1, 13)], [*range(1, 400)], [1000, 1001, 5000], [7]],
)
def test_words_below_a_figure_do_not_touch(epochs: list[int]) -> None:
    points = [(float(each), 1.0 / each) for each in epochs]
    drawn = str(plot([Curve("north", points, "line-0", [""] * len(points))], "epoch"))
    places = [
        float(each) for each in re.findall(r'class="x" style="left:([0-9.]+)%"', drawn)
    ]
    assert places
    assert all(after - before >= 5.9 for before, after in itertools.pairwise(places))
