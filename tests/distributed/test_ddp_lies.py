"""Real ranks, each on its owner's place: one lies, or is stopped. Others name it, and go on without harm."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sealift.demo.folder import OWNERS, World
from tests.distributed.test_ddp import job
from tests.sim.jobrun import JobRun, job_run

pytestmark = pytest.mark.distributed
NO_RETURN = ("[run]\n", "[run]\nrejoin_s = 0.0\n")
HONEST = ("sealift",)
OTHERS = [f"rank-{owner}" for owner in OWNERS[:-1]]
OF_RANK_0 = ("states", "step64")
LIES = ("uses", "steps", "heads", "code", *OF_RANK_0)


@contextmanager
def ranks(
    world: World, lie: tuple[str, ...] = HONEST, liar: str = OWNERS[-1]
) -> Iterator[JobRun]:
    """Everybody; the liar's rank is another module's."""
    with job_run(world) as run:
        run.orchestrator()
        for owner in OWNERS:
            home = world.home(owner)
            dial = ("--orchestrator", run.address, "--events", "-")
            places = ("--sealed", home.sealed, "--receipts", home.receipts)
            words = (*home.unlocking, *dial, *places, "--state", home.path / "state")
            module = lie if owner == liar else HONEST
            if module != HONEST:  # else it starts itself again, as an honest one
                words += ("--keep-freed-memory",)
            run.start(f"rank-{owner}", "accelerator", world.job, *words, module=module)
            run.broker(owner)
        yield run


def test_a_rank_that_lies_is_named_and_an_honest_retry_works() -> None:
    """Each lie in a start of its own of one job, which the last start ends honestly."""
    world = job("-lies", NO_RETURN)
    before = receipts(world)  # of other tests, in the same folders
    for lie in LIES:
        number = 0 if lie in OF_RANK_0 else len(OWNERS) - 1
        require_named(world, lie, number)
        assert receipts(world) == before
    with ranks(world) as run:
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
    assert len(receipts(world)) > len(before)


def require_named(world: World, lie: str, number: int) -> None:
    """All others end, name the liar, and say nothing else of its own."""
    liar = OWNERS[number]
    others = [f"rank-{owner}" for owner in OWNERS if owner != liar]
    with ranks(world, ("tests.sim.untruerank", lie), liar) as run:
        for name in ("orchestrator", *others, f"rank-{liar}"):
            assert run[name].end(), (lie, run[name].errors)
        for name in others:
            said = run[name].error()
            assert f"rank {number} ({liar}) reports something about itself" in said, lie
            assert said.endswith("[untrue-report]")
        everything = "\n".join(
            e for name in ("orchestrator", *others) for e in run[name].errors
        )
        assert f"({liar})" in run["orchestrator"].error()
        assert f"/home/{liar}" not in everything
        assert "\x1b" not in everything


def receipts(world: World) -> list[Path]:
    """Of the run, wherever one is kept."""
    return [*world.path.rglob("run.receipt.json"), *world.path.rglob("receipt.json")]


def test_a_rank_that_is_stopped_is_named_and_the_job_goes_on() -> None:
    """Its work may take a week; it goes on once the rank does."""
    patient = ("[run]\n", "[run]\nwork_s = 604800.0\nrejoin_s = 600.0\n")
    world = job("-stopped", patient, ("epochs = 2", "epochs = 6"))
    with ranks(world) as run:
        run["orchestrator"].wait_event("round.ended", purpose="train", epoch=0)
        run["rank-south"].signal(signal.SIGSTOP)
        lost = run["orchestrator"].wait_event("accelerator.lost")
        assert "rank 2 (south)" in str(lost.fields["line"])
        for name in OTHERS:
            told = run[name].wait_event("relay.lost").fields
            assert "rank 2 (south)" in str(told["line"])
            assert "that party starts it again" in str(told["line"])
        run["rank-south"].signal(signal.SIGCONT)
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
        assert receipts(world)
