"""``travel`` over real processes equals ``local`` bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.demo.folder import World
from sealift.demo.tasks import ROW_BYTES
from sealift.release.agreement.signed import load_signed, verify
from sealift.train.loop.states import chain_tensors, parse_tensors
from sealift.train.output.modelfacts import read_facts
from sealift.train.output.opening import open_output
from sealift.train.plans.local import LocalRun
from tests.sim.jobrun import Running, job_run
from tests.sim.jobworld import Wishes, fresh_world, identities, train_here, write_job

pytestmark = pytest.mark.distributed

ALL = ("north", "east", "south")


def here(world: World, wishes: Wishes) -> LocalRun:
    write_job(world, wishes)
    return train_here(world)


def summary(role: Running) -> dict[str, object]:
    assert role.end() == 0, role.errors
    return role.results[-1]


@pytest.mark.long
def test_slices_by_size_equal_local(tmp_path: Path) -> None:
    """Several slices per holder, the largest rest first."""
    wishes = Wishes(
        owners=("east", "south"), order="by-size", buffer_bytes=100 * ROW_BYTES
    )
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        run.everybody(*wishes.owners)
        found = summary(run["orchestrator"])
        brokers = [run[f"broker-{owner}"].end() for owner in wishes.owners]
    assert brokers == [0, 0]
    local = here(world, wishes)
    assert found["weights"] == local.weights.to_text()
    assert found["metrics"] == local.metrics
    others = [
        replace(wishes, seed=8),
        replace(wishes, order="round-robin"),
        replace(wishes, buffer_bytes=1 << 20),
    ]
    weights = {here(world, each).weights for each in others}  # control: it can tell
    assert len(weights) == 3
    assert local.weights not in weights


def test_train_locally_by_command(tmp_path: Path) -> None:
    wishes = Wishes(plan="local")
    world = fresh_world(tmp_path, wishes)
    words: list[str | Path] = ["train", world.job, "--json"]
    for owner in wishes.owners:
        home = world.home(owner)
        words += ["--key", home.key, "--passphrase-file", home.passphrase]
        words += ["--vault", home.vault, "--sealed", home.sealed]
    with job_run(world) as run:
        found = summary(run.start("train", *words))
    local = here(world, wishes)
    assert found["weights"] == local.weights.to_text()
    made = (world.run / "model.safetensors").read_bytes()
    assert b"".join(chain_tensors(parse_tensors(made)).pieces()) == local.model
    assert read_facts(world.run / "model.safetensors").measures == local.metrics
    result = json.loads((world.run / "result.json").read_text())
    assert result["metrics"] == local.metrics
    assert result["level"] == "development"
    assert "seccomp" in result["sandbox"]


@pytest.mark.long
def test_two_buffers_equal_one_and_local(tmp_path: Path) -> None:
    """The next cargo loads while one group trains, and the bits do not tell."""
    wishes = Wishes(
        owners=ALL,
        buffers=2,
        step_s=0.02,
        buffer_bytes=150 * ROW_BYTES,
        rule={"buffers": "2"},
    )
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        run.everybody(*ALL)
        found = summary(run["orchestrator"])
        assert all(run[f"holder-{owner}"].end() == 0 for owner in ALL)
        events = run["orchestrator"].events
    local = here(world, wishes)
    assert found["weights"] == local.weights.to_text()
    assert found["metrics"] == local.metrics
    ended = [e.fields for e in events if e.kind == "visit.ended"]
    assert {each["outcome"] for each in ended} == {"verified"}
    assert [each["position"] for each in ended] == list(range(len(ended)))
    # While a group trained, another visit entered its load: more than once in all.
    training, beside = "", 0
    for event in events:
        if event.kind == "visit.phase":
            if event.fields["phase"] == "train":
                training = event.text("visit")
            beside += event.fields["phase"] == "load" and training != ""
        if event.kind == "visit.ended" and event.text("visit") == training:
            training = ""
    assert beside >= len(ended) // 2
    agreement = verify(load_signed(world.agreement))
    opened = open_output(world.run, identities()["lab"], agreement)
    assert (opened.manifest.buffers, opened.manifest.mixed) == (2, False)


def test_mixed_cargo_in_two_buffers_equals_local(tmp_path: Path) -> None:
    """Batches are drawn across all owners' rows: here as there, and not as one by one."""
    wishes = Wishes(
        owners=ALL,
        buffers=2,
        mixed="true",
        buffer_bytes=150 * ROW_BYTES,
        rule={"buffers": "2", "mixed": "true", "baseline_alone": "true"},
    )
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        run.everybody(*ALL)
        found = summary(run["orchestrator"])
        events = run["orchestrator"].events
    local = here(world, wishes)
    assert found["weights"] == local.weights.to_text()
    assert found["metrics"] == local.metrics
    groups: dict[object, set[str]] = {}
    for event in events:
        if event.kind == "visit.ended" and event.fields["purpose"] == "train":
            holders = groups.setdefault(event.fields["position"], set())
            holders.add(event.text("holder"))
    assert set(ALL) in groups.values()
    apart = here(world, replace(wishes, mixed="false"))
    assert apart.weights != local.weights  # control: it can tell
    agreement = verify(load_signed(world.agreement))
    opened = open_output(world.run, identities()["lab"], agreement)
    assert (opened.manifest.buffers, opened.manifest.mixed) == (2, True)
