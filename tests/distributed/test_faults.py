"""Roles that die, stall, stop or never come: the run ends set by the job, in one line."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.demo.folder import World
from tests.sim.jobrun import WAIT_S, JobRun, Running, job_run
from tests.sim.jobworld import Wishes, fresh_world, train_here

pytestmark = pytest.mark.distributed

PEER, REFUSED = 4, 5
STOPPED = 128 + signal.SIGTERM
SLOW_S = 0.05  # of a step: a visit trains for about 0.4 s, long enough to be hit


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return fresh_world(tmp_path / "world", request.param)


@pytest.fixture
def run(world: World) -> Iterator[JobRun]:
    with job_run(world) as started:
        yield started


def asked(wishes: Wishes) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", [wishes], indirect=True, ids=[""])


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children_of(role: Running) -> list[int]:
    pid = role.process.pid
    return [
        int(each)
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def stop(role: Running) -> int:
    role.signal(signal.SIGTERM)
    return role.end()


@asked(Wishes(on_missing="wait", step_s=SLOW_S))
def test_a_killed_holder_comes_back(world: World, run: JobRun) -> None:
    """Killed in the midst of its visit, started again: the weights do not tell."""
    run.everybody("north", "east")
    orchestrator = run["orchestrator"]
    orchestrator.wait_event("visit.phase", holder="north", phase="load", epoch=1)
    run["holder-north"].process.kill()
    run["holder-north"].end()
    run.holder("north", name="again", with_broker=False)
    assert orchestrator.end() == 0, orchestrator.errors
    assert orchestrator.results[0]["weights"] == train_here(world).weights.to_text()
    assert orchestrator.results[0]["skipped"] == 0
    assert run["again"].end() == 0


@pytest.mark.long
@asked(Wishes(on_missing="wait"))
def test_a_holders_full_disk_costs_time_alone(world: World, run: JobRun) -> None:
    """It refuses, is asked again after a pause, and then its disk has room."""
    orchestrator = run.orchestrator()
    run.broker("east")
    east = run.holder("east", with_broker=False)
    east.wait_event("holder.ready")
    pid = east.process.pid
    _least, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))  # as a full disk does
    run.accelerator()
    run.holder("north")
    first = orchestrator.wait_event("visit.again", holder="east")
    after = orchestrator.events.index(first) + 1
    second = orchestrator.wait_event("visit.again", after=after, holder="east")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
    for again in (first, second):
        assert again.text("reason") == "disk-full"
    assert second.fields["pause_s"] == 2 * first.fields["pause_s"]  # type: ignore[operator]
    assert orchestrator.end() == 0, orchestrator.errors
    assert orchestrator.results[0]["weights"] == train_here(world).weights.to_text()
    assert orchestrator.results[0]["skipped"] == 0


@pytest.mark.long
@asked(Wishes(epochs=4, step_s=SLOW_S, lease_s=1.5, meet_s=1.5))
def test_dead_and_stalled_holders_are_skipped(run: JobRun) -> None:
    run.everybody("north", "east")
    orchestrator = run["orchestrator"]
    orchestrator.wait_event("visit.ended", holder="north", outcome="verified")
    run["holder-north"].process.kill()
    orchestrator.wait_event("visit.ended", holder="east", outcome="verified")
    run["holder-east"].signal(signal.SIGSTOP)
    here = len(orchestrator.events)
    failed = orchestrator.wait_event("visit.ended", after=here, outcome="failed")
    orchestrator.wait_event("visit.skipped", after=here, holder="north")
    orchestrator.wait_event("visit.skipped", after=here, holder="east")
    run["holder-east"].signal(signal.SIGCONT)
    assert failed.fields["holder"] in ("north", "east")
    assert orchestrator.end() == 0, orchestrator.errors
    reasons = {
        event.fields["reason"]
        for event in orchestrator.events
        if event.kind == "visit.ended" and event.fields["outcome"] == "failed"
    }
    assert reasons <= {
        "holder-missing",
        "peer-timeout",
        "lease-expired",
        "session-truncated",
        "foreign-lease",  # woken up, it brings the lease of a visit that is over
    }
    visits = [e.fields for e in orchestrator.events if e.kind == "visit.ended"]
    verified = [each for each in visits if each["outcome"] == "verified"]
    assert all(each["scrubbed_bytes"] > 0 for each in verified)
    assert run["holder-east"].end() == 0, run["holder-east"].errors


@pytest.mark.long
@asked(Wishes(brokers_s=1.0, epochs=50, step_s=SLOW_S))
def test_without_a_broker_the_model_is_withheld(world: World, run: JobRun) -> None:
    run.orchestrator()
    run.accelerator()
    run.holder("east")
    run.holder("north", with_broker=False)
    orchestrator, accelerator = run["orchestrator"], run["accelerator"]
    assert orchestrator.end() == REFUSED
    assert orchestrator.error().endswith("[output-withheld]")
    assert "0 visits to north" in orchestrator.error()
    assert "key" in orchestrator.error()
    offered = [e for e in orchestrator.events if e.kind == "visit.offered"]
    assert len(offered) < 10  # of 200: nobody travels for nothing
    assert accelerator.end() == REFUSED
    assert accelerator.error().endswith("[output-withheld]")
    assert [
        e.fields["owner"] for e in accelerator.events if e.kind == "release.missing"
    ] == ["north"]
    assert not world.run.exists()
    assert not list(world.path.glob(".run.*"))


@pytest.mark.long
@asked(Wishes(epochs=50, step_s=SLOW_S))
def test_the_accelerator_dies(run: JobRun) -> None:
    run.everybody("north", "east")
    orchestrator = run["orchestrator"]
    orchestrator.wait_event("visit.phase", phase="train")
    second = run.accelerator("second", "--state", "elsewhere")
    assert second.end() == PEER
    assert second.error().endswith("[name-taken]")
    run["accelerator"].process.kill()
    assert orchestrator.end() == PEER
    assert orchestrator.error().endswith("[session-truncated]")
    for name in ("holder-north", "holder-east"):
        assert run[name].end() == 7
        assert run[name].error().endswith("[session-truncated]")
    for name in ("broker-north", "broker-east"):
        assert run[name].end() == 0


@pytest.mark.long
@asked(Wishes(epochs=50, step_s=SLOW_S))
def test_the_orchestrator_dies(run: JobRun) -> None:
    run.orchestrator()
    run.accelerator()
    north = run.holder("north")  # with its broker beside it
    run.broker("east")
    run.holder("east", with_broker=False)
    run["orchestrator"].wait_event("visit.phase", phase="train")
    beside = children_of(north)
    run["orchestrator"].process.kill()
    for name in ("accelerator", "holder-north", "holder-east", "broker-east"):
        assert run[name].end() == PEER, run[name].errors
    assert run["accelerator"].error()
    assert len(beside) == 1
    assert_gone(beside)


@asked(Wishes(epochs=50, step_s=SLOW_S, on_missing="wait"))
def test_every_role_stops_when_asked(run: JobRun) -> None:
    run.orchestrator()
    accelerator = run.accelerator()
    north = run.holder("north")
    run.broker("east")
    east = run.holder("east", with_broker=False)
    orchestrator = run["orchestrator"]
    orchestrator.wait_event("visit.phase", phase="train")
    beside = children_of(north)
    assert stop(north) == STOPPED
    assert_gone(beside)
    orchestrator.wait_event(
        "visit.phase", after=len(orchestrator.events), holder="east", phase="train"
    )
    run["broker-east"].signal(signal.SIGTERM)  # not before: its holder asks it
    assert stop(accelerator) == STOPPED
    assert run["broker-east"].end() == STOPPED
    scrubbed = accelerator.events[-1]
    assert scrubbed.kind == "visit.abandoned"
    assert scrubbed.fields["verified"] is True
    assert scrubbed.fields["scrubbed_bytes"] > 0
    assert orchestrator.end() == PEER
    assert east.end() == 7


@asked(Wishes())
def test_train_ends_with_its_children(run: JobRun) -> None:
    """Asked to stop, or killed without a chance to do anything."""
    train = run.train()
    children = children_of(train)
    assert children
    assert stop(train) == STOPPED
    assert_gone(children)
    train = run.train()
    children = children_of(train)
    train.process.kill()
    assert_gone(children)


@asked(Wishes())
def test_a_port_in_use(run: JobRun) -> None:
    run.orchestrator()
    second = run.start(
        "second",
        *_orchestrator_words(run),
        *("--orchestrator", run.address, "--output", "elsewhere"),
    )
    assert second.end() == 3
    assert second.error().endswith("[port-in-use]")
    assert stop(run["orchestrator"]) == STOPPED
    assert run["orchestrator"].errors == ["sealift: stopped by SIGTERM"]


def _orchestrator_words(run: JobRun) -> tuple[str, ...]:
    home = run.world.home("cloud")
    return (
        "orchestrator",
        str(run.world.job),
        "--key",
        str(home.key),
        "--passphrase-file",
        str(home.passphrase),
    )


@asked(Wishes(epochs=2, on_missing="wait"))
def test_another_file_than_agreed_is_asked_for_once(world: World, run: JobRun) -> None:
    sealed = world.home("north").sealed
    (sealed / "north-train.sealed").write_bytes(
        (world.home("east").sealed / "east-train.sealed").read_bytes()
    )
    run.everybody("north", "east")
    assert run["orchestrator"].end() == REFUSED
    kinds = [event.kind for event in run["orchestrator"].events]
    assert "visit.again" not in kinds
    line = run["orchestrator"].error()
    assert "north-train" in line
    assert "the holder's file" in line
