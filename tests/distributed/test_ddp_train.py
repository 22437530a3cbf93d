"""`sealift train` and `join` with the plan ``ddp``: what people type, and what they see."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.sim.ddpjobs import (
    SharedRun,
    children,
    shared_run,
    shared_world,
    weights_alone,
)
from tests.sim.jobrun import Running

pytestmark = pytest.mark.distributed


def train(run: SharedRun, noun: str = "train") -> Running:
    """All ranks of one machine; owners have brokers alone."""
    sealed = [
        w for o in run.world.owners for w in ("--sealed", run.world.home(o).sealed)
    ]
    role = run.train(*sealed, noun=noun)
    for owner in run.world.owners:
        run.broker(owner)
    return role


def test_ranks_of_one_machine_and_one_that_is_killed(tmp_path: Path) -> None:
    with shared_run(shared_world(tmp_path)) as run:
        role = train(run)
        role.wait_line("train epoch 2 of 12: ")
        ranks = [each for each in children(role.process.pid) if rank_of(each) == "1"]
        os.kill(ranks[0], signal.SIGKILL)
        role.wait_line("accelerator-1 was killed; started again")
        assert role.end() == 0, role.errors
        (result,) = role.results
        assert result["weights"] == weights_alone(run.world)
        assert any("mean loss" in line for line in role.errors)


def rank_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("--rank") + 1] if "--rank" in words else ""
