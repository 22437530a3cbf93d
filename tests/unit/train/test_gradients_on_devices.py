"""Gradients that lie on a device are added up there: the worker maps the memory, the parent sums.

The device is the host's stand-in. What it shares is a memory file, which the sandboxed
process maps as it maps a GPU's on a GPU; there it computes on the CPU.
"""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from typing import Any

import pytest

from sealift.channel.cuda.bindings import ordinal_of
from sealift.channel.cuda.opening import open_cuda
from sealift.errors import JobError
from sealift.train.loop.tasks import StepForm
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import TaskAnswers
from tests.sim.summing import SharedHostMemory, SummingHost
from tests.unit.train.joints import SCHEMA
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
