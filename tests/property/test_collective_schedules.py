"""No order of events makes a group wait for itself, or sum something else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from sealift.collective.group import Choices, SealedGroup
from sealift.collective.tensors import Array
from sealift.errors import PeerError
from tests.sim.wires import simulated_wires

SCHEDULE_S = 60.0
OPERATIONS = ("all_reduce", "all_reduce", "scatter and gather", "broadcast", "exchange")


class Schedule:
    """A few collectives of a few ranks, each as late as it likes; sometimes one leaves."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.seed, self.world = seed, int(rng.integers(2, 5))
        self.pause_s = float(rng.choice([0.0, 0.0002, 0.002]))
        sizes = rng.choice([1, 7, 500, 20_000, 60_000], rng.integers(1, 5)).tolist()
        self.work = [(str(rng.choice(OPERATIONS)), size) for size in sizes]
        self.choices = Choices(
            one_phase_bytes=int(rng.choice([0, 4_000, 1 << 30])),
            segment_bytes=int(rng.choice([512, 10_000, 1 << 20])),
        )
        # Four of five naps are none.
        self._naps = cycle((rng.random(10_000) - 0.8).clip(0).tolist())
        room = int(rng.choice([1 << 17, 1 << 20]))
        self.wires = simulated_wires(self.world, room=room, delay=self._delay)
        leaves = rng.random() < 0.2
        self.leaver = int(rng.integers(self.world)) if leaves else None
        self.left_at = int(rng.integers(len(sizes)))

    def _delay(self) -> None:
        if (nap := next(self._naps)) and self.pause_s:
            time.sleep(nap * 5 * self.pause_s)

    def part(self, rank: int, number: int) -> Array:
        """What a rank brings; the sizes divide."""
        size = self.work[number][1] * self.world
        made = np.random.default_rng([self.seed, rank, number])
        return made.standard_normal(size, np.float32)

    def play(self) -> None:
        try:
            with ThreadPoolExecutor(self.world) as pool:
                waiting = [pool.submit(self._one, rank) for rank in range(self.world)]
                try:
                    found = [each.result(timeout=SCHEDULE_S) for each in waiting]
                finally:
                    self._end()  # else the pool waits for ever
        except BaseException as error:
            error.add_note(f"schedule {self.seed}")
            raise
        for number in range(len(self.work)):
            told = {each[number] for each in found if len(each) > number}
            assert told <= {self._expected(number)}
            gone = self.leaver is not None and number >= self.left_at
            assert gone or len(told) == 1

    def _end(self) -> None:
        for wires in self.wires:
            for wire in wires.values():
                wire.abort()

    def _one(self, rank: int) -> list[bytes]:
        """What came of each collective, until somebody left."""
        found: list[bytes] = []
        try:
            with SealedGroup(rank, self.wires[rank], self.choices) as group:
                for number, (operation, _) in enumerate(self.work):
                    if (rank, number) == (self.leaver, self.left_at):
                        group.abort()
                    tensor = self.part(rank, number)
                    _call(group, operation, tensor)
                    found.append(tensor.tobytes())
                    tensor[...] = np.nan  # who still sent it would send this
        except PeerError:
            assert self.leaver is not None
        return found

    def _expected(self, number: int) -> bytes:
        parts = [self.part(rank, number) for rank in range(self.world)]
        if self.work[number][0] in ("broadcast", "exchange"):
            return parts[-1].tobytes()
        return reduce(np.add, parts).tobytes()


def _call(group: SealedGroup, operation: str, tensor: Array) -> Any:
    """One collective, or two; what comes of it is in ``tensor``."""
    if operation == "all_reduce":
        group.all_reduce(tensor)
    elif operation == "broadcast":
        group.broadcast(tensor, root=group.world - 1)
    elif operation == "exchange":
        tensor[...] = np.frombuffer(group.exchange(tensor.tobytes())[-1], np.float32)
    else:
        part = np.empty(tensor.size // group.world, np.float32)
        group.reduce_scatter(tensor, part)
        group.all_gather(part, tensor)


def test_fifty_schedules() -> None:
    for seed in range(50):
        Schedule(seed).play()


@pytest.mark.long
def test_three_hundred_schedules() -> None:
    for seed in range(1_000, 1_300):
        Schedule(seed).play()


@pytest.mark.soak
def test_ten_thousand_schedules() -> None:
    for seed in range(10_000, 20_000):
        Schedule(seed).play()
