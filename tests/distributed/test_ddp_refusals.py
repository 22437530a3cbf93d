"""Bad input to ranks: one clear line on every one of them, and nothing is summed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.errors import meaning
from tests.sim.ddpjobs import RANKS, SharedRun, shared_run, shared_world, write_shared
from tests.sim.jobrun import Running

pytestmark = pytest.mark.distributed
SOON = ('patience = "lan"', 'patience = "lan"\ngather_s = 120.0\nrejoin_s = 0.0')


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SharedRun]:
    with shared_run(shared_world(tmp_path)) as started:
        write_shared(started.world, SOON)
        yield started


def everybody(run: SharedRun) -> list[Running]:
    run.orchestrate()
    for owner in run.world.owners:
        run.broker(owner)
    return [run.rank(number) for number in range(RANKS)]


def demand_meaning_alone(run: SharedRun, code: str) -> None:
    """Of a rank's error others hear what its name means, and no file of its machine."""
    line = run["orchestrator"].error()
    assert ": rank " in line
    assert meaning(code) in line
    assert ".sealed" not in line
    assert str(run.world.path) not in line


def nothing_summed(run: SharedRun) -> bool:
    return not any(each.kind == "round.ended" for each in run["orchestrator"].events)


def test_a_missing_rank_is_named(run: SharedRun) -> None:
    write_shared(run.world, (SOON[0], SOON[1].replace("120.0", "1.0")))
    role = run.orchestrate()
    assert role.end() == 4
    assert "rank 0" in role.error()
    assert role.error().endswith("[peer-missing]")


def test_one_rank_twice_and_a_number_too_high(run: SharedRun) -> None:
    run.orchestrate()
    first = run.rank(0)
    run["orchestrator"].wait_event("role.arrived", name="accelerator-0")
    again = run.rank(0, name="again")
    assert again.end() == 3
    assert again.error().endswith("[state-in-use]")
    assert run.rank(RANKS, name="above").end() == 2
    assert "rank 2 " in run["above"].error()
    assert first.process.poll() is None


def test_another_file_in_a_tables_place(run: SharedRun) -> None:
    sealed = run.world.home("north").sealed
    shutil.copy(
        run.world.home("east").sealed / "east-train.sealed",
        sealed / "north-train.sealed",
    )
    ranks = everybody(run)
    for role in (run["orchestrator"], *ranks):
        assert role.end() == (4 if role is run["orchestrator"] else 6), role.errors
    assert all("north-train.sealed" in each.error() for each in ranks)
    demand_meaning_alone(run, "other-resource")
    assert nothing_summed(run)


@pytest.mark.long
def test_a_missing_file(run: SharedRun) -> None:
    (run.world.home("south").sealed / "south-train.sealed").unlink()
    ranks = everybody(run)
    for role in (run["orchestrator"], *ranks):
        assert role.end() == (4 if role is run["orchestrator"] else 3), role.errors
    assert all("south-train.sealed" in each.error() for each in ranks)
    demand_meaning_alone(run, "cannot-read")
    assert nothing_summed(run)


@pytest.mark.long
def test_another_recipe_on_a_rank(run: SharedRun) -> None:
    run.orchestrate()
    recipe = run.world.bundle / "recipe.py"
    recipe.write_text(f"{recipe.read_text()}\n# one line more\n")
    role = run.rank(1)
    assert role.end()
    assert "recipe.py" in role.error()


def test_a_port_in_use(run: SharedRun) -> None:
    run.orchestrate()
    role = run.rank(0, "--direct", run.address)
    assert role.end() == 3
    assert run.address.rpartition(":")[2] in role.error()
