"""Sums in the order of ranks, whatever the ranks' speeds are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np
import pytest

from sealift.collective.announcement import Reduction
from sealift.collective.group import Choices, SealedGroup
from sealift.collective.peer import Peer
from sealift.collective.tensors import DTYPES, Array
from sealift.errors import JobError, PeerError, SealiftError, UsageError
from tests.sim.wires import simulated_wires

Work = Callable[[SealedGroup], Any]
SIZES = (0, 1, 2, 3, 5, 64, 1000, 40_000)


def on_all(world: int, work: Work, choices: Choices | None = None) -> list[Any]:
    """What each rank found, or the error that it ended with."""
    wires = simulated_wires(world)

    def one(rank: int) -> Any:
        group = SealedGroup(rank, wires[rank], choices)
        try:
            with group:
                return work(group)
        except SealiftError as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


def contribution(rank: int, size: int, dtype: Any = "float32") -> Array:
    rng = np.random.default_rng([rank, size])
    scale = 10.0 ** rng.integers(-6, 6, size)  # so that another order is another sum
    return np.asarray(rng.standard_normal(size) * scale).astype(dtype)


def in_order(world: int, size: int, combine: Any = np.add) -> Array:
    return reduce(combine, (contribution(rank, size) for rank in range(world)))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("one_phase_bytes", [0, 1 << 30])
def test_sums_are_in_the_order_of_ranks_bit_for_bit(
    world: int, one_phase_bytes: int
) -> None:
    def work(group: SealedGroup) -> list[bytes]:
        found = []
        for size in SIZES:
            tensor = contribution(group.rank, size)
            group.all_reduce(tensor)
            found.append(tensor.tobytes())
            tensor[...] = np.nan  # a sender that is still at work would send it
        return found

    choices = Choices(one_phase_bytes=one_phase_bytes, segment_bytes=1 << 12)
    wanted = [in_order(world, size).tobytes() for size in SIZES]
    assert on_all(world, work, choices) == [wanted] * world


def test_another_order_is_another_sum() -> None:
    """The control: the contributions of these tests do tell."""
    parts = [contribution(rank, 40_000) for rank in range(4)]
    assert reduce(np.add, parts[::-1]).tobytes() != in_order(4, 40_000).tobytes()


@pytest.mark.parametrize(
    ("reduction", "combine"),
    [
        (Reduction.MAX, np.maximum),
        (Reduction.MIN, np.minimum),
        (Reduction.PRODUCT, np.multiply),
    ],
)
def test_other_reductions(reduction: Reduction, combine: Any) -> None:
    def work(group: SealedGroup) -> bytes:
        tensor = contribution(group.rank, 1000)
        group.all_reduce(tensor, reduction)
        return tensor.tobytes()

    assert set(on_all(3, work)) == {in_order(3, 1000, combine).tobytes()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type(dtype: Any) -> None:
    def work(group: SealedGroup) -> list[Any]:
        tensor = np.full((4, 5), group.rank + 1).astype(dtype)
        group.all_reduce(tensor)
        return tensor.tolist()  # type: ignore[no-any-return]

    total = np.full((4, 5), 6).astype(dtype).tolist()
    assert on_all(3, work) == [total] * 3


def test_scatter_gather_and_broadcast() -> None:
    def work(group: SealedGroup) -> tuple[Any, ...]:
        everything, part = contribution(group.rank, 3000), np.empty(1000, "float32")
        group.reduce_scatter(everything, part)
        gathered = np.empty(3000, "float32")
        group.all_gather(part, gathered)
        told = np.full(2000, group.rank)
        group.broadcast(told, root=2)
        group.barrier()
        return part.tobytes(), gathered.tobytes(), set(told.tolist())

    total = in_order(3, 3000)
    for rank, (part, gathered, told) in enumerate(on_all(3, work)):
        assert part == total[rank * 1000 :][:1000].tobytes()
        assert gathered == total.tobytes()
        assert told == {2}


def test_ranks_hear_each_others_words() -> None:
    words = [b"%04d" % rank for rank in range(4)]
    assert on_all(4, lambda group: group.exchange(words[group.rank])) == [words] * 4


def one_ahead(group: SealedGroup, tensor: Array) -> None:
    group._number = 1
    group.all_reduce(tensor)


@pytest.mark.parametrize(
    ("drift", "said"),
    [
        (
            lambda g, t: g.all_reduce(t[:-1]),
            "elements: 999 on the other rank, 1000 here",
        ),
        (
            lambda g, t: g.all_reduce(t.astype("float64")),
            "dtype: 1 on the other rank, 0 here",
        ),
        (
            lambda g, t: g.all_reduce(t, Reduction.MAX),
            "reduction: max on the other rank, sum here",
        ),
        (
            lambda g, t: g.broadcast(t),
            "operation: broadcast on the other rank, all_reduce here",
        ),
        (
            lambda g, t: g.barrier(),
            "operation: barrier on the other rank, all_reduce here",
        ),
        (one_ahead, "number: 1 on the other rank, 0 here"),
    ],
)
def test_ranks_that_drift_apart_sum_nothing(drift: Any, said: str) -> None:
    kept = {}

    def work(group: SealedGroup) -> None:
        tensor = kept[group.rank] = contribution(group.rank, 1000)
        if group.rank == 1:
            drift(group, tensor)
        else:
            group.all_reduce(tensor)

    for rank, error in enumerate(on_all(3, work)):
        assert isinstance(error, JobError | PeerError), error
        if isinstance(error, JobError):
            assert error.code == "ranks-drifted"
        assert kept[rank].tobytes() == contribution(rank, 1000).tobytes()
    errors = on_all(2, work)
    assert said in str(errors[0])


def test_other_choices_are_a_drift() -> None:
    wires = simulated_wires(2)

    def one(rank: int) -> SealiftError:
        choices = Choices(digest=bytes([rank]) * 32)
        with (
            pytest.raises(SealiftError) as caught,
            SealedGroup(rank, wires[rank], choices) as group,
        ):
            group.barrier()
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(one, range(2)))
    assert any(error.code == "ranks-drifted" for error in found)


def test_a_rank_that_goes_ends_the_group_everywhere() -> None:
    def work(group: SealedGroup) -> None:
        group.barrier()
        if group.rank == 2:
            group.abort()
        while True:
            group.all_reduce(contribution(group.rank, 100_000))

    first, second, gone = on_all(3, work)
    assert gone.code == "group-closed"
    for error in (first, second):
        assert isinstance(error, PeerError)
        assert "rank" in error.what
    assert {"rank 2" in first.what, "rank 2" in second.what} != {False}


def test_after_an_error_every_call_says_why() -> None:
    def work(group: SealedGroup) -> str:
        group.barrier()  # control
        for _ in range(2):
            with pytest.raises(UsageError, match="cannot be used") as caught:
                group.all_reduce(np.zeros(3, "float128"))
        with pytest.raises(UsageError, match="cannot be used"):
            group.barrier()
        return caught.value.code

    assert on_all(1, work) == ["bad-tensor"]


def test_who_made_a_mistake_is_not_summed_with_who_did_not() -> None:
    """Its next call would have the number of the others' first."""
    kept = {}

    def work(group: SealedGroup) -> None:
        kept[group.rank] = contribution(group.rank, 1000)
        if group.rank == 0:
            with pytest.raises(UsageError):
                group.all_reduce(np.zeros(1000, "float128"))
        group.all_reduce(kept[group.rank])

    assert all(isinstance(each, SealiftError) for each in on_all(2, work))
    for rank, tensor in kept.items():
        assert tensor.tobytes() == contribution(rank, 1000).tobytes()


def test_whatever_goes_wrong_in_sending_ends_the_group() -> None:
    def broken(message: object) -> None:
        raise OSError("no such thing")

    wires = simulated_wires(2)
    group = SealedGroup(0, wires[0])
    wires[0][1].send_now = lambda message: False  # type: ignore[method-assign]
    wires[0][1].send = broken  # type: ignore[method-assign]
    with pytest.raises(PeerError) as caught:
        group.barrier()
    assert "rank 1" in caught.value.what
    with pytest.raises(PeerError):
        group.barrier()


def test_one_thread_uses_a_group() -> None:
    wires = simulated_wires(2)
    group = SealedGroup(0, wires[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.barrier)
        while not group._turn.locked():
            pass
        with pytest.raises(UsageError) as caught:
            group.barrier()
        assert caught.value.code == "group-in-use"
        with pytest.raises(UsageError):
            waiting.result()


@pytest.mark.parametrize(("rank", "peers"), [(0, [0]), (1, [2]), (0, range(1, 17))])
def test_what_is_no_group(rank: int, peers: Any) -> None:
    wires = {peer: simulated_wires(2)[0][1] for peer in peers}
    with pytest.raises(UsageError) as caught:
        SealedGroup(rank, wires)
    assert caught.value.code == "bad-world"


class FullThenFree:
    """A pipe that was full when the first message came, and is not any more."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.free = threading.Event()

    def send(self, source: memoryview) -> None:
        assert self.free.wait(60)
        self.sent.append(bytes(source))

    def send_now(self, source: memoryview) -> bool:
        if source[:1] == b"1":
            return False
        self.sent.append(bytes(source))
        return True


def test_a_message_overtakes_none_that_waits() -> None:
    wire: Any = FullThenFree()
    peer = Peer(1, wire, lambda error: error)
    peer.send(b"1")
    peer.send(b"2")
    wire.free.set()
    peer.flush()
    peer.send(b"3")
    peer.stop()
    assert wire.sent == [b"1", b"2", b"3"]
