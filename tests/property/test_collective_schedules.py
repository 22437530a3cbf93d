"""No order of events makes a group wait for itself, or sum something else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import numpy as np
import pytest

from sealift.collective.group import Choices, SealedGroup
from sealift.collective.tensors import Array
from tests.sim.wires import simulated_wires

SCHEDULE_S = 60.0


def play(seed: int) -> None:
    """A few collectives of a few ranks, each as late as it likes."""
    rng = np.random.default_rng(seed)
    world, pause = int(rng.integers(2, 5)), rng.choice([0.0, 0.0002, 0.002])
    sizes = rng.choice([1, 7, 500, 20_000, 60_000], rng.integers(1, 5)).tolist()
    choices = Choices(
        one_phase_bytes=int(rng.choice([0, 4_000, 1 << 30])),
        segment_bytes=int(rng.choice([512, 10_000, 1 << 20])),
    )

    naps = iter((rng.random(100_000) - 0.8).clip(0).tolist())  # four of five are none

    def delay() -> None:
        if (nap := next(naps, 0.0)) and pause:
            time.sleep(nap * 5 * pause)

    room = int(rng.choice([1 << 17, 1 << 20]))
    wires = simulated_wires(world, room=room, delay=delay)

    def part(rank: int, number: int) -> Array:
        made = np.random.default_rng([seed, rank, number])
        return made.standard_normal(sizes[number], np.float32)

    def one(rank: int) -> list[bytes]:
        found = []
        with SealedGroup(rank, wires[rank], choices) as group:
            for number in range(len(sizes)):
                tensor = part(rank, number)
                group.all_reduce(tensor)
                found.append(tensor.tobytes())
                tensor[...] = np.nan
        return found

    with ThreadPoolExecutor(world) as pool:
        waiting = [pool.submit(one, rank) for rank in range(world)]
        found = [each.result(timeout=SCHEDULE_S) for each in waiting]
    for number in range(len(sizes)):
        total = reduce(np.add, (part(rank, number) for rank in range(world)))
        assert {each[number] for each in found} == {total.tobytes()}


def test_fifty_schedules() -> None:
    for seed in range(50):
        play(seed)


@pytest.mark.long
def test_two_thousand_schedules() -> None:
    for seed in range(1_000, 3_000):
        play(seed)


@pytest.mark.soak
def test_ten_thousand_schedules() -> None:
    for seed in range(10_000, 20_000):
        play(seed)
