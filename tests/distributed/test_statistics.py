"""Federated statistics over real processes: exact, equal to local, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sealift.demo.tasks.digits import ROW_BYTES
from sealift.release.signed import load_signed, verify
from sealift.train.handover import read_manifest
from tests.sim.jobrun import job_run
from tests.sim.jobworld import fresh_world, train_here, write_job
from tests.sim.statistics import OWNERS, expected, statistics_alone, trained_on

pytestmark = pytest.mark.distributed


def test_statistics_alone(tmp_path: Path) -> None:
    """`sealift train` of a job without training: totals, signed, and no model."""
    wishes = statistics_alone(buffer_bytes=200 * ROW_BYTES)
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        train = run.train()
        holders = [run.holder(owner) for owner in OWNERS]
        assert train.end() == 0, train.errors
        assert [holder.end() for holder in holders] == [0, 0, 0]
    found = train.results[-1]
    assert found["statistics"] == expected(world)
    assert "weights" not in found
    names = {path.name for path in world.run.iterdir()}
    assert names == {"manifest.json", "statistics.json"}
    written = json.loads((world.run / "statistics.json").read_text())
    assert written["statistics"] == expected(world)
    manifest = read_manifest(world.run, verify(load_signed(world.agreement)))
    assert manifest.weights is None
    assert manifest.prepared == written["rows"]
    told = {name: each.nested() for name, each in manifest.statistics.items()}
    assert told == expected(world)
    local = train_here(world)
    assert local.statistics == manifest.statistics


def test_a_model_on_sums_equals_local(tmp_path: Path) -> None:
    wishes = trained_on(epochs=1, buffer_bytes=300 * ROW_BYTES)
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        run.everybody(*OWNERS)
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
        found = run["orchestrator"].results[-1]
    local = train_here(world)
    assert local.weights is not None
    assert found["weights"] == local.weights.to_text()
    assert found["statistics"] == expected(world)


@pytest.mark.parametrize("epochs", [0, 1])
def test_without_one_owner_nothing_leaves(tmp_path: Path, epochs: int) -> None:
    """A pass that was cut short: no totals, and no model that was built on them."""
    make = statistics_alone if epochs == 0 else trained_on
    wishes = make(gather_s=6.0, brokers_s=3.0)
    world = fresh_world(tmp_path, wishes)
    write_job(world, make(epochs=1, gather_s=6.0) if epochs else wishes)
    with job_run(world) as run:
        run.orchestrator()
        run.accelerator()
        for owner in OWNERS[:2]:
            run.broker(owner)
            run.holder(owner, with_broker=False)
        assert run["orchestrator"].end() != 0
        error = run["orchestrator"].error()
    assert "[statistics-withheld]" in error
    assert "0 rows of south" in error
    assert not world.run.exists()
