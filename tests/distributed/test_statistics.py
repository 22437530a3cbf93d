"""Federated statistics over real processes: exact, equal to local, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.demo.tasks import ROW_BYTES
from sealift.errors import UnavailableError
from sealift.ids import Digest
from sealift.release.agreement.signed import load_signed, verify
from sealift.train.output.opening import open_output, read_manifest
from sealift.train.output.runreceipt import open_run
from tests.sim.jobrun import job_run
from tests.sim.jobworld import Wishes, fresh_world, identities, train_here
from tests.sim.statistics import OWNERS, expected, statistics_alone, trained_on

pytestmark = pytest.mark.distributed

Make = Callable[..., Wishes]


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
    history = {"history.jsonl", "history.csv", "report.html", "receipt.json"}
    assert names == {"manifest.json", "statistics.json"} | history
    receipt = open_run((world.run / "receipt.json").read_bytes())
    assert receipt.subject_name == "statistics.json"
    assert receipt.subject == Digest.of((world.run / "statistics.json").read_bytes())
    written = json.loads((world.run / "statistics.json").read_text())
    assert written["statistics"] == expected(world)
    agreement = verify(load_signed(world.agreement))
    manifest = read_manifest(world.run, agreement)
    assert manifest.weights is None
    with pytest.raises(UnavailableError) as nothing:
        open_output(world.run, identities()["lab"], agreement)
    assert nothing.value.code == "no-model"
    assert manifest.prepared == written["rows"]
    told = {name: each.nested() for name, each in manifest.statistics.items()}
    assert told == expected(world)
    local = train_here(world)
    assert local.statistics == manifest.statistics


@pytest.mark.long
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


@pytest.mark.parametrize(
    "make", [statistics_alone, pytest.param(trained_on, marks=pytest.mark.long)]
)
def test_without_one_owner_nothing_leaves(tmp_path: Path, make: Make) -> None:
    """A pass that was cut short: no totals, and no model that was built on them."""
    world = fresh_world(tmp_path, make(buffer_bytes=60 * ROW_BYTES))
    with job_run(world) as run:
        run.everybody(*OWNERS)
        run["orchestrator"].wait_event("visit.ended", purpose="prepare")
        run["holder-south"].process.kill()
        assert run["orchestrator"].end() != 0
        error = run["orchestrator"].error()
    assert "[statistics-withheld]" in error
    assert "south" in error
    assert not (world.run / "manifest.json").exists()
