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


@pytest.mark.parametrize(
    "victim",
    ["accelerator-1", pytest.param("orchestrator", marks=pytest.mark.long)],
)
def test_ranks_of_one_machine_and_one_that_is_killed(
    tmp_path: Path, victim: str
) -> None:
    with shared_run(shared_world(tmp_path)) as run:
        role = train(run)
        role.wait_line("train epoch 2 of 12: ")
        (found,) = [p for p in children(role.process.pid) if name_of(p) == victim]
        os.kill(found, signal.SIGKILL)
        role.wait_line(f"{victim} was killed; it was started again")
        assert role.end() == 0, role.errors
        (result,) = role.results
        assert result["weights"] == weights_alone(run.world)
        assert any(", loss " in line for line in role.errors)


def name_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    if "--rank" in words:
        return f"accelerator-{words[words.index('--rank') + 1]}"
    return "orchestrator" if "orchestrator" in words else ""
