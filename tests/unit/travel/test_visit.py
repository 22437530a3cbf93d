"""Visits at the accelerator: states, partial cargo, failures, ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.data.schedule.visits import Stop
from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PolicyError,
    StaleError,
)
from sealift.ids import Handle, VisitId
from sealift.release.receipt import verify_receipt
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import HostSetup
from sealift.travel.accelerator.visit import HostedVisit
from sealift.travel.visit.lease import Purpose
from sealift.travel.visit.messages import Failed
from sealift.travel.visit.state import Visit, VisitState
from tests.sim.visit_parts import FakeClock
from tests.sim.visit_world import VisitWorld
from tests.unit.travel.leases import LEASE
from tests.worlds.visits import ROW_BYTES


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


@pytest.mark.parametrize(("first", "rows"), [(0, 20), (0, 1), (7, 5), (2, 3), (19, 1)])
def test_any_slice_arrives_whole(world: VisitWorld, first: int, rows: int) -> None:
    outcome = world.visit("ada", offer=world.offer("ada", first, rows))
    start = first * ROW_BYTES
    cargo = world.plain["ada-train"][start : start + rows * ROW_BYTES]
    assert world.trained == [(outcome.offer.visit, cargo)]
    assert outcome.receipt is not None
    receipt = verify_receipt(outcome.receipt)
    assert (receipt.first_row, receipt.rows) == (first, rows)
    assert receipt.cargo_bytes == rows * ROW_BYTES
    assert receipt.scrub.verified
    assert world.pools[-1].scrubbed


def test_a_file_that_was_sealed_with_other_columns_is_refused(
    world: VisitWorld,
) -> None:
    assert world.visit("ada").receipt is not None  # the control
    trained = list(world.trained)
    world.columns = lambda resource: b"other columns"
    outcome = world.visit("ada")
    assert outcome.reason == "content-mismatch"
    assert (world.trained, outcome.receipt) == (trained, None)
    assert all(pool.scrubbed for pool in world.pools)


@pytest.mark.parametrize(
    "change",
    [
        {"first_row": -1, "rows": 3},
        {"first_row": 19, "rows": 2},
        {"first_row": 5, "rows": 0},
        {"first_row": 10, "rows": -5},
        {"purpose": "heldout"},
        {"holder": "bern"},
        {"resource": "nowhere"},
    ],
)
def test_offers_that_make_no_sense(
    world: VisitWorld, change: dict[str, object]
) -> None:
    offer = replace(world.offer("ada"), **change)  # type: ignore[arg-type]
    with pytest.raises(PolicyError):
        world.host(offer, lambda *_: pytest.fail("nobody is met"))
    assert world.pools == []


def test_a_recipe_that_fails_ends_the_job_and_leaves_nothing(world: VisitWorld) -> None:
    def fail() -> None:
        raise JobError("the recipe failed", code="recipe-error")

    world.fails_in_work = fail
    outcome = world.visit("ada")
    assert outcome.reason == "recipe-error"
    assert outcome.ended is not None
    assert outcome.ended.fatal
    assert outcome.receipt is None
    assert world.rules.counted.trained == {}  # counts for nothing towards the model,
    assert world.rules.counted.worked == {
        "train": {"ada": 1}
    }  # though its weights may show it
    assert world.pools[-1].scrubbed


def test_rows_that_were_refused_count_for_no_model(world: VisitWorld) -> None:
    """Else a holder of bad rows could make up the agreed number of holders."""

    def refuse() -> None:
        raise MalformedError("rows do not fit", code="bad-row")

    world.fails_in_work = refuse
    assert world.visit("ada").reason == "bad-row"
    assert world.rules.counted.trained == {}


@pytest.mark.parametrize("purpose", ["train", "heldout"])
def test_neither_purpose_is_visited_without_end(
    world: VisitWorld, purpose: Purpose
) -> None:
    rules = VisitRules(max_visits=2)
    offers = [replace(world.offer("ada"), purpose=purpose) for _ in range(3)]
    for offer in offers[:2]:
        rules.admit(offer)
        rules.begin(offer)
    with pytest.raises(PolicyError) as refusal:
        rules.admit(offers[2])
    assert refusal.value.code == "too-many-visits"


def test_a_signal_in_training_scrubs_and_passes(world: VisitWorld) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.fails_in_work = interrupt
    outcome = world.visit("ada")
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert outcome.receipt is None
    assert world.pools[-1].scrubbed


def test_a_visit_can_be_abandoned_at_any_time_and_again(world: VisitWorld) -> None:
    hosted = world.host(world.offer("ada"), lambda *_: pytest.fail("nobody is met"))
    hosted.abandon("stopped")
    hosted.abandon("stopped")
    assert hosted.state is VisitState.FAILED
    assert world.pools[-1].scrubbed


def leased(lease_s: float = 30.0) -> tuple[Visit, FakeClock]:
    clock = FakeClock()
    visit = Visit(LEASE.visit, LEASE.handle, LEASE.max_bytes, clock=clock)
    visit.accept(replace(LEASE, lease_s=lease_s), 96)
    return visit, clock


def test_seconds_count_from_acceptance() -> None:
    visit, clock = leased(lease_s=10)
    clock.advance(9)
    assert visit.remaining_s() == pytest.approx(1)
    clock.advance(1)
    with pytest.raises(StaleError) as refusal:
        visit.remaining_s()
    assert refusal.value.code == "lease-expired"


def test_an_incomplete_cargo_is_not_sealed() -> None:
    visit, _ = leased()
    with pytest.raises(IntegrityError) as refusal:
        visit.seal(visit.expected_frames, LEASE.cargo_bytes)
    assert refusal.value.code == "cargo-truncated"


def test_a_visit_without_lease_has_none() -> None:
    visit = Visit(VisitId.generate(), Handle.generate(), 400, clock=FakeClock())
    with pytest.raises(PolicyError):
        _ = visit.lease
    with pytest.raises(StaleError):
        visit.begin_training()
    with pytest.raises(PolicyError):
        visit.accept(LEASE, 96)
    assert visit.state is VisitState.OFFERED


def test_the_first_reason_of_a_revocation_stays() -> None:
    visit, _ = leased()
    visit.revoke("first")
    visit.revoke("second")
    assert visit.revoked_for == "first"
    assert visit.end() is VisitState.FAILED
    with pytest.raises(StaleError):
        visit.revoke("third")


def test_a_visit_is_debited_after_its_rows_are_there_and_before_they_are_worked_on(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was loaded in vain costs nothing, and what is refused is not worked on."""
    trained_before = list[int]()
    refusal: list[PolicyError] = []
    real = world.setup

    def debit(_stop: Stop) -> None:
        trained_before.append(len(world.trained))
        if refusal:
            raise refusal[0]

    def with_debit(*of: Any) -> HostSetup:
        made = real(*of)
        made.debit = debit
        return made

    monkeypatch.setattr(world, "setup", with_debit)
    assert world.visit("ada").receipt is not None
    assert (trained_before, len(world.trained)) == ([0], 1)
    world.columns = lambda resource: b"other columns"  # it does not load
    assert world.visit("ada").reason == "content-mismatch"
    assert trained_before == [0]
    world.columns = None
    refusal.append(PolicyError("spent", code="privacy-budget-spent"))
    outcome = world.visit("ada")
    assert outcome.reason == "privacy-budget-spent"
    assert (len(world.trained), outcome.receipt) == (1, None)
    assert all(pool.scrubbed for pool in world.pools)


def test_rows_are_not_worked_on_whose_keys_ended_while_the_broker_was_asked(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, host, setup = list[HostedVisit](), world.host, world.setup

    def noted(*of: Any) -> HostedVisit:
        hosts.append(host(*of))
        return hosts[-1]

    def with_debit(*of: Any) -> HostSetup:
        made = setup(*of)
        made.debit = lambda stop: hosts[-1].depart(Failed("keys-ended", "revoked"))
        return made

    monkeypatch.setattr(world, "host", noted)
    monkeypatch.setattr(world, "setup", with_debit)
    outcome = world.visit("ada")
    assert (outcome.reason, outcome.receipt, world.trained) == ("keys-ended", None, [])
    assert all(pool.scrubbed for pool in world.pools)
