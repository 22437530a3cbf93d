"""Contributions that lie on a device are sealed, opened and added there, with the same bits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device.device import DeviceTensor
from sealift.collective import planner
from sealift.collective.announcement import Algorithm, Reduction
from sealift.collective.group import DEVICE_SEGMENT_BYTES, Choices, SealedGroup
from sealift.collective.peer import Peer
from sealift.collective.planner import plan_group
from sealift.errors import AuthenticationError, SealiftError
from sealift.session.devicepipe import DevicePipe
from tests.sim.summing import SUMMING, SummingHost, pipes_of, put, read
from tests.unit.collective.test_group import contribution, in_order

SIZES = (1, 2, 5, 1000, 40_001)
SMALL = Choices(one_phase_bytes=4096, segment_bytes=32 << 10)


def reduced(
    where: Sequence[str],
    size: int,
    *,
    kind: str = "memfd",
    choices: Choices = SMALL,
    algorithm: Algorithm | None = None,
    pipes: list[dict[int, DevicePipe]] | None = None,
) -> list[Any]:
    """What each rank found, on a device or (`cpu`) in the host's memory; or its error."""
    ends = pipes or pipes_of(len(where), kind)

    def one(rank: int) -> Any:
        mine = contribution(rank, size)
        engine = None if where[rank] == "cpu" else SUMMING[where[rank]]()
        try:
            with SealedGroup(rank, ends[rank], choices) as group:
                if engine is None:
                    group.all_reduce(mine, Reduction.SUM, algorithm)
                    return mine.tobytes()
                group.use_device(engine)
                tensor = put(engine, mine)
                try:
                    group.all_reduce(tensor, Reduction.SUM, algorithm)
                finally:
                    left = read(engine, tensor).tobytes()
                return left
        except SealiftError as error:
            return error
        finally:
            if engine is not None:
                engine.close()

    with ThreadPoolExecutor(len(where)) as pool:
        return list(pool.map(one, range(len(where))))


@pytest.mark.parametrize("kind", ["memfd", "tcp"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "where",
    [
        ("host", "host"),
        ("host", "cpu"),
        ("cpu", "host", "cpu"),
        ("host", "host", "host", "host"),
    ],
    ids="+".join,
)
def test_ranks_on_devices_and_others_get_the_same_bits(where, size, kind) -> None:
    wanted = in_order(len(where), size).tobytes()
    assert reduced(where, size, kind=kind) == [wanted] * len(where)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize(
    "where", [("cuda-gcc", "cpu"), ("host", "cuda-gcc", "cuda-gcc")]
)
def test_the_kernels_get_them_too(where, algorithm) -> None:
    wanted = in_order(len(where), 9001).tobytes()
    assert reduced(where, 9001, algorithm=algorithm) == [wanted] * len(where)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_sum_may_lie_where_a_contribution_does(rank, monkeypatch) -> None:
    """One phase, when all was sent before anything is added."""
    monkeypatch.setattr(Peer, "idle", property(lambda peer: peer.flush() or True))
    where = ["cpu", "cpu", "cpu"]
    where[rank] = "host"
    wanted = in_order(3, 1000).tobytes()
    found = reduced(where, 1000, algorithm=Algorithm.ONE_PHASE)
    assert found == [wanted] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("size", [1, 5, 9001, (11 << 20) // 4 + 3])
def test_a_gpu_gets_them_too(monkeypatch, size, algorithm) -> None:
    monkeypatch.setitem(SUMMING, "cuda", lambda: open_cuda(test=lambda _: None))
    where = ("cuda", "cpu", "cuda")
    large = Choices(one_phase_bytes=0, segment_bytes=6 << 20)
    wanted = in_order(3, size).tobytes()
    found = reduced(where, size, choices=large, algorithm=algorithm)
    assert found == [wanted] * 3


def test_a_message_of_many_records_and_batches() -> None:
    size = (11 << 20) // 4 + 3
    large = Choices(one_phase_bytes=0, segment_bytes=6 << 20)
    wanted = in_order(2, size).tobytes()
    assert reduced(("host", "cpu"), size, choices=large) == [wanted] * 2


class Watched(SummingHost):
    """Notes whatever crosses between its memory and the host's."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.crossed: list[bytes] = []

    def upload(self, host, to, offset=0):
        self.crossed.append(bytes(host))
        return super().upload(host, to, offset)

    def download(self, source, offset, out, *, after=()):
        done = super().download(source, offset, out, after=after)
        self.crossed.append(bytes(out))
        return done


def test_no_contribution_crosses_to_the_host_as_it_is(monkeypatch) -> None:
    engines: list[Watched] = []

    def watched() -> Watched:
        engines.append(Watched())
        return engines[-1]

    monkeypatch.setitem(SUMMING, "watched", watched)
    monkeypatch.setattr("tests.unit.collective.test_ondevice.read", _look)
    wanted = in_order(3, 40_001).tobytes()
    assert reduced(("watched",) * 3, 40_001) == [wanted] * 3
    secrets = [contribution(rank, 40_001).tobytes() for rank in range(3)] + [wanted]
    for engine in engines:
        own, *others = engine.crossed  # the test puts it there
        assert any(own == each for each in secrets)
        assert len(others) > 3
        for crossed in others:
            for secret in secrets:
                for at in range(0, len(secret) - 64, 4096):
                    assert secret[at : at + 64] not in crossed


def _look(engine: Any, tensor: DeviceTensor) -> Any:
    """Into the memory, past what is watched."""
    return np.frombuffer(bytes(tensor.memory.view), tensor.dtype)  # type: ignore[attr-defined]


class Flipping:
    """A carrier that spoils one byte of one frame that it gets."""

    def __init__(self, carrier: Any, frame: int, at: int) -> None:
        self._carrier, self._left, self._at = carrier, frame, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def borrow(self, timeout_s: float | None = None) -> memoryview:
        found = self._carrier.borrow(timeout_s)
        self._left -= 1
        if self._left == 0:
            found = memoryview(bytearray(found))
            found[self._at] ^= 1
        return found


@pytest.mark.parametrize("at", [20, 3000, -1], ids=["first", "middle", "tag"])
@pytest.mark.parametrize("frame", [2, 7], ids=["a contribution", "the last result"])
@pytest.mark.parametrize("where", ["host", "cuda-gcc"])
def test_a_spoilt_record_is_in_no_sum_and_leaves_nothing(where, frame, at) -> None:
    pipes = pipes_of(2)
    pipes[0][1]._carrier = Flipping(pipes[0][1]._carrier, frame, at)
    left: dict[int, bytes] = {}
    original = read

    def noted(engine: Any, tensor: DeviceTensor) -> Any:
        found = original(engine, tensor)
        left[len(left)] = found.tobytes()
        return found

    globals()["read"], before = noted, read
    try:
        first, second = reduced((where, "cpu"), 40_001, pipes=pipes)
    finally:
        globals()["read"] = before
    assert isinstance(first, AuthenticationError)
    assert isinstance(second, SealiftError)
    theirs = contribution(1, 40_001).tobytes()
    assert not any(theirs[k : k + 64] in left[0] for k in range(0, len(theirs), 4096))


def test_keys_leave_the_device_with_the_pipe() -> None:
    engine, ends = SUMMING["cuda-gcc"](), pipes_of(2)
    with SealedGroup(0, ends[0]) as one, SealedGroup(1, ends[1]) as two:
        one.use_device(engine)
        with ThreadPoolExecutor(2) as pool:
            a = pool.submit(one.all_reduce, put(engine, np.ones(4, "f4")))
            b = pool.submit(two.all_reduce, np.ones(4, "f4"))
            a.result(), b.result()
        keys = [
            direction.keys._segment[1]
            for direction in (ends[0][1]._out, ends[0][1]._back)
        ]
        one.abort()
        for key in keys:
            with pytest.raises(SealiftError):
                key.require_open()
        two.abort()
    engine.close()


def test_a_tensor_on_a_device_needs_a_group_that_uses_it() -> None:
    engine, ends = SummingHost(threads=1), pipes_of(2)
    group = SealedGroup(0, ends[0])
    with pytest.raises(SealiftError) as caught:
        group.all_reduce(put(engine, np.ones(4, "f4")))
    assert caught.value.code == "bad-tensor"
    ends[1][0].abort()
    engine.close()


def test_a_device_only_adds() -> None:
    engine, ends = SummingHost(threads=1), pipes_of(2)
    group, other = SealedGroup(0, ends[0]), SealedGroup(1, ends[1])
    group.use_device(engine)
    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(group.all_reduce, put(engine, np.ones(4, "f4")), Reduction.MAX)
        pool.submit(other.all_reduce, np.ones(4, "f4"), Reduction.MAX)
        assert a.exception().code == "bad-tensor"
    engine.close()


def test_ranks_choose_together_where_one_has_a_device(monkeypatch) -> None:
    monkeypatch.setattr(planner, "SIZES_THERE", (64 << 10, 256 << 10))
    engine, ends = SummingHost(threads=1), pipes_of(2)

    def plan(rank: int) -> Any:
        with SealedGroup(rank, ends[rank]) as group:
            if rank:
                group.use_device(engine)
            found = plan_group(group, 1 << 20, time.perf_counter)
            tensor = contribution(rank, 9000)
            if rank:
                there = put(engine, tensor)
                group.all_reduce(there)
                return found, group.choices, read(engine, there).tobytes()
            group.all_reduce(tensor)
            return found, group.choices, tensor.tobytes()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(plan, range(2))
    assert first == second
    assert first[0].segment_bytes == first[1].segment_bytes == DEVICE_SEGMENT_BYTES
    assert "messages of 4 MiB" in first[0].why
    assert first[2] == in_order(2, 9000).tobytes()
    engine.close()
