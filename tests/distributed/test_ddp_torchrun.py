"""Ranks that torchrun starts, and starts again: the result is the uninterrupted run's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.ddpjobs import (
    SLICES,
    SharedRun,
    children,
    shared_run,
    shared_world,
    weights_alone,
    write_shared,
)

pytestmark = pytest.mark.distributed
STEP = (SLICES, f'{SLICES}sync = "step"\n')
STEPS = [
    pytest.param((), id="round"),
    pytest.param((STEP,), id="step", marks=pytest.mark.long),
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SharedRun]:
    with shared_run(shared_world(tmp_path)) as started:
        yield started


def everybody(run: SharedRun, *options: str) -> None:
    run.orchestrate()
    for owner in run.world.owners:
        run.broker(owner)
    run.torchrun(2, *options)


@pytest.mark.parametrize("changes", STEPS)
def test_a_killed_rank_costs_a_restart_and_no_bit(
    run: SharedRun, changes: tuple[tuple[str, str], ...]
) -> None:
    write_shared(run.world, *changes)
    everybody(run, "--max-restarts", "2")
    orchestrator, torchrun = run["orchestrator"], run["torchrun"]
    orchestrator.wait_event("round.ended", purpose="train", epoch=1)
    ranks = children(torchrun.process.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    assert orchestrator.wait_event("accelerator.lost").fields["wait_s"]
    assert torchrun.end() == 0, torchrun.errors
    assert orchestrator.end() == 0, orchestrator.errors
    ready = [each for each in orchestrator.events if each.kind == "rank.ready"]
    began = {int(str(each.fields["position"])) > 0 for each in ready}
    assert began == {False, True}
    (result,) = orchestrator.results
    assert result["weights"] == weights_alone(run.world, *changes)


def test_as_many_ranks_as_agreed_or_none(run: SharedRun) -> None:
    run.address = "127.0.0.1:9"
    torchrun = run.torchrun(3)
    assert torchrun.end()
    refusals = {line for line in torchrun.errors if line.startswith("sealift: ")}
    assert refusals
    assert all(line.endswith("[bad-world]") for line in refusals), refusals
