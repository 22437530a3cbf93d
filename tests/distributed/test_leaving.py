"""Leaving means leaving: told to one's own side, in the midst of a run of real processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.demo.folder import OWNERS, World
from tests.distributed.test_ddp import world as ddp_world
from tests.sim.jobrun import JobRun, Running, job_run
from tests.sim.jobworld import Wishes, fresh_world

pytestmark = pytest.mark.distributed

REFUSED, PEER_GONE = 5, 4
SLOW_S = 0.05
LONG = {"epochs": 30, "step_s": SLOW_S, "rejoin_s": 20.0}


def receipts_of(folder: Path) -> int:
    """How many an owner has."""
    return sum(len(each.read_bytes().splitlines()) for each in folder.iterdir())


class Side:
    """North's own place: its own copy of the agreement, and what it says beside it."""

    def __init__(self, world: World) -> None:
        self.home = world.home("north")
        self.folder = world.path / "north-side"
        self.folder.mkdir()
        for name in (world.job.name, world.agreement.name):
            shutil.copy(world.path / name, self.folder / name)
        shutil.copytree(world.path / "recipe", self.folder / "recipe")
        self.job = self.folder / world.job.name
        self.agreement = self.folder / world.agreement.name

    def join(self, run: JobRun) -> Running:
        return run.start(
            "north",
            "join",
            self.job,
            *self.home.unlocking,
            *("--events", "-"),
            *self.home.stores,
            *self.home.cargo,
            *("--orchestrator", run.address),
        )

    def leave(self) -> None:
        words = ["agreement", "leave", self.agreement, *self.home.unlocking, "--yes"]
        assert main([*map(str, words)]) == 0


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return fresh_world(tmp_path / "world", request.param)


@pytest.fixture
def run(world: World) -> Iterator[JobRun]:
    with job_run(world) as started:
        yield started


def asked(wishes: Wishes) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", [wishes], indirect=True, ids=[""])


def begin(world: World, run: JobRun) -> Side:
    """Everybody is there; north's rows are trained on for the second time."""
    side = Side(world)
    run.orchestrator()
    run.accelerator()
    side.join(run)
    run.holder("east")
    run["orchestrator"].wait_event(
        "visit.phase", holder="north", phase="train", epoch=1
    )
    return side


@asked(Wishes(**LONG))  # type: ignore[arg-type]
def test_the_run_goes_on_without_who_left(world: World, run: JobRun) -> None:
    side = begin(world, run)
    orchestrator, north = run["orchestrator"], run["north"]
    here = len(orchestrator.events)
    side.leave()
    assert north.end() == REFUSED, north.errors
    assert north.error().endswith("[owner-left]")
    departed = orchestrator.wait_event("owner.departed", after=here, owner="north")
    assert "north" in str(departed.fields["line"])
    told = run["accelerator"].wait_event("owner.departed", owner="north")
    assert told.fields["owner"] == "north"
    after = orchestrator.events.index(departed)
    cut = [
        event.fields
        for event in orchestrator.events[here:]
        if event.kind == "visit.ended" and event.fields["holder"] == "north"
    ]
    for each in cut[-1:]:  # the one that was open
        assert each["outcome"] == "verified" or each["scrubbed_bytes"] > 0
    orchestrator.wait_event("visit.skipped", after=after, holder="north")
    orchestrator.wait_event(
        "visit.ended", after=after, holder="east", outcome="verified"
    )
    assert not [
        event
        for event in orchestrator.events[after:]
        if event.kind in ("visit.offered", "visit.phase")
        and event.fields["holder"] == "north"
    ]
    receipts = receipts_of(side.home.receipts)
    orchestrator.wait_event(
        "visit.ended",
        after=len(orchestrator.events),
        holder="east",
        outcome="verified",
    )
    assert receipts_of(side.home.receipts) == receipts


@pytest.mark.long
@asked(Wishes(on_missing="wait", epochs=30, step_s=SLOW_S))
def test_the_run_ends_where_everybody_is_waited_for(world: World, run: JobRun) -> None:
    side = begin(world, run)
    side.leave()
    for name in ("orchestrator", "accelerator"):
        assert run[name].end() != 0
    assert run["north"].end() == REFUSED
    line = run["orchestrator"].error()
    assert "north" in line
    assert line.endswith("[owner-left]")


@pytest.mark.long
def test_who_leaves_as_a_run_begins_is_named_to_all(tmp_path: Path) -> None:
    """The others have come and wait for its rank, which never starts."""
    world = World(tmp_path / "world")
    # Without what other tests' runs left in the folder that they share.
    left = shutil.ignore_patterns("run*", "state", "receipt*", "*.jsonl", "job-*.toml")
    shutil.copytree(ddp_world().path, world.path, ignore=left)
    text = world.job.read_text()
    assert "\n[run]\n" in text
    world.job.write_text(text.replace("\n[run]\n", "\n[run]\ngather_s = 600.0\n"))
    side = Side(world)
    with job_run(world) as run:
        orchestrator = run.orchestrator()
        others = [run.holder(each) for each in OWNERS if each != "north"]
        for number in range(1, len(OWNERS)):
            name = f"accelerator-{number}"
            orchestrator.wait_event("role.arrived", name=name)
        side.leave()
        north = side.join(run)
        assert north.end() == REFUSED, north.errors
        assert north.error().endswith("[owner-left]")
        assert orchestrator.end() == REFUSED, orchestrator.errors
        line = orchestrator.error()
        assert "north has left the agreement" in line
        assert line.endswith("[owner-left]")
        for each in others:
            assert each.end() == PEER_GONE, each.errors  # it is another's word
            assert "rank 0 (north) has left the agreement" in "\n".join(each.errors)
        again = run.holder(next(each for each in OWNERS if each != "north"))
        assert again.end() == REFUSED, again.errors  # it has north's signature
        assert again.error().endswith("[owner-left]")


@asked(Wishes(**LONG))  # type: ignore[arg-type]
def test_nobody_leaves_by_anothers_word(world: World, run: JobRun) -> None:
    """Control: what east says, told to north's side, ends none of north's visits."""
    side = begin(world, run)
    orchestrator = run["orchestrator"]
    home = world.home("east")
    words = ["agreement", "leave", side.agreement, *home.unlocking, "--yes"]
    assert main([*map(str, words)]) == 0
    orchestrator.wait_event(
        "visit.ended",
        after=len(orchestrator.events),
        holder="north",
        outcome="verified",
        epoch=2,
    )
