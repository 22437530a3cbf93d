"""What others tell of their measures never stops who shows it, whatever it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sealift.train.job.sentences import say_numbers
from sealift.train.loop.measures import (
    joint_numbers,
    numbers_of,
    shown_numbers,
    take_apart,
)

NAMES = st.sampled_from(
    [
        *("classes_2", "kind_classes_3", "scores_2", "scores_8", "regression"),
        *("alone.ada.classes_2", "alone..scores_2", "loss", "classes_1", "scores_999"),
    ]
)
PLACES = st.lists(st.integers(0, 9) | st.integers(0, 9999), max_size=3)
CELLS = st.builds(lambda name, at: f"{name}[{','.join(map(str, at))}]", NAMES, PLACES)
VALUES = st.integers(0, 3).map(float) | st.floats()
METRICS = st.dictionaries(CELLS | NAMES | st.text(), VALUES, max_size=12)
ROWS = st.integers(-2, 2**53 - 1)


@given(METRICS)
@example({"classes_2[0,0]": 0.0})
@example({"regression[1]": 1.0})
@example({"scores_2[1]": 1.0})
@example({"scores_2[0,0,0]": 1e-300, "scores_2[1,0,0]": 1e-300})
def test_numbers_of_one_part_are_shown_or_left_out(metrics: dict[str, float]) -> None:
    shown = shown_numbers(metrics)
    assert all(math.isfinite(each) for each in shown.values())
    bases = {name.rpartition(".")[2] for name in take_apart(metrics)[1]}
    computed = {name.rpartition(".")[2] for name in shown.keys() - metrics.keys()}
    assert computed <= numbers_of(bases)
    say_numbers(metrics)


@given(st.lists(st.tuples(ROWS, METRICS), max_size=3))
@example([(0, {"loss": 1.0})])
def test_numbers_of_parts_are_added_or_left_out(
    parts: list[tuple[int, dict[str, float]]],
) -> None:
    assert all(math.isfinite(each) for each in joint_numbers(parts, 3).values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"[0,2]": 1.0},  # a class that its name does not have
        {"[3,0]": 1.0},
        {"[0]": 1.0},
        {"[1,0]": -1.0},
        {"[1,0]": 0.5},
        {"[1,0]": math.inf},
        {"[1,0]": math.nan},
        {"[0,0]": 0.0},
    ],
)
def test_of_impossible_counts_nothing_is_computed(wrong: dict[str, float]) -> None:
    cells = {"[0,0]": 4.0, "[1,0]": 3.0, "[2,0]": 4.0}
    right = {f"classes_2{place}": value for place, value in cells.items()}
    told = right | {f"classes_2{place}": value for place, value in wrong.items()}
    assert shown_numbers(right)["accuracy"] == 0.75
    assert shown_numbers({"loss": 0.5, **told}) == {"loss": 0.5}
