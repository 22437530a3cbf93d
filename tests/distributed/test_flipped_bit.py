"""T7 over real processes: a bit that flips between two slices costs time and nothing else.

The accelerator finds it, throws away what is under way, and takes the job up again from
its last checkpoint; the weights are those of a run without a fault. A memory that goes
on flipping ends the job by name. Without digests the flipped bit would be trained on:
``tests/attacks/test_t7_unchanged.py`` has that mutant.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.demo.folder import World
from tests.sim.jobrun import JobRun, job_run
from tests.sim.jobworld import Wishes, fresh_world, train_here

pytestmark = [pytest.mark.distributed, pytest.mark.long]
WISHES = Wishes(
    epochs=2,
    buffer_bytes=5 << 12,  # four cells and a rest
    checkpoint_every=2,
    rejoin_s=20.0,
    on_missing="wait",
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return fresh_world(tmp_path / "world", WISHES)


def start(run: JobRun, flips: int) -> None:
    run.orchestrator()
    run.accelerator_of("tests.sim.flipping", str(flips))
    for owner in ("north", "east"):
        run.holder(owner)


def test_one_flip_is_found_and_undone(world: World) -> None:
    expected = train_here(world).weights.to_text()
    with job_run(world) as run:
        start(run, 1)
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
        assert run["accelerator"].end() == 0
        kinds = [event.kind for event in run["accelerator"].events]
        result = run["orchestrator"].results[-1]
    assert kinds.count("state.changed") == kinds.count("checkpoint.restored") == 1
    assert (result["weights"], result["skipped"]) == (expected, 0)


def test_a_memory_that_goes_on_flipping_ends_the_job(world: World) -> None:
    with job_run(world) as run:
        start(run, 1000)
        codes = [run[name].end() for name in ("orchestrator", "accelerator")]
        lines = [run[name].error() for name in ("orchestrator", "accelerator")]
    assert codes == [7, 7]
    assert all(line.endswith("[state-changed]") for line in lines), lines
    assert not world.run.exists()
