"""Messages of a pair of ranks, and collectives in which ranks have different parts."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import pytest

from sealift.collective.group import Choices, SealedGroup
from sealift.errors import JobError, SealiftError, UsageError
from tests.unit.collective.test_group import on_all

SMALL = Choices(segment_bytes=1 << 6)


def sent_whole(group: SealedGroup, tensor: Any, to: int, tag: int = 0) -> None:
    """Send, and wait until it has gone."""
    ended: queue.SimpleQueue[SealiftError | None] = queue.SimpleQueue()
    group.send(tensor, to, ended.put, tag)
    error = ended.get(timeout=300)
    if error is not None:
        raise error


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_message_arrives_among_collectives(size: int) -> None:
    def work(group: SealedGroup) -> list[float]:
        group.barrier()
        room = np.zeros(size)
        if group.rank == 0:
            sent_whole(group, np.arange(float(size)), 2, tag=5)
        if group.rank == 2:
            group.receive(room, 0, tag=5)
        total = np.ones(3)
        group.all_reduce(total)
        assert total.tolist() == [3.0] * 3
        return room.tolist()

    assert on_all(3, work, SMALL)[2] == np.arange(float(size)).tolist()


def test_both_directions_at_once() -> None:
    def work(group: SealedGroup) -> Any:
        other = 1 - group.rank
        gone = threading.Event()
        mine = np.full(100_000, float(group.rank))
        group.send(mine, other, lambda error: gone.set())
        room = np.empty(100_000)
        group.receive(room, other)
        assert gone.wait(300)
        return room[-1]

    assert on_all(2, work, SMALL) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("room", "tag"),
    [(np.zeros(4), 1), (np.zeros(3), 0), (np.zeros(4, "float32"), 0)],
    ids=["tag", "length", "type"],
)
def test_another_message_than_was_asked_for_ends_the_group(room: Any, tag: int) -> None:
    def work(group: SealedGroup) -> None:
        if group.rank == 0:
            sent_whole(group, np.ones(4), 1)
        else:
            group.receive(room, 0, tag)
        group.barrier()

    here, there = on_all(2, work)
    assert isinstance(here, SealiftError)
    assert isinstance(there, JobError)
    assert (there.code, there.ranks) == ("ranks-drifted", (0,))


def test_a_message_where_a_collective_is_expected_ends_the_group() -> None:
    def work(group: SealedGroup) -> None:
        if group.rank == 0:
            sent_whole(group, np.ones(4), 1)
        group.barrier()

    assert on_all(2, work)[1].code == "ranks-drifted"


def test_a_message_to_oneself_is_refused() -> None:
    def work(group: SealedGroup) -> None:
        group.receive(np.ones(1), group.rank)

    error = on_all(1, work)[0]
    assert isinstance(error, UsageError)
    assert error.code == "bad-world"


def test_parts_go_to_their_ranks() -> None:
    def work(group: SealedGroup) -> list[Any]:
        rank, world = group.rank, group.world
        mine = np.full(10, float(rank))
        whole = np.zeros((world, 10)) if rank == 1 else None
        group.gather(mine, whole, root=1)
        part = np.zeros(2)
        cut = np.arange(2.0 * world) if rank == 2 else None
        group.scatter(cut, part, root=2)
        total = np.full(10, 10.0**rank)
        group.reduce(total, root=0)
        rooms = [np.zeros(number + rank + 1) for number in range(world)]
        parts = [np.full(to + rank + 1, 10.0 * rank + to) for to in range(world)]
        group.all_to_all(parts, rooms)
        return [
            None if whole is None else whole[:, 0].tolist(),
            part.tolist(),
            total[0] if rank == 0 else None,
            [room[-1] for room in rooms],
        ]

    for rank, (gathered, part, total, rooms) in enumerate(on_all(3, work, SMALL)):
        assert gathered == ([0.0, 1.0, 2.0] if rank == 1 else None)
        assert part == [2.0 * rank, 2.0 * rank + 1]
        assert total == (111.0 if rank == 0 else None)
        assert rooms == [10.0 * number + rank for number in range(3)]


def test_a_part_of_another_length_ends_the_group_and_names_its_rank() -> None:
    def work(group: SealedGroup) -> None:
        longer = group.rank == 0
        parts = [np.ones(3 + longer) for _ in range(2)]
        group.all_to_all(parts, [np.ones(3 + longer), np.ones(3)])

    error = on_all(2, work)[1]
    assert (error.code, error.ranks) == ("ranks-drifted", (0,))


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_alone_has_all_parts(root: int) -> None:
    def work(group: SealedGroup) -> None:
        has = group.rank != root
        group.gather(np.ones(2), np.ones(4) if has else None, root)

    assert all(
        each.code in ("bad-tensor", "session-closed") for each in on_all(2, work)
    )
