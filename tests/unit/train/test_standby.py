"""A task's process that is made ready before the task: what it costs, keeps, and cannot."""

from __future__ import annotations

import io
import os
import queue
import random  # noqa: TID251 - put back, not drawn from
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sealift.attest.evidence import RuntimeEvent
from sealift.errors import JobError
from sealift.ids import Digest
from sealift.train.loop.tasks import SliceTask, StepForm
from sealift.train.loop.trainer import Trainer
from sealift.train.sandboxed import recipeworker
from sealift.train.sandboxed.carryout import rehearse_beforehand
from sealift.train.sandboxed.parentpipe import map_area
from sealift.train.sandboxed.placement import HERE
from sealift.train.sandboxed.recipe import Containment
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.process import FILE_STRETCH, send_with
from sealift.train.worker.standby import Standby
from sealift.train.worker.taskprocess import TaskLimits
from tests.sim.memoryscan import family
from tests.unit.train.joints import SCHEMA, cargo
from tests.unit.train.recipes import PLAIN, SETTINGS

pytestmark = pytest.mark.distributed
FORM = StepForm("train", 4, SCHEMA)


@contextmanager
def standing_by(
    recipe: str = PLAIN, **options: Any
) -> Iterator[tuple[RecipeExecutor, list[str]]]:
    told: list[str] = []
    files = {"recipe.py": recipe.encode()}
    with RecipeExecutor(files, "recipe.py", tell=told.append, **options) as executor:
        executor.compute_on("cpu")
        executor.stand_by(SETTINGS, [FORM])
        yield executor, told


def next_of(executor: RecipeExecutor) -> Standby:
    """Who stands by, once it is ready or never will be."""
    standbys = executor._standbys
    assert standbys is not None
    assert standbys._next is not None
    standby = standbys._next[1]
    standby._over.wait()
    return standby


def worker_of(executor: RecipeExecutor) -> int:
    """Its number, seen from here."""
    next_of(executor)
    return family(executor._process.pid)[-1]


def test_the_bits_are_those_of_a_fresh_process() -> None:
    with RecipeExecutor({"recipe.py": PLAIN.encode()}, "recipe.py") as executor:
        fresh = Trainer(executor, SETTINGS)
        fresh.work([cargo("north", 20)])
    with standing_by() as (executor, told):
        readied = Trainer(executor, SETTINGS)
        readied.work([cargo("north", 20)])
        assert readied.digest() == fresh.digest()
    assert told[-1].startswith("2 of 2 tasks began in a process ")


def test_it_is_forked_by_another_zygote_while_a_task_runs() -> None:
    with standing_by() as (executor, _told):
        trainer = Trainer(executor, SETTINGS)
        trainer.work([cargo("north", 20)])
        assert executor._beside is not None
        executor._beside._wait_for_sandbox()
        trainer.work([cargo("north", 20)])
        assert executor._standbys is not None
        assert executor._standbys._next is not None
        lane, standby = executor._standbys._next
        standby.await_ready()
        assert lane == 1
        assert len(family(executor._beside._process.pid)) == 3
        trainer.work([cargo("north", 20)])  # by that one, and the next is of the first
        assert executor._standbys._next[0] == 0


def test_one_that_is_killed_costs_a_line_and_no_task() -> None:
    with standing_by() as (executor, told):
        trainer = Trainer(executor, SETTINGS)
        os.kill(worker_of(executor), signal.SIGKILL)
        trainer.build()
        lines = [line for line in told if "standby" in line]
        assert lines == [
            "a standby process ended (the recipe's process ended): "
            "the task begins in a new process"
        ]


LOADS_ONCE = (
    "import torch\ntorch.library.define('madeup::once', '(Tensor x) -> Tensor')\n"
)


def test_a_recipe_that_cannot_load_twice_begins_fresh_and_then_unloaded() -> None:
    with standing_by(LOADS_ONCE + PLAIN) as (executor, told):
        next_of(executor)  # else the task ends it before the recipe is loaded
        trainer = Trainer(executor, SETTINGS)
        trainer.build()
        trainer.work([cargo("north", 20)])
    assert sum("cannot be loaded twice" in line for line in told) == 1
    assert told[-1].startswith("1 of 2 tasks")


SAYS = "import sys\nprint('said', file=sys.stderr)\n" + PLAIN


def test_what_it_prints_before_its_task_goes_nowhere() -> None:
    text = io.StringIO()
    with standing_by(SAYS, text=text) as (executor, _told):
        next_of(executor)
        assert text.getvalue() == ""
        Trainer(executor, SETTINGS).build()
    assert text.getvalue() == "said\n"  # loaded twice beforehand, and once for the task


LIMITED = """
import os, resource
print(resource.getrlimit(resource.RLIMIT_DATA))
for number in range(4, 256):
    try:
        print(number, os.fstat(number).st_mode)
    except OSError:
        pass
"""


def test_memory_is_limited_when_the_task_is_known_and_no_descriptor_is_left() -> None:
    text, limits = io.StringIO(), TaskLimits(memory_bytes=3 << 30)
    with standing_by(LIMITED + PLAIN, text=text, limits=limits) as (executor, told):
        Trainer(executor, SETTINGS).work([cargo("north", 20)])
    assert told[-1].startswith("2 of 2 tasks")
    assert text.getvalue().splitlines() == [f"{(3 << 30, 3 << 30)}"] * 2


def inodes() -> set[int]:
    """Of every file that this process has open."""
    found = set()
    for number in range(1024):
        with suppress(OSError):
            found.add(os.fstat(number).st_ino)
    return found


@pytest.mark.parametrize("apart", [True, False])
def test_what_comes_for_a_task_is_in_no_other_threads_reach(
    monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """The control: without a table of its own, every thread can use what it receives."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    window = theirs.detach()
    if not apart:
        monkeypatch.setattr(recipeworker, "leave_descriptors", lambda: None)
        monkeypatch.setattr(recipeworker, "close_others", lambda _kept: None)
        window = os.dup(spare := window)
        monkeypatch.setattr(
            recipeworker.TaskReceiver, "_close_window", lambda _self: None
        )
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    looked = threading.Event()

    def map_slowly(descriptor: int, length: int, start: int) -> memoryview:
        arrived.put(os.fstat(descriptor).st_ino)
        looked.wait()
        return map_area(descriptor, length, start)

    monkeypatch.setattr(recipeworker, "map_area", map_slowly)
    made = recipeworker.TaskReceiver(window, filtered=False)
    made.begin()
    with ours, FileIO(os.memfd_create("rows"), "r+") as file:
        file.write(b"bytes" + bytes(4091))
        send_with(ours, FILE_STRETCH.pack(0, 4096), [file.fileno()])
    reached = arrived.get() in inodes()
    looked.set()
    (found,) = made.take()
    assert bytes(found[:5]) == b"bytes"
    assert reached is not apart
    if not apart:
        os.close(spare)


def test_modules_are_measured_once_and_before() -> None:
    measured: list[RuntimeEvent] = []
    with standing_by(measure=measured.append) as (executor, _told):
        next_of(executor)
        assert len(measured) == 1
        Trainer(executor, SETTINGS).work([cargo("north", 20)])
    assert len(measured) == 1


def test_one_with_another_recipe_gets_no_task() -> None:
    with standing_by() as (executor, _told):
        next_of(executor)._measured = Digest.of(b"another")
        with pytest.raises(JobError) as caught:
            Trainer(executor, SETTINGS).build()
    assert caught.value.code == "state-changed"


@pytest.mark.parametrize("end", [RecipeExecutor.cut, RecipeExecutor.interrupt])
def test_whoever_ends_the_work_ends_it_too(
    end: Callable[[RecipeExecutor], None],
) -> None:
    with standing_by() as (executor, told):
        worker = worker_of(executor)
        end(executor)
        assert executor._standbys is not None
        executor._standbys.close()
        assert worker not in family(executor._process.pid)
        if end is RecipeExecutor.cut:  # the next one is done as ever
            Trainer(executor, SETTINGS).build()
    assert not any("lost" in line for line in told)


def test_it_serves_one_task() -> None:
    with standing_by() as (executor, _told):
        first, worker = next_of(executor), worker_of(executor)
        Trainer(executor, SETTINGS).build()
        assert worker not in family(executor._process.pid)
        assert next_of(executor) is not first


def test_a_worker_that_waits_does_not_run() -> None:
    with standing_by() as (executor, _told):
        path = Path(f"/proc/{worker_of(executor)}/stat")
        while path.read_text("ascii").rpartition(")")[2].split()[0] != "T":
            threading.Event().wait(0.01)  # the zygote has not read it yet


def test_what_a_recipe_moves_beforehand_is_put_back() -> None:
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    with recipeworker.as_it_was():
        random.random(), torch.rand(3), np.random.rand(2)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        os.environ["MADE_UP"] = "1"
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (np.random.get_state()[1] == states[2]).all()
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert "MADE_UP" not in os.environ


@pytest.mark.parametrize("enough", [True, False])
def test_what_a_task_that_is_there_does_not_wait_for(enough: bool) -> None:
    loaded: list[str] = []
    files = {"recipe.py": PLAIN.encode()}
    rehearse_beforehand(
        SliceTask("rehearse", SETTINGS, forms=(FORM,)),
        files,
        "recipe.py",
        guard=Containment(files),
        notice=loaded.append,
        placement=HERE,
        is_enough=lambda: enough,
    )
    assert loaded == ([] if enough else ["recipe.py"] * 2)
