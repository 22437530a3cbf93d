"""N5: whoever says which rows are visited tells no row by the difference of two visits.

Ranges that are no whole cells, visits that the plan lacks and another shape are refused,
and nothing leaves a holder that it could not count. Against a mutant each gets through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.crypto.sign import sign_document
from sealift.data.schedule.visits import BufferChoice
from sealift.errors import PolicyError, UnavailableError
from sealift.release.agreement import Resource
from sealift.release.receipt import SignedReceipt
from sealift.train.job.runningjob import JobShapes
from sealift.travel.holder.jobs import HolderJob
from sealift.travel.holder.visit import (
    SERVED_NAME,
    HeldResource,
    Provisioning,
    check_lease,
)
from sealift.travel.visit.lease import LeaseTerms
from tests.sim.hands import Hand
from tests.sim.settings import job_settings
from tests.sim.visit_world import VisitWorld
from tests.unit.travel.leases import LEASE
from tests.unit.travel.test_holder_job import holder_job

CELL, ROWS = 4, 18  # cells of 4, 4, 4 and 6 rows
OFF_GRID = [(0, 5), (0, 3), (1, 4), (2, 4), (4, 5), (16, 2), (0, 16), (12, 4), (0, 19)]
WHOLE = [(0, 4), (4, 8), (12, 6), (0, 18), (8, 10)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path, rows=ROWS, cell_rows=CELL) as made:
        yield made


@pytest.mark.parametrize(("first", "rows"), OFF_GRID)
def test_the_accelerator_offers_no_buffer(
    world: VisitWorld, first: int, rows: int
) -> None:
    with pytest.raises(PolicyError) as refusal:
        world.visit("ada", offer=world.offer("ada", first, rows))
    assert refusal.value.code == "off-grid"
    assert world.pools == []


def test_it_serves_whole_cells(world: VisitWorld) -> None:
    for first, rows in WHOLE:
        assert world.visit("ada", offer=world.offer("ada", first, rows)).verified


def test_without_the_grid_it_serves_a_row_more(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Resource, "require_cells", lambda *_: None)  # the mutant
    for rows in (CELL, CELL + 1):
        assert world.visit("ada", offer=world.offer("ada", 0, rows)).verified
    (_, fewer), (_, more) = world.trained
    assert len(more) - len(fewer) == len(more) // (CELL + 1)  # one row


def served(world: VisitWorld, first: int, rows: int) -> HeldResource:
    """By the holder, whoever else let it pass."""
    resource = world.resource("ada-train")
    lease = replace(
        LEASE,
        agreement=world.agreement.digest,
        content=resource.content,
        first_row=first,
        shape=(rows, resource.row_bytes),
        max_bytes=rows * resource.row_bytes,
    )
    operator = world.consortium.identities["cleo"]
    terms = LeaseTerms(
        orchestrator=operator.public_key,
        agreement=lease.agreement,
        accelerator=lease.accelerator,
        longest_s=60.0,
        run=lease.run,
    )
    signed = sign_document(lease, operator)
    return check_lease(signed, world.held, holder="ada", terms=terms)


def test_the_holder_serves_whole_cells(world: VisitWorld) -> None:
    for first, rows in WHOLE:
        assert served(world, first, rows) is world.held["ada-train"]
    for first, rows in OFF_GRID:
        with pytest.raises(PolicyError) as refusal:
            served(world, first, rows)
        assert refusal.value.code == "off-grid"


def test_nothing_leaves_that_could_not_be_counted(world: VisitWorld) -> None:
    def full() -> None:
        raise UnavailableError("no space left", code="disk-full")

    def bring(hand: Hand) -> SignedReceipt:
        return Provisioning(
            hand.held,
            hand.signed,
            clock=hand.clock,
            check_heads=lambda heads: None,
            require_allowed=lambda: None,
            count=full,
        ).provision(hand.session)

    outcome = world.visit("ada", bring)
    assert outcome.reason
    assert not world.raw_frames(outcome)
    assert outcome.holder_error is not None
    assert outcome.holder_error.code == "disk-full"
    assert world.raw_frames(world.visit("ada"))  # control


def test_a_holder_counts_by_the_agreements_rule(
    world: VisitWorld, tmp_path: Path
) -> None:
    consortium = world.consortium
    rule = replace(consortium.agreement.output, max_visits=2)
    agreed = replace(consortium, agreement=replace(consortium.agreement, output=rule))
    signed = sign_document(LEASE, consortium.identities["cleo"])

    def count() -> None:
        holder: HolderJob = holder_job(agreed, tmp_path)  # anew, each time
        held = world.held["ada-train"]
        holder._provisioning(held, signed, lambda: None)._count()

    count()
    count()
    with pytest.raises(PolicyError) as refusal:
        count()
    assert refusal.value.code == "too-many-visits"
    (tmp_path / SERVED_NAME).unlink()
    count()  # control: what is forgotten is served again


CHOICE = BufferChoice(1 << 20, "as the job began")
ASKED = job_settings(batch_rows=8)
SHAPES = {
    "seed": job_settings(batch_rows=8, seed=1),
    "batch": job_settings(batch_rows=9),
    "threads": job_settings(batch_rows=8, threads=2),
    "epochs": job_settings(batch_rows=8, epochs=2),
    "order": job_settings(batch_rows=8, order="by-size"),
    "cut": job_settings(batch_rows=8, buffer_bytes=1 << 20),
    "mixing": job_settings(batch_rows=8, mixed=True),
    "sums": job_settings(batch_rows=8, prepare=True),
    "evaluation": job_settings(batch_rows=8, evaluate_every=1),
}


@pytest.mark.parametrize("case", SHAPES)
def test_a_job_goes_on_in_its_shape(case: str) -> None:
    shapes = JobShapes()
    assert shapes.hold("job", ASKED.shape, CHOICE) is CHOICE
    with pytest.raises(PolicyError) as refusal:
        shapes.hold("job", SHAPES[case].shape, CHOICE)
    assert refusal.value.code == "other-shape"
    shapes.hold("another", SHAPES[case].shape, CHOICE)


def test_what_decides_nothing_may_change() -> None:
    shapes = JobShapes()
    shapes.hold("job", ASKED.shape, CHOICE)
    patient = job_settings(batch_rows=8, lease_s=9.0, meet_s=9.0, buffers=2)
    other = BufferChoice(1 << 30, "half of the memory")
    assert shapes.hold("job", patient.shape, other) is CHOICE
