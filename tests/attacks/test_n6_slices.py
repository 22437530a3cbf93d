"""N6, N10: nothing passes from one slice to the next; recipes in real workers try it."""

from __future__ import annotations

import _sqlite3
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.errors import JobError, MalformedError, require_value
from sealift.train.loop.held import MemoryFile, read_of
from sealift.train.loop.states import Settled, TrainingState
from sealift.train.loop.tasks import SliceTask, TaskInputs, TaskModel
from sealift.train.loop.trainer import Trainer
from sealift.train.sandboxed.parentpipe import WorkerEnd
from sealift.train.worker import process, taskprocess
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import (
    AssignmentDone,
    Handed,
    TaskAnswers,
    TaskMetrics,
    places_of,
    size_of,
)
from sealift.train.worker.process import WorkerProcess
from sealift.train.worker.requests import Area, ParentEnd, Request
from sealift.travel.settings import TrainingSettings
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT
from tests.sim.inside import look
from tests.sim.memoryscan import family
from tests.unit.train.joints import cargo, in_place, joint

pytestmark = pytest.mark.distributed
# Sixty labels of somebody's held-out rows, left in whatever is open and has an offset.
CARRIER = """
import os
import torch
from torch import nn

def places():
    for descriptor in range(64):
        try:
            yield descriptor, os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError:
            pass

def build():
    return nn.Linear(4, 2)

def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)

def loss(model, batch):
    found = sum(at for _, at in places())
    return (model(batch["x"]).sum() * 0.0).double() + float(found)

def evaluate(model, batch):
    word = sum(int(bit) << place for place, bit in enumerate(batch["y"][:60].tolist()))
    for descriptor, _ in places():
        os.lseek(descriptor, word, os.SEEK_SET)
    return {"accuracy": 0.0}
"""


def carried(workplace: Any) -> tuple[float, float]:
    """One owner's loss before and after another owner's rows were evaluated."""
    training = Trainer(workplace, TrainingSettings(seed=1, batch_rows=64))
    before = training.work([cargo("bob")])["bob-train"].metrics["loss"]
    training.work([cargo("alice", 40, part="heldout")], "heldout")
    after = training.work([cargo("bob", epoch=1)])["bob-train"].metrics["loss"]
    return before, after


def test_no_offset_of_an_open_file_carries_rows_to_the_next_slice() -> None:
    with RecipeExecutor({"recipe.py": CARRIER.encode()}, "recipe.py") as shop:
        assert carried(shop) == (0.0, 0.0)


def test_a_file_that_both_slices_have_open_carries_them() -> None:
    """The control of the test above: the recipe does what it says."""
    with open(os.memfd_create("shared"), "rb") as shared:
        # That one alone: here the others are the tests' own, their output among them.
        only = CARRIER.replace("range(64)", f"[{shared.fileno()}]")
        before, after = carried(in_place(only))
    assert after != before


NUMBERED = """
import os, threading
from torch import nn
def build():
    for _ in range(7):
        thread = threading.Thread(target=print)
        thread.start()
        thread.join()
    print("number", os.getpid())
    return nn.Linear(4, 2)
def configure_optimizers(model):
    from torch.optim import SGD
    return SGD(model.parameters(), lr=0.1)
"""


def numbers(wanted: str) -> list[str]:
    """What two slices say of their own number as processes."""
    text = io.StringIO()
    with RecipeExecutor(
        {"recipe.py": NUMBERED.encode()}, "recipe.py", text=text, wanted=wanted
    ) as executor:
        if executor.sandbox != wanted:
            pytest.skip(f"this machine lacks {wanted}")
        for _ in range(2):
            Trainer(executor, TrainingSettings(seed=1, batch_rows=2)).build()
    return [line for line in text.getvalue().splitlines() if "number" in line]


def test_a_slice_does_not_learn_how_many_threads_another_had() -> None:
    first, second = numbers("namespaces+landlock+seccomp")
    assert first == second


def test_the_machines_own_count_would_tell() -> None:
    """The control: without a world of its own there is one count for all."""
    first, second = numbers("landlock+seccomp")
    assert first != second


WORKER_SAYS = """
import io, sys
from sealift.errors import JobError
from sealift.train.worker import executor
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT

RECIPE = b'''
from torch import nn
from sealift.travel.visit.memory import freed_is_overwritten
def build():
    print(freed_is_overwritten.__wrapped__())
    return nn.Linear(4, 2)
def configure_optimizers(model):
    from torch.optim import SGD
    return SGD(model.parameters(), lr=0.1)
'''
from sealift.train.loop.trainer import Trainer
from sealift.travel.settings import TrainingSettings
stays, *left_out = sys.argv[1:]
given = ALLOCATOR_ENVIRONMENT.items()
executor.ALLOCATOR_ENVIRONMENT = {k: v for k, v in given if k not in left_out}
text, stays = io.StringIO(), stays == "stays"
try:
    with executor.RecipeExecutor(
        {"recipe.py": RECIPE}, "recipe.py", text=text, overwrite_freed=stays
    ) as shop:
        assert shop.sandbox
        Trainer(shop, TrainingSettings(seed=1, batch_rows=2)).build()
except JobError as error:
    print(error.code, error.why)
print(text.getvalue())
"""


def worker_says(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WORKER_SAYS, *words],
        env=dict(os.environ) | ALLOCATOR_ENVIRONMENT,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_a_worker_that_stays_overwrites_what_it_frees_as_its_parent_does() -> None:
    assert "True" in worker_says("stays")


def test_the_memory_of_a_task_ends_with_it_instead() -> None:
    assert "False" in worker_says("ends")


@pytest.mark.parametrize("left_out", sorted(ALLOCATOR_ENVIRONMENT))
def test_a_worker_that_keeps_what_it_frees_does_not_start(left_out: str) -> None:
    """Also the control of the test above: what a worker is not given, it has not."""
    found = worker_says("stays", left_out)
    assert found[0].startswith("recipe-killed")
    assert "freed memory" in found[0]
    assert "True" not in found


def test_libraries_are_in_memory_before_the_first_slice(tmp_path: Path) -> None:
    """N6: what a recipe reads of them changes nothing that anybody could time."""
    library = tmp_path / "library.so"
    shutil.copy(_sqlite3.__file__, library)
    os.sync()
    before, after = look("pages", SHOWN=str(library))
    if not before:  # nothing can be dropped where files are memory
        pytest.skip("this machine lacks a disk for temporary files")
    assert after == 0


@pytest.mark.cold
def test_who_forks_workers_holds_libraries_in_memory() -> None:
    if os.geteuid() != 0:
        pytest.skip("this machine lacks the right to lock memory")
    import torch

    folder = Path(torch.__file__).parent / "lib"
    largest = max(each.stat().st_size for each in folder.glob("libtorch*.so"))
    assert look("zygote")["locked"] > largest


class ChangingArea(Area):
    """Another process's memory: what was read once is different the next time."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._memory = cast("Any", Changing(self._memory))


class Changing:
    """What is read of it is overwritten at once."""

    def __init__(self, plain: MemoryFile) -> None:
        self._plain = plain

    def read(self, start: int, length: int) -> bytes:
        found = self._plain.read(start, length)
        self._plain.write(start, bytes(len(found)))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@pytest.fixture
def state() -> TrainingState:
    training = joint()
    training.build()
    return training._states[""]


@contextmanager
def conversation(state: TrainingState) -> Iterator[tuple[TaskAnswers, Any, Any, Area]]:
    """A task's answers, and both ends of its worker, over memory that changes."""
    model = TaskModel((), begun=True, windows=(4,))
    settings = TrainingSettings(seed=1, batch_rows=2, digest_every=1)
    task = SliceTask("train", settings, (model,))
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(ChangingArea(1 << 20)) as area:
        worker = WorkerEnd(theirs.fileno(), area.descriptor)
        parent = ParentEnd(area, ours.fileno(), lambda: 5.0)
        yield TaskAnswers(task, TaskInputs(states=[state])), parent, worker, area


def reply(answers: TaskAnswers, request: Request, told: Any) -> None:
    answers.reply(request.message, request.buffer, told)


def put(worker: WorkerEnd, state: TrainingState) -> int:
    content = state.tensors + state.tree
    worker.buffers[: len(content)] = content
    return len(content)


def test_what_a_worker_hands_over_is_read_once(state: TrainingState) -> None:
    """N10: what was checked is what is used."""
    taken: list[TrainingState] = []
    told = SimpleNamespace(hand_over=lambda model, found: taken.append(found))
    with conversation(state) as (answers, parent, worker, _area):
        size = put(worker, state)
        worker._say(Handed(0, size_of(state)), 0, size, 0)
        reply(answers, parent.hear(Handed), told)
        assert taken == [state]
        worker._say(Handed(0, size_of(state)), 0, size, 0)
        with pytest.raises(MalformedError):  # control: a second look is another
            reply(answers, parent.hear(Handed), told)


SMALL = """
import torch
from torch import nn
def build():
    return nn.Linear(4, 2)
def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
def loss(model, batch):
    return model(batch["x"]).square().mean()
"""


def test_what_a_worker_is_done_with_stays_as_it_was_measured(
    state: TrainingState,
) -> None:
    """Of one that is gone it is taken by reference; who still wrote would be found (H1)."""
    done = replace(state, step=state.step + 4)
    with conversation(state) as (answers, parent, worker, area):
        worker._say(TaskMetrics(0, 0, {"loss": 0.5}), 0, 0, 0)
        told = SimpleNamespace(measured=lambda model, place, values: None)
        reply(answers, parent.hear(TaskMetrics), told)
        plain = area._memory = cast("Any", area._memory)._plain
        (at,) = places_of(area.length, [len(state.tensors)])
        plain.write(0, state.tree)
        plain.write(at, read_of(state.tensors, 0, len(state.tensors)))
        (found,) = answers.finish(AssignmentDone((size_of(done),), ()), area).states
        assert found == done
        settled = Settled(done)
        settled.verify(require_value(found))  # control
        plain.write(at + len(state.tensors) - 1, b"?")
        with pytest.raises(JobError) as caught:
            settled.verify(require_value(found))
    assert caught.value.code == "state-changed"


@pytest.mark.parametrize("silent", [True, False])
def test_nothing_is_taken_of_a_worker_whose_end_nobody_confirms(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might still write: a state would be one thing when digested, another when used."""
    part = WorkerProcess.part

    def part_in_silence(self: WorkerProcess, farewell_s: float) -> None:
        zygote = family(shop._process.pid)[:-1]
        for each in zygote if silent else ():
            os.kill(each, signal.SIGSTOP)
        try:
            part(self, farewell_s)
        finally:
            for each in zygote:
                os.kill(each, signal.SIGCONT)  # its late word comes now

    with RecipeExecutor({"recipe.py": SMALL.encode()}, "recipe.py") as shop:
        training = Trainer(shop, TrainingSettings(seed=1, batch_rows=16))
        training.build()
        before = training.joint
        with monkeypatch.context() as patched:
            patched.setattr(WorkerProcess, "part", part_in_silence)
            if silent:
                patched.setattr(process, "START_S", 0.5)
                patched.setattr(taskprocess, "FAREWELL_S", 0.5)
            with pytest.raises(JobError) if silent else nullcontext() as caught:
                training.work([cargo("ada")])
        if caught is None:
            assert training.steps  # control
            training.work([cargo("ada")])
            return
        assert caught.value.code == "recipe-killed"
        assert training.joint is before
        with pytest.raises(JobError):  # nor does that zygote fork another one
            training.work([cargo("ada")])


def test_nothing_outside_of_an_area_is_read(state: TrainingState) -> None:
    with closing(Area(1 << 12)) as area:
        for start, length in ((0, (1 << 12) + 1), (1 << 12, 1), (-1, 1), (4, -5)):
            with pytest.raises(MalformedError):
                area.copy(start, length)


def test_a_parent_that_cannot_have_a_worker_says_so() -> None:
    """A zygote that is gone is an error with a code, not a silent lack of walls."""
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as shop:
        assert shop.sandbox
        shop.interrupt()
        with pytest.raises(JobError):
            Trainer(shop, TrainingSettings(seed=1, batch_rows=2)).build()
