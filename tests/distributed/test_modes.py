"""Records sealed again for each visit, over real processes: the same bits as at rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.release.receipt import load_receipt, verify_receipt
from sealift.release.signed import load_signed, verify
from sealift.travel.ratchet import REHEARSAL
from tests.sim.jobrun import job_run
from tests.sim.jobworld import Wishes, fresh_world, train_here, write_job

pytestmark = pytest.mark.distributed

MODES = {"modes": '["at-rest", "visit", "ratchet"]'}


@pytest.mark.parametrize("mode", ["visit", "ratchet"])
def test_the_same_bits_and_a_receipt_that_says_how(tmp_path: Path, mode: str) -> None:
    wishes = Wishes(mode=mode, epochs=1, rule=MODES)
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        train = run.train("--watch")
        holders = [run.holder(owner) for owner in wishes.owners]
        assert train.end() == 0, train.errors
        assert [holder.end() for holder in holders] == [0, 0]
        found = train.results[-1]
        told = [line for line in train.errors if "visit" in line or "epoch" in line]
        events = [event for holder in holders for event in holder.events]
    local = train_here(world)
    assert found["weights"] == local.weights.to_text()
    agreement = verify(load_signed(world.agreement))
    receipts = [
        verify_receipt(load_receipt(path), agreement)
        for owner in wishes.owners
        for path in world.home(owner).receipts.iterdir()
    ]
    assert {receipt.mode for receipt in receipts} == {mode}
    assert len(receipts) == 4
    rehearsal = mode == "ratchet"
    assert all((REHEARSAL in line) is rehearsal for line in told)
    assert all((event.text("mode") == REHEARSAL) is rehearsal for event in events)
    assert (found.get("mode") == REHEARSAL) is rehearsal


def test_a_holder_does_not_follow_an_orchestrator_into_another_mode(
    tmp_path: Path,
) -> None:
    """The agreement would allow it, but this owner's own copy of the job does not."""
    wishes = Wishes(mode="visit", epochs=1, owners=("north",), rule=MODES)
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        run.orchestrator()
        write_job(world, Wishes(epochs=1))
        holder = run.holder("north")
        holder.wait_event("holder.ready")
        write_job(world, wishes)
        run.accelerator()
        failed = holder.wait_event("holder.failed")
    assert failed.text("reason") == "mode-not-agreed"
