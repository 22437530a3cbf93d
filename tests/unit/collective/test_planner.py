"""What is chosen from costs, and that all ranks choose the same."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from sealift.collective.group import SealedGroup
from sealift.collective.planner import (
    MOST_ONE_PHASE,
    SMALLEST_BUCKET,
    CollectivePlan,
    Costs,
    fit_line,
    plan_group,
)
from sealift.errors import SealiftError
from tests.sim.wires import simulated_wires

MIB = 1 << 20
COSTS = Costs(message_s=100e-6, byte_s=0.4e-9, add_s=0.1e-9)


def spent(costs: Costs, world: int, size: int, phases: int) -> float:
    """The model of the module's head, written once more."""
    share = (world - 1) / world
    if phases == 1:
        return costs.message_s + (world - 1) * size * (costs.byte_s + costs.add_s)
    return 2 * costs.message_s + share * size * (2 * costs.byte_s + costs.add_s)


@pytest.mark.parametrize("world", [2, 3, 4, 16])
def test_one_phase_is_taken_where_it_costs_less(world: int) -> None:
    limit = COSTS.one_phase_bytes(world)
    assert 0 < limit < MOST_ONE_PHASE
    below, above = limit // 2, limit * 2
    assert spent(COSTS, world, below, 1) < spent(COSTS, world, below, 2)
    assert spent(COSTS, world, above, 1) > spent(COSTS, world, above, 2)


def test_the_bucket_has_the_least_cost_of_all() -> None:
    gradient_bytes = 500 * MIB
    best = COSTS.bucket_bytes(gradient_bytes)

    def exposed(bucket: int) -> float:
        return COSTS.message_s * gradient_bytes / bucket + COSTS.byte_s * bucket

    tried = [exposed(best * k // 10) for k in (5, 8, 12, 20)]
    assert SMALLEST_BUCKET < best < gradient_bytes
    assert exposed(best) < min(tried)


def test_a_bucket_is_no_larger_than_all_gradients_and_no_smaller_than_a_mib() -> None:
    assert COSTS.bucket_bytes(100) == SMALLEST_BUCKET
    slow = Costs(message_s=10.0, byte_s=1e-12, add_s=1e-12)
    assert slow.bucket_bytes(30 * MIB) == 30 * MIB


def test_a_line_is_found_again() -> None:
    sizes = [1e3, 1e5, 1e6, 4e6]
    found = fit_line(sizes, [50e-6 + 0.3e-9 * size for size in sizes])
    assert found == pytest.approx((50e-6, 0.3e-9))


def test_all_ranks_choose_the_same_and_say_why() -> None:
    wires = simulated_wires(3, room=1 << 23)

    def one(rank: int) -> CollectivePlan:
        with SealedGroup(rank, wires[rank]) as group:
            plan = plan_group(group, 100 * MIB, time.perf_counter)
            group.barrier()  # under the new choices
            assert group.choices == plan.choices
            return plan

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(one, range(3))
    assert others == [first, first]
    assert "one phase " in first.why


@pytest.mark.parametrize("step", [math.nan, math.inf, 1e300, 61.0, 1e-3])
def test_a_rank_that_measures_what_cannot_be_is_an_error_everywhere(
    step: float,
) -> None:
    """Each look at the clock of rank 1 is so much later; a millisecond is the control."""
    wires = simulated_wires(3, room=1 << 23)

    def one(rank: int) -> str:
        ticks = count(1)
        clock = (lambda: next(ticks) * step) if rank == 1 else time.perf_counter
        group = SealedGroup(rank, wires[rank])
        try:
            plan_group(group, 100 * MIB, clock)
        except SealiftError as error:
            return error.code
        return "chosen"

    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(one, range(3)))
    assert found == {"chosen" if step == 1e-3 else "bad-costs"}


def test_the_digest_tells_choices_apart() -> None:
    plans = [CollectivePlan.of(COSTS, world, 100 * MIB) for world in (2, 3)]
    assert len({plan.choices.digest for plan in plans}) == 2
