"""The how-to: what operator and owners type trains what one process would."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from sealift.demo.folder import World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.run import run_local
from tests.sim.ddpjobs import WORK, SharedRun, shared_world
from tests.sim.jobrun import job_run
from tests.sim.jobworld import made_once

pytestmark = pytest.mark.distributed
HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "federated-rounds.md"


def typed(start: str) -> list[str]:
    """The line of a box that begins so, without the program's name."""
    (line,) = re.findall(rf"(?m)^{start} .*$", HOWTO.read_text())
    return shlex.split(line)[1:]


def test_owners_join_with_their_rows_at_home(tmp_path: Path) -> None:
    made = made_once("ddp-owners", lambda path: make_world(path, WORK, plan="ddp"))
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    world, alone = World(tmp_path), World(tmp_path).again("-alone")
    for line in ('plan = "ddp"', '[slices]\ncount = 3\nrows = "owner"'):
        assert line in HOWTO.read_text()
        assert line in world.job.read_text()
    with job_run(world) as run:
        role = run.start("train", *typed("sealift train"))
        at = role.wait_line("waiting at ").split("waiting at ")[1].split()[0]
        for owner in world.owners:
            words = [each.replace("north", owner) for each in typed("sealift join")]
            run.start(owner, *words, "--orchestrator", at)
        assert role.end() == 0, role.errors
        assert [run[owner].end() for owner in world.owners] == [0, 0, 0]
    assert any(", loss " in line for line in role.errors)
    write_job(alone, WORK, ONE_BUFFER, "ddp")
    alone.job.write_text(alone.job.read_text().replace('"ddp"', '"local"'))
    assert role.results[0]["weights"] == run_local(alone).result["weights"]


class TypedRun(SharedRun):
    """Ranks that learn what the how-to exports."""

    def enter(self, name: str) -> list[str]:
        lines = re.findall(r"(?m)^export (.*)$", HOWTO.read_text())
        words = [word for line in lines for word in shlex.split(line)]
        at = [f"SEALIFT_ORCHESTRATOR={self.address}", f"TMPDIR={self.world.path}"]
        return ["env", *words, *at] if name == "torchrun" else []


@pytest.mark.long
def test_torchrun_starts_the_ranks_of_a_host(tmp_path: Path) -> None:
    run = TypedRun(shared_world(tmp_path))
    try:
        run.orchestrate()
        for owner in run.world.owners:
            run.broker(owner)
        words = typed("torchrun --standalone")
        run.start("torchrun", *words, module=("torch.distributed.run",))
        assert run["torchrun"].end() == 0, run["torchrun"].errors
        assert run["orchestrator"].end() == 0
    finally:
        run.stop()
