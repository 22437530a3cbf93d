"""An owner's holder and the broker beside it: one does not stay without the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.jobrun import job_run
from tests.sim.jobworld import Wishes, fresh_world

pytestmark = pytest.mark.distributed


def test_join_ends_when_its_broker_fails(tmp_path: Path) -> None:
    """Else it would wait for a job in which this owner can take no part."""
    world = fresh_world(tmp_path / "world", Wishes())
    world.home("north").log.mkdir()
    with job_run(world) as run:
        run.orchestrator()
        holder = run.holder("north")
        assert holder.end() == 7
        assert "the broker beside the holder" in holder.errors[-1]
        assert "audit.db" in holder.errors[-2]
