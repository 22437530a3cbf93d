"""How many visits may be in one accelerator at one time: its own rule, whoever asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.data.schedule.visits import Stop
from sealift.ids import VisitId
from sealift.release.agreement import Resource
from sealift.travel.accelerator.visits import HostedVisits
from sealift.travel.visit.messages import VisitEnded
from tests.sim.hosting_world import MakeHost, make_offer, reason
from tests.sim.visit_world import VisitWorld


def test_with_one_buffer_the_next_comes_when_the_first_is_scrubbed(
    make: MakeHost,
) -> None:
    host = make(buffers=1)
    assert not reason(host.offer("ada", 0))
    assert reason(host.offer("bern", 1)) == "too-many-buffers"
    host = make(buffers=1)
    first = host.load("ada", 0)
    assert reason(host.offer("bern", 1)) == "too-many-buffers"
    assert not first.pool.scrubbed
    host.work(0, first)
    assert first.pool.scrubbed
    assert not reason(host.offer("bern", 1))


def test_without_that_rule_there_are_two(
    make: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostedVisits, "_require_room", lambda *_: None)  # the mutant
    host = make(buffers=1)
    first, second = host.load("ada", 0), host.load("bern", 1)
    assert not first.pool.scrubbed
    assert not second.pool.scrubbed


def test_two_buffers_are_two_groups_of_one(make: MakeHost) -> None:
    host = make(buffers=2)
    host.load("ada", 0)
    assert reason(host.offer("bern", 0)) == "too-many-buffers"
    host.load("bern", 1)
    assert reason(host.offer("cleo", 2)) == "too-many-buffers"


def test_mixed_cargo_is_one_visit_to_each(make: MakeHost) -> None:
    host = make(buffers=1, mixed=True)
    for owner in ("ada", "bern"):
        assert not reason(host.offer(owner, 0))
    assert reason(host.offer("ada", 0)) == "too-many-buffers"
    assert reason(host.offer("cleo", 1)) == "too-many-buffers"
    assert not reason(host.offer("cleo", 0))


def test_held_out_rows_are_never_mixed(make: MakeHost) -> None:
    host = make(buffers=1, mixed=True)
    assert not reason(host.offer("ada", 0, "heldout"))
    assert reason(host.offer("bern", 0, "heldout")) == "too-many-buffers"


def test_a_visit_is_one_of_the_plan(make: MakeHost, world: VisitWorld) -> None:
    """Every other one is refused: at another place, of other rows, for something else."""
    plan = {(3, Stop(0, "ada", "ada-train", "train", 0, 20))}
    host = make(planned=plan)
    honest = make_offer(world, "ada", 3, "train")
    for change in (
        {"position": 2}, {"epoch": 1}, {"holder": "bern"}, {"resource": "bern-train"},
        {"purpose": "prepare"}, {"first_row": 1}, {"rows": 19},
    ):  # fmt: skip
        asked = replace(honest, visit=VisitId.generate(), **change)
        assert reason(host.answer(asked)) == "not-planned", change
    assert world.pools == []
    assert not reason(host.answer(honest))


def test_without_that_rule_the_orchestrator_cuts_as_it_likes(
    make: MakeHost, world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostedVisits, "_require_planned", lambda *_: None)  # the mutant
    host = make(planned=set())
    assert not reason(host.offer("ada", 3))


def test_a_visit_is_for_what_the_owners_rule_names(
    make: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accelerator asks itself, whatever the orchestrator offers."""
    host = make(buffers=2)
    assert not reason(host.offer("ada", 0, "prepare"))  # control
    monkeypatch.setattr(Resource, "purposes", ("train",))
    host = make(buffers=2)
    assert reason(host.offer("ada", 0, "prepare")) == "purpose-refused"
    assert not reason(host.offer("ada", 0, "train"))


def test_a_withdrawn_offer_makes_room(make: MakeHost, world: VisitWorld) -> None:
    host = make(buffers=1)
    offered = host.offer("ada", 0)
    host.hosting.withdraw(offered.visit)
    assert host.wait_for(VisitEnded, offered.visit).reason == "holder-missing"
    assert world.pools[-1].scrubbed
    assert not reason(host.offer("bern", 1))


def test_withdrawing_what_was_granted_does_nothing(make: MakeHost) -> None:
    host = make()
    guest = host.load("ada", 0)
    host.hosting.withdraw(guest.id)
    host.hosting.withdraw(VisitId.generate())
    host.hosting.grant(guest.outcome.lease)  # nor does a second grant
    assert host.work(0, guest)[0].outcome == "verified"
