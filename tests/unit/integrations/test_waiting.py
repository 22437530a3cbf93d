"""Ways to wait for a collective of torch's group, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch

from sealift.collective.group import SealedGroup
from sealift.errors import PeerError, SealiftError, UsageError
from sealift.integrations.torchgroup import SealedProcessGroup
from tests.sim.wires import simulated_wires

MOMENT = timedelta(milliseconds=50)


@contextmanager
def pair() -> Iterator[list[SealedProcessGroup]]:
    """Two ranks."""
    wires = simulated_wires(2)
    groups = [SealedProcessGroup(SealedGroup(rank, wires[rank])) for rank in range(2)]
    try:
        yield groups
    finally:
        with ThreadPoolExecutor(2) as threads:  # each waits for the other
            list(threads.map(lambda each: each.shutdown(), groups))


def both(groups: list[SealedProcessGroup], work: Any) -> list[Any]:
    """What the ranks return, side by side."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, groups))


@pytest.mark.parametrize("at_once", [True, False])
def test_who_waits_too_long_ends_the_group(at_once: bool) -> None:
    with pair() as (first, second):
        if not at_once:
            first.set_timeout(MOMENT)
        work = first.allreduce([torch.ones(1)])
        with pytest.raises(PeerError) as caught:
            work.wait(MOMENT) if at_once else work.wait()
        assert caught.value.code == "peer-timeout"
        with pytest.raises(SealiftError):
            second.allreduce([torch.ones(1)]).wait()


def test_a_callback_asks_for_another_and_waits_for_it() -> None:
    def work(group: SealedProcessGroup) -> list[float]:
        more = torch.ones(2)

        def again(done: Any) -> None:
            group.allreduce([more]).wait(timedelta(seconds=300))

        group.allreduce([torch.ones(1)]).get_future().then(again).wait()
        return more.tolist()

    with pair() as groups:
        assert both(groups, work) == [[2.0, 2.0]] * 2


def test_a_callback_of_a_message_asks_for_a_collective() -> None:
    def work(group: SealedProcessGroup) -> list[float]:
        more = torch.ones(2)

        def again(done: Any) -> None:
            group.allreduce([more]).wait(timedelta(seconds=300))

        room, other = torch.zeros(1), 1 - group.rank()
        sent = group.send([torch.ones(1)], other)
        group.recv([room], other).get_future().then(again).wait()
        sent.wait()
        return more.tolist()

    with pair() as groups:
        assert both(groups, work) == [[2.0, 2.0]] * 2


def test_a_callback_of_a_message_waits_for_another_message() -> None:
    def work(group: SealedProcessGroup) -> list[float]:
        room, other = torch.zeros(1), 1 - group.rank()
        sent = [group.send([torch.full((1,), float(n))], other) for n in (1, 2)]

        def again(done: Any) -> None:
            group.recv([room], other).wait(timedelta(seconds=300))

        group.recv([torch.zeros(1)], other).get_future().then(again).wait()
        for each in sent:
            each.wait()
        return room.tolist()

    with pair() as groups:
        assert both(groups, work) == [[2.0]] * 2


@pytest.mark.parametrize("to", [0, 1])
def test_a_message_that_cannot_go_fails_and_keeps_nobody(to: int) -> None:
    """To oneself, and to a rank that has left."""
    with pair() as (first, second):
        second.abort()
        work = first.send([torch.ones(1 << 20)], to)
        with pytest.raises(SealiftError):
            work.wait(timedelta(seconds=300))


@pytest.mark.parametrize("place", [-1, 4, 50_000_000])
def test_a_rank_that_names_places_outside_of_a_sparse_tensor_is_named(
    place: int,
) -> None:
    def work(group: SealedProcessGroup) -> Any:
        where = torch.tensor([[2 if group.rank() == 0 else place]])
        gradient = torch.sparse_coo_tensor(
            where, torch.ones(1, 3), size=(4, 3), check_invariants=False
        )
        gradient = gradient._coalesced_(True)
        try:
            group.allreduce([gradient]).wait()
        except SealiftError as error:
            return error
        return gradient

    with pair() as groups:
        honest, _ = both(groups, work)
    assert (honest.code, honest.ranks) == ("bad-tensor", (1,))


@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31), (1 << 20, 1 << 11)])
def test_a_rank_that_announces_more_of_a_sparse_tensor_than_there_is_room_is_named(
    shape: tuple[int, int],
) -> None:
    """Before any room is made: the places alone would have 2^62 and 2^31 elements."""

    def work(group: SealedProcessGroup) -> Any:
        if group.rank() == 1:
            counts = torch.empty(2, dtype=torch.int64)
            told = torch.tensor([shape[0] * shape[1]])
            group._allgather_base(counts, told).wait()
        empty = torch.sparse_coo_tensor(size=shape).coalesce()
        try:
            group.allreduce([empty]).wait()
        except SealiftError as error:
            return error
        return None

    with pair() as groups:
        honest, _ = both(groups, work)
    assert (honest.code, honest.ranks) == ("bad-tensor", (1,))


def test_receiving_from_anybody_is_refused() -> None:
    with pair() as (first, _), pytest.raises(UsageError) as caught:
        first.recv_anysource([torch.ones(1)])
    assert caught.value.code == "bad-world"
