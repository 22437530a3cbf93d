"""An orchestrator that is not up yet, and somebody else on its port while it is away."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.sim.jobrun import WAIT_S, JobRun, job_run
from tests.sim.jobworld import Wishes, fresh_world, train_here
from tests.sim.strangers import WAYS, Stranger

pytestmark = [pytest.mark.distributed, pytest.mark.long]

WISHES = Wishes(
    epochs=2,
    buffer_bytes=1 << 14,
    checkpoint_every=2,
    rejoin_s=90.0,
    on_missing="wait",
)
ROLES = (
    "accelerator",
    *(f"{r}-{o}" for r in ("broker", "holder") for o in WISHES.owners),
)


def start_all_but_the_orchestrator(run: JobRun) -> None:
    run.accelerator()
    for owner in WISHES.owners:
        run.broker(owner)
        run.holder(owner, with_broker=False)


def test_roles_wait_for_an_orchestrator_that_is_not_up_yet(tmp_path: Path) -> None:
    world = fresh_world(tmp_path / "world", WISHES)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with job_run(world) as run:
        run.address = address
        start_all_but_the_orchestrator(run)
        for role in ROLES:
            awaited = run[role].wait_event("relay.awaited", role="orchestrator")
            assert address in awaited.text("why")
        orchestrator = run.orchestrator("--orchestrator", address)
        assert orchestrator.end(120) == 0, orchestrator.errors
        assert orchestrator.results[0]["skipped"] == 0
        for role in ROLES:
            assert run[role].end() == 0, run[role].errors


def test_who_takes_the_port_in_an_outage_ends_nobody(tmp_path: Path) -> None:
    world = fresh_world(tmp_path / "world", WISHES)
    expected = train_here(world).weights.to_text()
    with job_run(world) as run:
        run.everybody(*WISHES.owners)
        run["orchestrator"].wait_event("visit.ended", outcome="verified")
        run["orchestrator"].signal(signal.SIGKILL)
        run["orchestrator"].end()
        with Stranger(int(run.address.rpartition(":")[2])) as stranger:
            # Each role meets each way of not being let in, whoever dials when.
            stranger.wait_for(2 * len(WAYS) * len(ROLES), WAIT_S)
        assert set(stranger.met) == set(WAYS)
        orchestrator = run.orchestrator("--orchestrator", run.address)
        assert orchestrator.end(120) == 0, orchestrator.errors
        assert orchestrator.results[0]["weights"] == expected
        for role in ROLES:
            assert run[role].end() == 0, run[role].errors
