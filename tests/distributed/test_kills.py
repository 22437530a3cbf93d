"""kill -9 of any role at any point: after its restart the weights are the same.

Which role dies when is drawn from a seed that a failure prints; `make soak-kills` draws
100 points.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sealift.demo.folder import World
from tests.sim.jobworld import Wishes, fresh_world, train_here
from tests.sim.killing import Kill, draw_kills, run_with_kills

pytestmark = pytest.mark.distributed

WISHES = Wishes(
    epochs=3,
    buffer_bytes=5 << 12,  # four cells and a rest
    checkpoint_every=2,
    rejoin_s=40.0,
    on_missing="wait",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fresh_world(tmp_path_factory.mktemp("kills") / "world", WISHES)


@pytest.fixture(scope="module")
def expected(world: World) -> str:
    """Weights of the uninterrupted run."""
    return train_here(world).weights.to_text()


def survive(world: World, folder: Path, kills: list[Kill]) -> tuple[str, int]:
    """Weights of a run with kills, and how many there were."""
    shutil.copytree(world.path, folder)
    survived = run_with_kills(World(folder), kills)
    assert survived.result["skipped"] == 0, survived
    return survived.result["weights"], len(survived.kills)


@pytest.mark.long
def test_each_role_is_killed_once(world: World, expected: str, tmp_path: Path) -> None:
    kills = [
        Kill("accelerator", 40, 0.05),
        Kill("holder-north", 8, 0.01),
        Kill("broker-east", 8, 0.0),
        Kill("orchestrator", 8, 0.02),
    ]
    weights, count = survive(world, tmp_path / "world", kills)
    assert (weights, count) == (expected, len(kills))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_points(
    world: World, expected: str, tmp_path: Path, seed: int
) -> None:
    kills = draw_kills(seed, 5, spacing=30)
    print(f"seed {seed}: {kills}")
    weights, count = survive(world, tmp_path / "world", kills)
    assert weights == expected
    assert count == len(kills), "the run was over before the last kill"
