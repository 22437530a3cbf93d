"""A world for visits, and hosts that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.hosting_world import HostingWorld, MakeHost
from tests.sim.visit_world import VisitWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


@pytest.fixture
def make(world: VisitWorld) -> Iterator[MakeHost]:
    made: list[HostingWorld] = []

    def make_one(**settings: object) -> HostingWorld:
        made.append(HostingWorld(world, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for each in made:
        each.close()
