"""Gradients that lie on a device are added up there: the worker maps the memory, the parent sums.

The device is the host's stand-in. What it shares is a memory file, which the sandboxed
process maps as it maps a GPU's on a GPU; there it computes on the CPU.
"""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sealift.channel.cuda.bindings import ordinal_of
from sealift.channel.cuda.opening import open_cuda
from sealift.errors import JobError, MalformedError, UnavailableError
from sealift.train.loop.buckets import Trained, cut_buckets
from sealift.train.loop.stepsums import StepSums
from sealift.train.loop.tasks import (
    SliceTask,
    StepForm,
    TaskInputs,
    TaskModel,
    Together,
)
from sealift.train.loop.told import TaskObserver
from sealift.train.loop.trainer import Trainer
from sealift.train.ranks import rank as rank_module
from sealift.train.ranks.rank import Rank
from sealift.train.worker.devices import Gpu
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import AddUp, TaskAnswers
from sealift.travel.settings import JobSettings, SlicesSettings
from tests.sim.summing import (
    SharedHostMemory,
    SummingHost,
    array_of,
    put,
    read,
)
from tests.unit.train.joints import SCHEMA, cargo, joint
from tests.unit.train.ranked import World
from tests.unit.train.recipes import PLAIN, SETTINGS

ROWS = [[12, 5], [8]]


class Shared(SummingHost):
    """Remembers what it shared, and whether it was looked at after its end."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.shared: list[tuple[SharedHostMemory, mmap.mmap]] = []

    def share(self, nbytes: int) -> SharedHostMemory:
        memory = super().share(nbytes)
        self.shared.append((memory, mmap.mmap(os.dup(memory.descriptor), nbytes)))
        return memory


@pytest.fixture
def places():
    """An executor for each rank, and an engine for some."""
    with ExitStack() as opened:

        def make(devices: tuple[int, ...], text: str = PLAIN) -> tuple[Any, ...]:
            files = {"recipe.py": text.encode()}
            executors = [
                opened.enter_context(RecipeExecutor(files, "recipe.py")) for _ in ROWS
            ]
            engines = {number: Shared() for number in devices}
            for each in engines.values():
                opened.callback(each.close)
            return executors, engines

        yield make


@pytest.fixture(scope="module")
def expected():
    slices, _told = World(PLAIN, ROWS).here()
    return [each.trainer.digest() for each in slices]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("devices", "stands_by"), [((0, 1), False), ((1,), True)], ids=["both", "one"]
)
def test_the_model_has_the_same_bits(places, expected, devices, stands_by) -> None:
    executors, engines = places(devices)
    if stands_by:
        for each in executors:
            each.compute_on("cpu")
            each.stand_by(SETTINGS, [StepForm("train", SETTINGS.batch_rows, SCHEMA)])
    ranks = World(PLAIN, ROWS, work=executors.__getitem__).apart(devices=engines)
    assert [each.error for each in ranks] == [None, None]
    assert [each.trainer.digest() for each in ranks] == expected
    for number, engine in engines.items():
        executors[number].dismiss()
        assert len(engine.shared) >= len(ROWS[number])
        for memory, there in engine.shared:
            assert memory.descriptor == -1
            assert there[:] == bytes(len(there)), "gradients are left"


@pytest.mark.distributed
def test_the_parent_holds_no_gradient_of_a_device(places, monkeypatch) -> None:
    """Neither in its area nor in what a worker's request brings."""
    executors, engines = places((0, 1))
    brought: list[int] = []
    add_up = TaskAnswers._add_up

    def watched(self, asked, buffer, parent):
        brought.append(len(buffer))
        return add_up(self, asked, buffer, parent)

    monkeypatch.setattr(TaskAnswers, "_add_up", watched)
    ranks = World(PLAIN, ROWS, work=executors.__getitem__).apart(devices=engines)
    assert not any(each.error for each in ranks)
    assert len(brought) > 10
    assert set(brought) == {0}


@pytest.mark.distributed
def test_a_gradient_that_is_not_finite_is_named_with_its_rank(places) -> None:
    odd = PLAIN.replace(
        "    return F.cross", "    batch['x'] = batch['x'] / 0\n    return F.cross"
    )
    executors, engines = places((0, 1), odd)
    ranks = World(odd, ROWS, work=executors.__getitem__).apart(devices=engines)
    found = [str(each.error) for each in ranks]
    plain = World(odd, ROWS).apart()
    assert [str(each.error) for each in plain] == found
    assert all(isinstance(each.error, JobError) for each in ranks), found


@pytest.mark.gpu
@pytest.mark.parametrize("stands_by", [False, True])
def test_on_a_gpu_the_model_has_the_bits_that_it_has_without(stands_by) -> None:
    with ExitStack() as opened:
        executors = []
        for _ in ROWS:
            files = {"recipe.py": PLAIN.encode()}
            executors.append(opened.enter_context(RecipeExecutor(files, "recipe.py")))
            executors[-1].compute_on("cuda")
            if stands_by:
                form = StepForm("train", SETTINGS.batch_rows, SCHEMA)
                executors[-1].stand_by(SETTINGS, [form])
        engines = {}
        for rank, each in enumerate(executors):
            engines[rank] = open_cuda(ordinal_of(each.gpu.uuid), test=lambda _: None)
            opened.callback(engines[rank].close)
            opened.callback(each.dismiss)
        for bucket_bytes in (64, 1 << 20):
            worlds = [World(PLAIN, ROWS, work=executors.__getitem__) for _ in range(2)]
            plain = worlds[0].apart(bucket_bytes=bucket_bytes)
            there = worlds[1].apart(bucket_bytes=bucket_bytes, devices=engines)
            assert [each.error for each in (*plain, *there)] == [None] * 4
            found = [each.trainer.digest() for each in (*plain, *there)]
            assert found == [found[0]] * 4


class Scribbling(SummingHost):
    """A device whose other end writes what was read of a gradient, at once."""

    def weigh(self, total, part, factor):
        done = super().weigh(total, part, factor)
        array_of(part)[:] = np.nan
        return done


def test_a_gradient_that_its_worker_can_write_is_read_once() -> None:
    """Rule N10: what is added up, judged and told is what was read then."""
    device = Scribbling(threads=1)
    state = joint(PLAIN).joint
    sums = StepSums(
        Alone(), 0, Together((8,), 1 << 20), batch_rows=8, state=state, device=device
    )
    names = tuple(state.model())
    sums.begin(Trained(names))
    (bucket,) = cut_buckets(Trained(names), state.model(), 1 << 20)
    own = np.arange(bucket.elements, dtype=bucket.dtype)
    gradient = put(device, own)
    assert sums.add_up(bucket, gradient) == b""
    assert read(device, gradient).tobytes() == own.tobytes()
    sums.close()
    device.close()


class Alone:
    """A group of one rank."""

    def all_reduce(self, tensor: Any) -> None:
        """Nobody else brings anything."""

    def exchange(self, words: bytes) -> list[bytes]:
        return [words]


def test_what_a_worker_asks_for_is_held_to_the_memory_it_has() -> None:
    state, given = joint(PLAIN).joint, TaskObserver()
    device = SummingHost(threads=1)
    task = SliceTask(
        "train", SETTINGS, (TaskModel((), begun=True),), together=Together((8,), 64)
    )
    names = Trained(tuple(state.model()))
    given.begin_sums(names)

    def answers(nbytes: int) -> TaskAnswers:
        made = TaskAnswers(task, TaskInputs(states=[state]), device.share(nbytes))
        made.reply(names, b"", given)
        return made

    with pytest.raises(MalformedError, match="another bucket"):
        answers(1 << 20).reply(AddUp(0), bytes(4), given)
    with pytest.raises(MalformedError, match="outside of its memory"):
        answers(4).reply(AddUp(0), b"", given)
    device.close()


class Unmapped(SummingHost):
    """What it shares is shorter than it says, so nobody can map it."""

    def share(self, nbytes: int) -> SharedHostMemory:
        memory = super().share(nbytes)
        os.dup2(os.open(os.devnull, os.O_RDONLY), memory.descriptor)
        return memory


@pytest.mark.distributed
def test_whether_a_worker_can_map_it_is_tried() -> None:
    device, odd = SummingHost(threads=1), Unmapped(threads=1)
    with RecipeExecutor({"recipe.py": PLAIN.encode()}, "recipe.py") as executor:
        executor.try_sharing(device)
        with pytest.raises(UnavailableError, match="cannot map") as caught:
            executor.try_sharing(odd)
        assert caught.value.code == "no-device"
        Trainer(executor, SETTINGS).work([cargo("north", 8)])  # the zygote is free
    device.close()
    odd.close()


@pytest.mark.parametrize("fails", ["", "open", "share"])
def test_a_rank_says_where_gradients_are_added_up(monkeypatch, fails) -> None:
    said: list[Any] = []
    device = SummingHost(threads=1)
    device.facts = SimpleNamespace(name="a stand-in")

    def open_it(ordinal: int, *, sink: Any) -> SummingHost:
        if fails == "open":
            raise UnavailableError("no kernels", code="engine-self-test")
        return device

    def try_sharing(engine: Any) -> None:
        if fails == "share":
            raise UnavailableError("not mapped", code="no-device")

    monkeypatch.setattr(rank_module, "open_cuda", open_it)
    monkeypatch.setattr(rank_module, "ordinal_of", lambda uuid: 0)
    gpu = Gpu("NVIDIA H100", "GPU-1")
    of: Any = SimpleNamespace(_sink=said.append)
    of._executor = SimpleNamespace(
        gpu=gpu, try_sharing=try_sharing, dismiss=lambda: said.append("dismissed")
    )
    step = JobSettings(slices=SlicesSettings(count=2, sync="step"))
    with ExitStack() as stack:
        found = Rank._open_device(of, stack, step)
        assert found is (None if fails else device)
        (event,) = said
        assert event.kind == "gradients.summed"
        expected = "on the processor" if fails else "on a stand-in"
        assert event.fields["where"].startswith(expected)
    assert said[1:] == ([] if fails else ["dismissed"])
    by_round = JobSettings(slices=SlicesSettings(count=2, sync="round"))
    of._executor.gpu = None
    for settings in (step, by_round):
        with ExitStack() as stack:
            assert Rank._open_device(of, stack, settings) is None
    of._executor.gpu = gpu
    with ExitStack() as stack:
        assert Rank._open_device(of, stack, by_round) is None
