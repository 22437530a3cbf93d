"""The schedule: every row once per epoch, in an order that is always the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.errors import UsageError
from sealift.travel.schedule import Cargo, Order, Stop, plan_epoch

ORDERS: tuple[Order, ...] = ("round-robin", "by-size")
CARGO = st.lists(st.integers(1, 60), max_size=6).map(
    lambda sizes: [
        Cargo(f"h{number}", f"h{number}-train", rows, 8 + 8 * (number % 3))
        for number, rows in enumerate(sizes)
    ]
)


def plan(cargo: list[Cargo], order: Order, buffer_bytes: int) -> tuple[Stop, ...]:
    return plan_epoch(
        cargo, epoch=3, purpose="train", order=order, buffer_bytes=buffer_bytes
    )


@given(cargo=CARGO, order=st.sampled_from(ORDERS), buffer_bytes=st.integers(24, 400))
def test_each_row_once_and_never_more_than_fits(
    cargo: list[Cargo], order: Order, buffer_bytes: int
) -> None:
    stops = plan(cargo, order, buffer_bytes)
    assert stops == plan(cargo, order, buffer_bytes)
    for item in cargo:
        own = [stop for stop in stops if stop.resource == item.resource]
        rows = [
            r for stop in own for r in range(stop.first_row, stop.first_row + stop.rows)
        ]
        assert rows == list(range(item.rows))
        assert all(stop.rows * item.row_bytes <= buffer_bytes for stop in own)
        assert {(stop.epoch, stop.holder) for stop in own} == {(3, item.holder)}


def names(order: Order) -> list[str]:
    cargo = [
        Cargo(name, name, rows, 10) for name, rows in (("a", 3), ("b", 7), ("c", 3))
    ]
    return [f"{stop.holder}{stop.first_row}" for stop in plan(cargo, order, 30)]


def test_round_robin_takes_turns() -> None:
    assert names("round-robin") == ["a0", "b0", "c0", "b3", "b6"]


def test_by_size_takes_from_whoever_has_most_left() -> None:
    assert names("by-size") == ["b0", "b3", "a0", "c0", "b6"]


def test_a_row_must_fit() -> None:
    with pytest.raises(UsageError) as refusal:
        plan([Cargo("a", "a", 1, 25)], "by-size", 24)
    assert refusal.value.code == "buffer-too-small"
