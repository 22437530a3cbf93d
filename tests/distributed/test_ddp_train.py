"""`sealift train` and `join` with the plan ``ddp``: what people type, and what they see."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from sealift.lab.worlds.folder import HOST, OPERATOR, World
from sealift.lab.worlds.job import ONE_BUFFER, make_world, write_job
from sealift.lab.worlds.roles import run_local
from tests.sim.ddpjobs import (
    WORK,
    SharedRun,
    children,
    shared_run,
    shared_world,
    weights_alone,
)
from tests.sim.jobrun import Running, job_run
from tests.sim.jobworld import made_once

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


def test_owners_join_with_their_rows_at_home(tmp_path: Path) -> None:
    made = made_once("ddp-owners", lambda path: make_world(path, WORK, plan="ddp"))
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    world, alone = World(tmp_path), World(tmp_path).again("-alone")
    with job_run(world) as run:
        home = world.home(OPERATOR)
        role = run.start("train", "train", world.job, "--json", *home.unlocking)
        line = role.wait_line("waiting at ")
        run.address = line.split("waiting at ")[1].split()[0]
        for owner in world.owners:
            run.holder(owner)
        assert role.end() == 0, role.errors
        assert [run[f"holder-{each}"].end() for each in world.owners] == [0, 0, 0]
    write_job(alone, WORK, ONE_BUFFER, "ddp")
    alone.job.write_text(alone.job.read_text().replace('"ddp"', '"local"'))
    assert role.results[0]["weights"] == run_local(alone).result["weights"]
    assert not world.home(HOST).receipts.exists()
