"""An orchestrator that restarts itself learns nothing by it: no other cut, no more visits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sealift.channel.record.sealedfile import SealedFileReader
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.card import read_card
from sealift.demo.folder import World
from sealift.release.vault.vault import Vault
from sealift.train.sandboxed.training import enter_stream
from tests.sim.jobrun import JobRun, Running, job_run
from tests.sim.jobworld import (
    RECIPE,
    Wishes,
    change,
    fresh_world,
    identities,
    write_job,
)
from tests.sim.ownaddress import own_address

pytestmark = pytest.mark.distributed

CELL = 16  # rows, as the demo's tables are sealed
ROW_BYTES = 264
CUTTING = "tests.sim.cutting"
WISHES = Wishes(
    recipe=RECIPE.replace(", nn.Dropout(0.1)", ""),
    epochs=1,
    buffer_bytes=(2 * CELL - 1) * ROW_BYTES,  # a visit is one cell
    checkpoint_every=0,  # so that nothing but the processes remembers
    rejoin_s=30.0,
    on_missing="wait",
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return fresh_world(tmp_path / "world", WISHES)


@pytest.fixture
def run(world: World) -> Iterator[JobRun]:
    with job_run(world) as started:
        yield started


def write(world: World, wishes: Wishes) -> None:
    """The job at one and the same port: its orchestrator comes back to it."""
    write_job(world, wishes)
    text = world.job.read_text()
    world.job.write_text(
        text.replace("127.0.0.1:0", address_of(world)).replace(
            "batch_rows = 64", "batch_rows = 1024"
        )
    )


def address_of(world: World) -> str:
    kept = world.path / "address"
    if not kept.exists():
        kept.write_text(own_address())
    return kept.read_text()


def orchestrate(run: JobRun, *module: str) -> Running:
    """The orchestrator, once more if there was one: killed first."""
    if "orchestrator" in run.roles:
        run["orchestrator"].signal(signal.SIGKILL)
        run["orchestrator"].end()
    words = (*run.world.home("cloud").unlocking, "--events", "-")
    role = run.start(
        "orchestrator", "orchestrator", run.world.job, *words, module=module
    )
    role.wait_event("orchestrator.listening")
    run.address = address_of(run.world)
    return role


def the_rest(run: JobRun) -> None:
    run.accelerator()
    for owner in ("north", "east"):
        run.broker(owner)
        run.holder(owner, with_broker=False)


def first_loss(role: Running, rows: int) -> float:
    """Of the first visit to north, on the model as it was built."""
    ended = role.wait_event("visit.ended", outcome="verified", holder="north")
    assert ended.fields["rows"] == rows
    return float(str(ended.fields["metric.loss"]))


def true_loss(world: World, row: int) -> float:
    """Of one row of north, as nobody but its owner can know it."""
    home, name = world.home("north"), "north-train"
    with closing(Vault.open(home.vault, identities()["north"])) as vault:
        key = vault.fetch(name)
    card = read_card(home.sealed / f"{name}.resource.json")
    with SealedFileReader(home.sealed / f"{name}.sealed", key) as reader:
        size = card.resource.row_bytes
        raw = bytearray(reader.read(row * size, size))
    rows = torch.frombuffer(raw, dtype=torch.uint8).view(1, -1)
    recipe: dict[str, object] = {}
    exec(WISHES.recipe, recipe)
    enter_stream(WISHES.seed, "build")
    model = recipe["build"]()  # type: ignore[operator]
    with torch.no_grad():
        return float(model.training_step(batch_from_rows(rows, card.schema), 0))


def test_another_cut_is_refused_after_a_restart(run: JobRun) -> None:
    write(run.world, WISHES)
    role = orchestrate(run, "sealift")
    the_rest(run)
    first_loss(role, CELL)
    accelerator = run["accelerator"].process.pid
    role = orchestrate(run, CUTTING, str(CELL + 1))
    refusal = role.wait_event("visit.ended", holder="north")
    assert refusal.fields["outcome"] == "failed"
    assert refusal.fields["reason"] == "not-planned"
    assert not [e for e in role.events if e.fields.get("outcome") == "verified"]
    assert run["accelerator"].process.pid == accelerator


def test_without_these_rules_a_row_comes_out(run: JobRun) -> None:
    """The mutant, at both ends: what the difference of two cuts tells."""
    write(run.world, WISHES)
    loss = {CELL: 0.0, CELL + 1: 0.0}
    for cut in loss:
        role = orchestrate(run, CUTTING, str(cut))
        if cut == CELL:
            host = run.world.home("gpu-host")
            dial = ("--events", "-", "--orchestrator", run.address)
            mutant = {"module": (CUTTING, "0")}
            run.start(
                "accelerator", "accelerator", run.world.job, *host.unlocking, *dial,
                "--keep-freed-memory", **mutant,
            )  # fmt: skip
            for owner in ("north", "east"):
                run.broker(owner)
                home = run.world.home(owner)
                stores = ("--vault", home.vault, "--log", home.log)
                run.start(
                    f"holder-{owner}", "join", run.world.job, *home.unlocking, *dial,
                    *stores, *home.cargo, "--holder-only", **mutant,
                )  # fmt: skip
        loss[cut] = first_loss(role, cut)
    told = (CELL + 1) * loss[CELL + 1] - CELL * loss[CELL]
    assert abs(told - true_loss(run.world, CELL)) < 0.05  # of numbers of three places


@pytest.mark.long
def test_another_shape_is_refused_after_a_restart(run: JobRun) -> None:
    """Along the grid, too: the job goes on as it began, or not at all."""
    write(run.world, WISHES)
    role = orchestrate(run, "sealift")
    the_rest(run)
    first_loss(role, CELL)
    write(run.world, replace(WISHES, buffer_bytes=(3 * CELL) * ROW_BYTES))
    role = orchestrate(run, "sealift")
    assert role.end() == 5
    assert role.error().endswith("[other-shape]")
    assert not [e for e in role.events if e.kind == "visit.ended"]
    assert run["accelerator"].error().endswith("[other-shape]")


@pytest.mark.long
def test_visits_are_counted_across_restarts(run: JobRun) -> None:
    """The accelerator's count begins anew with its process; the holder's does not."""
    wishes = replace(
        WISHES, buffer_bytes=1 << 20, rule={"max_visits": "1"}, on_missing="skip"
    )
    change(run.world, wishes)
    write(run.world, wishes)
    role = orchestrate(run, "sealift")
    the_rest(run)
    role.wait_event("visit.ended", outcome="verified", holder="north")
    for name in ("accelerator", "holder-north"):
        run[name].signal(signal.SIGKILL)
        run[name].end()
    role = orchestrate(run, "sealift")
    run.accelerator()
    run.holder("north", with_broker=False)
    failed = run["holder-north"].wait_event("holder.failed")
    assert failed.fields["reason"] == "too-many-visits"
    ended = role.wait_event("visit.ended", holder="north", purpose="train")
    assert ended.fields["outcome"] == "failed"
