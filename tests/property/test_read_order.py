"""Any layout, any order: rows come once each, and going on is as if never stopped."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from sealift.data.schedule.order import (
    EpochOrder,
    Layout,
    OrderOptions,
    ShardLayout,
    permutation,
)
from sealift.errors import UsageError

record_bytes = st.integers(2, 20).map(lambda n: 32 * n)
layouts = st.builds(
    Layout,
    row_bytes=st.integers(1, 60).map(lambda n: 8 * n),
    shards=st.lists(
        st.builds(ShardLayout, rows=st.integers(1, 40), record_bytes=record_bytes),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


@st.composite
def options(draw: st.DrawFn, *, world_size: int | None = None) -> OrderOptions:
    ranks = world_size or draw(st.integers(1, 5))
    return OrderOptions(
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        window_bytes=draw(st.integers(1, 3000)),
        rank=draw(st.integers(0, ranks - 1)),
        world_size=ranks,
        pad=draw(st.booleans()),
    )


def rows_of(order: EpochOrder, position: int = 0) -> list[int]:
    """The rows from a position on, as a loader reads them."""
    rows: list[int] = []
    for window in order.windows(position):
        skipped = max(0, position - window.start)
        rows += order.row_numbers(window)[skipped:].tolist()
    return rows


@given(layouts, st.data())
def test_ranks_partition_an_epoch(layout: Layout, data: st.DataObject) -> None:
    common = data.draw(options())
    parts = []
    for rank in range(common.world_size):
        each = OrderOptions(
            common.shuffle, common.seed, common.window_bytes,
            rank, common.world_size, common.pad,
        )  # fmt: skip
        try:
            parts.append(rows_of(EpochOrder(layout, each, 0)))
        except UsageError:
            assume(False)
    assert len({len(part) for part in parts}) == 1
    seen = [row for part in parts for row in part]
    left_out = 0 if common.pad else layout.rows % common.world_size
    assert len(set(seen)) == layout.rows - left_out
    assert len(seen) - len(set(seen)) < common.world_size


@given(layouts, options(), st.integers(0, 3), st.data())
def test_going_on_anywhere(
    layout: Layout, chosen: OrderOptions, epoch: int, data: st.DataObject
) -> None:
    try:
        order = EpochOrder(layout, chosen, epoch)
    except UsageError:
        assume(False)
    whole = rows_of(order)
    assert len(whole) == order.rows
    position = data.draw(st.integers(0, len(whole) - 1))
    assert rows_of(order, position) == whole[position:]


@given(layouts, options(world_size=1))
def test_a_window_holds_what_it_may(layout: Layout, chosen: OrderOptions) -> None:
    order = EpochOrder(layout, chosen, 0)
    largest = max(shard.record_bytes for shard in layout.shards)
    for window in order.windows():
        begun = [run.first * layout.row_bytes for run in window.runs]
        assert len(begun) <= max(1, chosen.window_bytes // largest)
        assert sorted(window.order.tolist()) == list(range(window.rows))


@given(st.integers(0, 300), st.binary(min_size=32, max_size=32))
def test_permutations(length: int, seed: bytes) -> None:
    order = permutation(length, seed)
    assert sorted(order.tolist()) == list(range(length))
    assert (permutation(length, seed) == order).all()


def test_the_order_never_changes() -> None:
    """States that were saved years ago count in it."""
    layout = Layout(32, (ShardLayout(20, 96), ShardLayout(7, 64)))
    chosen = OrderOptions(shuffle=True, seed=5, window_bytes=400)
    rows = rows_of(EpochOrder(layout, chosen, 2))
    assert rows == PINNED
    assert np.array(rows).dtype == np.int64


PINNED = [
    4, 25, 12, 13, 17, 14, 3, 16, 24, 15, 5, 23, 20, 22, 21, 18, 10, 19, 11, 9, 1, 8, 2,
    7, 0, 26, 6,
]  # fmt: skip
