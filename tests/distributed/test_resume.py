"""A run that was cut off whole: goes on from its last checkpoint, and from no other."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.demo.folder import World
from sealift.train.job.checkpointfile import checkpoint_path, numbers_in
from tests.distributed.test_faults import children_of
from tests.sim.jobrun import JobRun, job_run
from tests.sim.jobworld import Wishes, fresh_world, train_here

pytestmark = [pytest.mark.distributed, pytest.mark.long]

WISHES = Wishes(
    epochs=2,
    step_s=0.002,
    buffer_bytes=5 << 12,  # four cells and a rest
    checkpoint_every=1,
    rejoin_s=20.0,
    on_missing="wait",
)
OLD = "north-of-yesterday"


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which everything was killed; with a copy of north's earlier files."""
    world = fresh_world(tmp_path_factory.mktemp("resume") / "world", WISHES)
    with job_run(world) as run:
        run.everybody("north", "east")
        run["accelerator"].wait_event("checkpoint.sealed", number=1)
        run["broker-north"].signal(signal.SIGKILL)
        run["broker-north"].end()
        for path in (world.home("north").vault, world.home("north").log):
            (world.path / OLD).mkdir(exist_ok=True)
            shutil.copy(path, world.path / OLD)
        run.broker("north")
        sealed = run["accelerator"].wait_event("checkpoint.sealed", number=4)
        assert sealed.fields["sealed_bytes"] > 0
        for role in run.roles.values():
            role.signal(signal.SIGKILL)
    assert numbers_in(state_of(world))[-1] >= 4
    assert not world.run.exists()
    return world


@pytest.fixture
def world(cut_off: World, tmp_path: Path) -> World:
    return World(shutil.copytree(cut_off.path, tmp_path / "world"))


@pytest.fixture
def run(world: World) -> Iterator[JobRun]:
    with job_run(world) as started:
        yield started


def state_of(world: World) -> Path:
    return world.path / "state" / "digits"


def refused(run: JobRun) -> tuple[int, str]:
    """Exit code and name of the error of the next attempt."""
    run.everybody("north", "east")
    codes = {run[name].end() for name in ("orchestrator", "accelerator")}
    lines = {
        run[name].error().rpartition("[")[2] for name in ("orchestrator", "accelerator")
    }
    assert len(codes) == len(lines) == 1, (codes, lines)
    assert not run.world.run.exists()
    return codes.pop(), lines.pop().rstrip("]")


def test_resume_goes_on(world: World, run: JobRun) -> None:
    """And survives the kill of either of its children."""
    resume = run.train(noun="resume")
    for owner in ("north", "east"):
        run.holder(owner)
    resume.wait_line("continues from checkpoint")
    resume.wait_line("the job starts")
    orchestrator, accelerator = sorted(children_of(resume))
    kill(accelerator)
    resume.wait_line("the accelerator was killed; it was started again")
    kill(orchestrator)
    resume.wait_line("the orchestrator was killed; it was started again")
    assert resume.end(120.0) == 0, resume.errors
    assert resume.results[0]["weights"] == train_here(world).weights.to_text()
    for owner in ("north", "east"):
        assert run[f"holder-{owner}"].end() == 0
    assert numbers_in(state_of(world)) == []


def kill(pid: int) -> None:
    import os

    os.kill(pid, signal.SIGKILL)


def test_an_older_file_is_refused(world: World, run: JobRun) -> None:
    folder = state_of(world)
    earlier, last = numbers_in(folder)[-2:]
    shutil.copy(checkpoint_path(folder, earlier), checkpoint_path(folder, last))
    assert refused(run) == (5, "checkpoint-stale")


def test_a_broker_put_back_is_refused(world: World, run: JobRun) -> None:
    home = world.home("north")
    for path in (home.vault, home.log):
        shutil.copy(world.path / OLD / path.name, path)
    assert refused(run) == (5, "checkpoint-rolled-back")
