"""N6: area and states are overwritten by their parent, whatever a recipe did.

Spies are duplicates of what the parent handed out; they outlive the parent's own closing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save

from sealift.data.schedule.memory import SharedBuffer
from sealift.errors import SealiftError
from sealift.serve.modelworker import ModelWorker
from sealift.train.job.settings import ServingTable
from sealift.train.loop.held import MemoryFile, read_of
from sealift.train.loop.states import is_moved, parse_tensors
from sealift.train.loop.tasks import TaskInputs
from sealift.train.loop.trainer import Trainer
from sealift.train.worker import taskprocess
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.requests import Area
from sealift.train.worker.taskprocess import TaskLimits
from sealift.travel.settings import TrainingSettings
from tests.sim.served import FORM, rows
from tests.unit.train.joints import cargo

pytestmark = pytest.mark.distributed


class SpiedArea(Area):
    """Keeps a duplicate of what is handed out, and whether it was written to."""

    spies: list[int]
    held: list[bool]

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.spies.append(os.dup(self.descriptor))

    def close(self) -> None:
        if self._open:
            self.held.append(any(written(self.descriptor)))
        super().close()


@pytest.fixture
def spies(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[int]]]:
    """Duplicates of the areas and states of all tasks, that nobody closes."""
    found: dict[str, list[int]] = {"area": [], "states": []}
    plain = taskprocess._plain_of

    def plain_of(given: TaskInputs) -> SharedBuffer:
        made = plain(given)
        found["states"].append(os.dup(made.descriptor))
        assert any(made.view) is any(each is not None for each in given.states)
        return made

    monkeypatch.setattr(SpiedArea, "spies", found["area"], raising=False)
    monkeypatch.setattr(SpiedArea, "held", [], raising=False)
    monkeypatch.setattr(taskprocess, "Area", SpiedArea)
    monkeypatch.setattr(taskprocess, "_plain_of", plain_of)
    yield found
    for each in (*found["area"], *found["states"]):
        os.close(each)


def written(descriptor: int) -> bytes:
    """What of a memory file exists at all; most of an area does not."""
    found, at, size = b"", 0, os.fstat(descriptor).st_size
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        found += os.pread(descriptor, at - start, start)
    return found


SPOILER = """
import fcntl
import os
import time
import torch
from torch import nn

STEPS = []

def build():
    return nn.Linear(4, 2)

def configure_optimizers(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)

def nothing():
    pass

def fail():
    raise ValueError

def leave():
    os._exit(0)

def hang():
    time.sleep(60)

def spoil():
    for descriptor in range(64):
        for attempt in (
            lambda: fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND),
            lambda: os.ftruncate(descriptor, 0),
            lambda: descriptor == 3 or os.close(descriptor),
        ):
            try:
                attempt()
            except OSError:
                pass

def loss(model, batch):
    STEPS.append(1)
    if len(STEPS) == 2:
        ACT()
    return model(batch["x"]).square().mean()
"""
ACTS = {"nothing": "", "fail": "recipe-error", "leave": "recipe-killed"} | {
    "hang": "recipe-timeout",
    "spoil": "",
}


def act(name: str) -> str:
    """Two slices, the second with a state to go on from; the code that it ends with."""
    files = {"recipe.py": SPOILER.replace("ACT", name).encode()}
    limits = TaskLimits(work_s=8.0)
    with RecipeExecutor(files, "recipe.py", limits=limits) as shop:
        # A state is handed over after the first step, before the recipe acts.
        settings = TrainingSettings(seed=1, batch_rows=16, digest_every=1)
        training = Trainer(shop, settings)
        training.build()
        try:
            training.work([cargo("ada", 48)])
        except SealiftError as error:
            return error.code
    return ""


@pytest.mark.parametrize("name", ACTS)
def test_area_and_states_are_overwritten_whatever_it_did(
    name: str, spies: dict[str, list[int]]
) -> None:
    assert act(name) == ACTS[name]
    assert SpiedArea.held == [True, True]  # control: there was something to overwrite
    for kind, found in spies.items():
        assert len(found) == 2
        assert not any(written(found[-1])), kind


def test_a_state_outlives_its_task_and_nothing_else_does(
    spies: dict[str, list[int]],
) -> None:
    with RecipeExecutor({"recipe.py": SPOILER.encode()}, "recipe.py") as shop:
        training = Trainer(shop, TrainingSettings(seed=1, batch_rows=16))
        training.build()
        left = written(spies["area"][-1])
        tensors = training.joint.tensors
        assert left.rstrip(b"\0") == read_of(tensors, 0, len(tensors)).rstrip(b"\0")
        del tensors, training
        assert not any(written(spies["area"][-1]))


def test_a_rank_has_the_optimizers_part_once() -> None:
    """Moved to the worker when that has a copy; the result has the same bits."""
    text = SPOILER.replace("ACT", "nothing").replace("Linear(4, 2)", "Linear(4, 2000)")
    settings, found = TrainingSettings(seed=1, batch_rows=16), dict[bool, bytes]()
    for moves in (True, False):
        with RecipeExecutor({"recipe.py": text.encode()}, "recipe.py") as shop:
            training = Trainer(shop, settings, moves=moves)
            training.work([cargo("ada", 48)])
            before = training.joint
            training.work([cargo("bob", 48)])
            after = training.joint.tensors
            found[moves] = read_of(after, 0, len(after))
            large = {
                n: e for n, e in parse_tensors(before.tensors).items() if is_moved(n, e)
            }
            assert len(large) == 2  # two moments of one weight
            for each in large.values():
                left = read_of(each.content, 0, len(each.content))
                assert any(left) is not moves
            assert any(read_of(before.model()["weight"].content, 0, 4))
    assert found[True] == found[False]


def test_without_overwriting_they_are_still_there(
    spies: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the spies do see states."""
    monkeypatch.setattr(MemoryFile, "clear", lambda *_: None)
    assert act("nothing") == ""
    assert any(written(spies["area"][-1]))


SERVED = b"""
import fcntl, os
from torch import nn

def build():
    return nn.Linear(2, 2, bias=False)

def predict(model, batch):
    for descriptor in range(64):
        for attempt in (
            lambda: fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND),
            lambda: os.ftruncate(descriptor, 0),
            lambda: descriptor == 3 or os.close(descriptor),
        ):
            try:
                attempt()
            except OSError:
                pass
    return {"y": model(batch["x"])}

def generate(model, batch):
    yield {}
"""


@contextmanager
def served(worker_gone: bool = False) -> Iterator[tuple[int, int]]:
    """Question and answer of a model, spied on, once it was closed."""
    weights = save({"weight": 2 * np.eye(2, dtype=np.float32)})
    with RecipeExecutor({"recipe.py": SERVED}, "recipe.py") as shop:
        settings = ServingTable(max_batch_rows=16, work_s=60.0)
        model = ModelWorker(
            shop, FORM, lambda: SharedBuffer.of(weights), settings=settings
        )
        model.start()
        model.predict([rows(41.5).tobytes()], 1)
        worker = model._worker
        assert worker is not None
        room = os.dup(model._room.descriptor)
        area = os.dup(worker._area.descriptor)
        try:
            assert any(written(room))  # control: both were there
            assert any(written(area))
            if worker_gone:  # before anything of its end could go well
                model._worker = cast("Any", Endless())
                with closing(worker), pytest.raises(OSError, match="no end"):
                    model.close()
            else:
                model.close()
            yield room, area
        finally:
            os.close(room)
            os.close(area)


class Endless:
    """A worker that cannot be ended in order."""

    def close(self) -> None:
        raise OSError("no end")


def test_question_and_answer_are_overwritten_when_a_model_closes() -> None:
    with served() as (room, area):
        assert not any(written(room))
        assert not any(written(area))


def test_a_question_is_overwritten_though_the_worker_does_not_end() -> None:
    with served(worker_gone=True) as (room, _area):
        assert not any(written(room))


def test_an_overwriting_by_a_shared_open_file_can_be_made_to_fail() -> None:
    """The control: why areas are overwritten through the parent's own open file."""
    with closing(Area(4096)) as area:
        fcntl.fcntl(area.descriptor, fcntl.F_SETFL, os.O_APPEND)
        with pytest.raises(PermissionError):
            os.pwrite(area.descriptor, b"\0", 0)
        area.place(0, b"rows")
        area.overwrite()
        assert area.copy(0, 4) == bytes(4)
