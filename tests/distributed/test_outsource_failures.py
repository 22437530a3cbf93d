"""Plan ``outsource`` over real processes: a server goes, or lies; nothing trained is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sealift.demo.folder import World
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.plain import PlainProducts
from sealift.release.agreement.signed import load_verified
from sealift.train.job.checkpointfile import numbers_in
from sealift.train.job.shareservers import WrongRecord
from sealift.train.loop.products import Outsourcing
from tests.sim.jobrun import JobRun, job_run
from tests.sim.jobworld import Wishes, train_here
from tests.sim.outsourceworld import PORTABLE, outsourced_world, start_servers

pytestmark = pytest.mark.distributed
FAULTY = "tests.sim.faultyserver"
WISHES = Wishes(
    owners=("north",),
    epochs=2,
    buffer_bytes=5 << 12,  # four cells and a rest
    checkpoint_every=1,
    rejoin_s=20.0,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return outsourced_world(tmp_path / "world", WISHES)


def state_of(world: World) -> Path:
    return world.path / "state" / "digits"


def start(run: JobRun) -> None:
    run.orchestrator()
    run.accelerator_of(*PORTABLE)
    run.holder("north")


def ended(run: JobRun) -> tuple[int, str]:
    """Exit code and line of the run: who works, and who leads, say the same at once."""
    roles = [run[name] for name in ("orchestrator", "accelerator")]
    codes, lines = {role.end() for role in roles}, {role.error() for role in roles}
    assert len(codes) == len(lines) == 1, (codes, lines)
    told = {event.kind for event in run["orchestrator"].events}
    assert "accelerator.lost" not in told, "nobody waits for another one"
    assert not run.world.run.exists()
    return codes.pop(), lines.pop()


def test_a_server_that_is_not_there_is_named(world: World) -> None:
    with job_run(world) as run:
        start_servers(run, WISHES, {})
        run["Z"].signal(signal.SIGKILL)
        start(run)
        code, line = ended(run)
    assert code == 4
    assert "Z (cloud-c)" in line
    assert line.endswith("[server-gone]")
    assert numbers_in(state_of(world)) == []


@pytest.mark.long
def test_a_server_that_is_killed_is_named_and_the_run_goes_on_later(
    world: World,
) -> None:
    with job_run(world) as run:
        start_servers(run, WISHES, {"M": (FAULTY, "die", "6")})
        start(run)
        code, line = ended(run)
        assert run["M"].end() == -signal.SIGKILL
    assert code == 4
    assert "M (cloud-b)" in line
    assert line.endswith("[server-gone]")
    assert numbers_in(state_of(world))[-1] >= 2
    with job_run(world) as run:
        start_servers(run, WISHES, {})
        start(run)
        restored = run["accelerator"].wait_event("checkpoint.restored")
        assert restored.fields["number"] >= 2
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
        weights = run["orchestrator"].results[-1]["weights"]
    products = Outsourcing(lambda _: PlainProducts(), portable_kernels(), WISHES.seed)
    assert weights == train_here(world, products=products).weights.to_text()


def test_a_server_that_lies_is_named_and_what_it_signed_is_kept(world: World) -> None:
    with job_run(world) as run:
        start_servers(run, WISHES, {"M": (FAULTY, "lie", "6")})
        start(run)
        code, line = ended(run)
        told = run["accelerator"].wait_event("shares.wrong")
    assert code == 5
    assert "M (cloud-b) sent a wrong answer" in line
    assert line.endswith("[wrong-product]")
    (kept,) = state_of(world).glob("wrong-*-*.json")
    assert told.fields["kept"] == str(kept)
    record = WrongRecord.load(kept)
    (signed,) = record.signed
    agreement = load_verified(world.agreement).agreement
    signed.verify(agreement.party("cloud-b").sign)
    assert (record.wrong.shares, record.wrong.step) == (("M",), signed.body.step)
    assert numbers_in(state_of(world)), "what was trained before is there"
