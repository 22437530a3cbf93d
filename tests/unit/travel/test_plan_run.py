"""The orchestrator's decisions: what loads, what is worked on, what is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.data.schedule.visits import Stop, VisitBatch, plan_job
from sealift.errors import JobError, PeerError, SealiftError
from sealift.events import Event
from sealift.ids import VisitId
from sealift.release.agreement import Purpose
from sealift.travel.orchestrator.job import Orchestrator
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.orchestrator.visits import SHORTEST_PAUSE_S, PlanRun, StopTally
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import (
    Failed,
    FailedError,
    OfferVisit,
    Output,
    VisitEnded,
    VisitLoaded,
    WorkVisits,
)
from tests.sim.scripted import ScriptedAccelerator, ScriptedHolder
from tests.sim.settings import job_settings
from tests.sim.visit_parts import FakeClock
from tests.worlds.consortium import make_consortium

OWNERS = ("ada", "bern", "cleo")
CONSORTIUM = make_consortium(OWNERS)
AGREEMENT = CONSORTIUM.verified()
RESOURCES = AGREEMENT.agreement.resources
ROW_BYTES = max(each.row_bytes for each in RESOURCES)
ROWS = max(each.rows for each in RESOURCES)
SLICED = ROW_BYTES * max(1, ROWS // 2)


class Trip:
    """One run with everything around it."""

    def __init__(
        self,
        asked: JobSettings,
        *,
        here: Sequence[str] = OWNERS,
        groups: tuple[VisitBatch, ...] | None = None,
        **script: Any,
    ) -> None:
        self.clock = FakeClock()
        self.settings = asked
        size = asked.travel.asked_bytes or SLICED
        self.groups = (
            plan_job(RESOURCES, asked.visits, size) if groups is None else groups
        )
        self.accelerator = ScriptedAccelerator(self.clock, **script)
        self.live = LiveSessions(clock=self.clock)
        self.holders = {name: ScriptedHolder(name) for name in OWNERS}
        for name in here:
            self.live.enter(self.holders[name])  # type: ignore[arg-type]
        self.events: list[Event] = []
        self.kept: list[Output] = []
        self.tally = StopTally()
        self.plan_run = self.make()

    def make(self) -> PlanRun:
        return PlanRun(
            self.groups,
            self.settings,
            accelerator=self.accelerator,  # type: ignore[arg-type]
            sessions=self.live,
            grant=Orchestrator(
                AGREEMENT,
                self.settings,
                sessions=self.live,
                signer=CONSORTIUM.identities[AGREEMENT.agreement.operator],
                job="job",
                clock=self.clock,
                sink=self.events.append,
                hopes=lambda _: True,
            )._grant,
            tally=self.tally,
            clock=self.clock,
            keep=self.kept.append,
            hopes=lambda: True,
            sink=self.events.append,
        )

    def run(self) -> Trip:
        self.plan_run.run()
        return self

    @property
    def planned(self) -> set[tuple[int, str]]:
        return {
            (group.position, stop.resource)
            for group in self.groups
            for stop in group.stops
        }

    def works(self) -> list[WorkVisits]:
        return [s for s in self.accelerator.said if isinstance(s, WorkVisits)]

    def offers(self) -> list[OfferVisit]:
        return list(self.accelerator.offers.values())


ASKED = st.builds(
    job_settings,
    epochs=st.integers(1, 2),
    buffers=st.sampled_from([1, 2]),
    mixed=st.booleans(),
    prepare=st.booleans(),
    on_missing=st.sampled_from(["skip", "wait"]),
    attempts=st.integers(1, 3),
    wait_s=st.just(5.0),
)


@given(
    asked=ASKED,
    seed=st.integers(0, 10**6),
    fails=st.sampled_from([0.0, 0.1, 0.5]),
    here=st.sets(st.sampled_from(OWNERS)),
)
def test_every_stop_is_attended_to_in_the_plans_order(
    asked: JobSettings, seed: int, fails: float, here: set[str]
) -> None:
    trip = Trip(asked, here=sorted(here), seed=seed, fails=fails).run()
    tally = trip.tally
    assert tally.verified | tally.skipped == trip.planned
    assert not tally.verified & tally.skipped
    positions = [order.position for order in trip.works()]
    assert positions == sorted(set(positions))
    check_window(trip)
    check_attempts(trip)


def check_window(trip: Trip) -> None:
    """Never more groups at one time than asked for, and one of them loads."""
    live: dict[VisitId, int] = {}
    loaded: set[VisitId] = set()
    for said in trip.accelerator.said:
        if isinstance(said, OfferVisit):
            live[said.visit] = said.position
            others = {at for visit, at in live.items() if visit not in loaded}
            assert others <= {said.position}, "two groups load at one time"
        if isinstance(said, VisitLoaded):
            loaded.add(said.visit)
        if isinstance(said, WorkVisits):
            # Everything of the group that is still here is worked on.
            here = {visit for visit, at in live.items() if at == said.position}
            assert set(said.visits) == here <= loaded
        if isinstance(said, VisitEnded):
            live.pop(said.visit, None)
        assert len(set(live.values())) <= trip.settings.travel.buffers
    assert not live


def test_the_check_of_the_window_can_tell() -> None:
    trip = Trip(job_settings(buffers=2)).run()
    check_window(trip)
    trip.settings = job_settings()
    with pytest.raises(AssertionError):
        check_window(trip)


def check_attempts(trip: Trip) -> None:
    """Again only before its cargo was loaded, and not without end."""
    by_stop: dict[tuple[int, str], list[OfferVisit]] = {}
    for offer in trip.offers():
        by_stop.setdefault((offer.position, offer.resource), []).append(offer)
    most = (
        trip.settings.travel.attempts
        if trip.settings.travel.on_missing == "wait"
        else 1
    )
    for offers in by_stop.values():
        assert len(offers) <= most
        assert not [o for o in offers[:-1] if o.visit in trip.accelerator.loaded]


@pytest.mark.parametrize("reason", ["too-many-visits", "privacy-budget-spent"])
def test_a_limit_of_visits_ends_training_and_the_model_is_measured(reason: str) -> None:
    """No later epoch begins without the owner that allows no more."""
    trip = Trip(job_settings(epochs=3), fails=1.0, reasons=(reason,)).run()
    trained = {each.epoch for each in trip.offers() if each.purpose == "train"}
    measured = {each.epoch for each in trip.offers() if each.purpose == "heldout"}
    assert trained == {0}
    assert max(measured) == 2
    assert trip.tally.verified | trip.tally.skipped == trip.planned
    limited = [each for each in trip.events if each.kind == "job.limited"]
    assert [each.fields["epoch"] for each in limited] == [0]


def test_nor_does_what_waits_of_a_later_epoch_while_this_one_ends() -> None:
    """With two buffers a group of the next epoch is due while the last visit is worked on."""

    def group(position: int, purpose: Purpose, epoch: int, owner: str) -> VisitBatch:
        stop = Stop(epoch, owner, f"{owner}-train", purpose, 0, 1)
        return VisitBatch(position, purpose, epoch, (stop,))

    groups = (
        group(0, "train", 0, "ada"),
        group(1, "train", 1, "bern"),
        group(2, "heldout", 1, "ada"),
    )
    asked = job_settings(epochs=2, buffers=2, on_missing="wait", wait_s=5.0)
    trip = Trip(asked, here=["ada"], groups=groups)
    say = trip.accelerator._say

    def refuse(visit: VisitId) -> object:
        step = trip.accelerator._next[visit]
        if step == "work" and trip.accelerator.offers[visit].purpose == "train":
            trip.live.enter(trip.holders["bern"])  # type: ignore[arg-type]
            del trip.accelerator._next[visit]
            return VisitEnded(visit=visit, outcome="failed", reason="too-many-visits")
        return say(visit)

    trip.accelerator._say = refuse  # type: ignore[method-assign]
    trip.run()
    assert [(each.holder, each.purpose) for each in trip.offers()] == [
        ("ada", "train"),
        ("ada", "heldout"),
    ]
    assert trip.tally.verified == {(2, "ada-train")}
    assert trip.tally.skipped == {(0, "ada-train"), (1, "bern-train")}


@pytest.mark.parametrize("buffers", [1, 2])
def test_without_faults_everything_is_verified(buffers: int) -> None:
    trip = Trip(job_settings(buffers=buffers)).run()  # type: ignore[arg-type]
    assert trip.tally.verified == trip.planned
    said = trip.accelerator.said
    second = next(o.visit for o in trip.offers() if o.position == 1)
    offered = next(
        at
        for at, each in enumerate(said)
        if isinstance(each, OfferVisit) and each.visit == second
    )
    ended = next(at for at, each in enumerate(said) if isinstance(each, VisitEnded))
    assert (offered < ended) is (buffers == 2)


def test_a_missing_holder_is_waited_for_while_the_other_trains() -> None:
    trip = Trip(job_settings(buffers=2, on_missing="wait", wait_s=5.0), here=["ada"])
    trip.run()
    assert trip.tally.verified == {
        (g.position, s.resource)
        for g in trip.groups
        for s in g.stops
        if s.holder == "ada"
    }
    assert trip.clock() >= 1005.0
    skipped = [e for e in trip.events if e.kind == "visit.skipped"]
    assert len(skipped) == len(trip.tally.skipped)


def test_a_holder_that_left_makes_the_offer_void() -> None:
    trip = Trip(job_settings())
    trip.holders["bern"].gone = True
    trip.run()
    assert {name for _at, name in trip.tally.skipped} >= {"bern-train"}
    role = trip.holders["bern"].peer.role
    assert trip.live.find(role, "bern") is None
    assert trip.live.find(role, "ada") is not None


@pytest.mark.parametrize(
    "reason",
    [
        "too-many-visits",
        "privacy-budget-spent",
        "bad-row",
        "off-grid",
        "content-mismatch",
    ],
)
def test_what_never_gets_better_is_not_tried_again(reason: str) -> None:
    asked = job_settings(on_missing="wait", attempts=5)
    trip = Trip(asked, fails=1.0, reasons=(reason,)).run()
    assert len(trip.offers()) == len(trip.planned)


def refusing(
    trip: Trip, holder: str, until_s: float, then: Callable[[], None] = lambda: None
) -> list[float]:
    """A holder's disk is full for so long; when it was asked."""
    asked: list[float] = []
    original = trip.accelerator._say

    def say(visit: VisitId) -> object:
        offer = trip.accelerator.offers[visit]
        if trip.accelerator._next[visit] != "load" or offer.holder != holder:
            return original(visit)
        asked.append(trip.clock())
        if trip.clock() >= until_s:
            return original(visit)
        del trip.accelerator._next[visit]
        then()
        return VisitEnded(
            visit=visit, outcome="failed", reason="disk-full", line="it is full"
        )

    trip.accelerator._say = say  # type: ignore[method-assign]
    return asked


def pauses(trip: Trip) -> list[object]:
    again = [e.fields for e in trip.events if e.kind == "visit.again"]
    assert all((e["reason"], e["line"]) == ("disk-full", "it is full") for e in again)
    return [each["pause_s"] for each in again]


def test_a_full_disk_of_fifteen_seconds_costs_no_visit() -> None:
    trip = Trip(job_settings(on_missing="wait"))
    asked = refusing(trip, "bern", trip.clock() + 15.0)
    trip.run()
    assert trip.tally.verified == trip.planned
    assert pauses(trip) == [3.75, 7.5, 15.0]
    for before, after, pause_s in zip(
        asked, asked[1:], (3.75, 7.5, 15.0), strict=False
    ):
        assert after - before >= pause_s


@pytest.mark.parametrize(
    ("attempts", "wait_s", "expected"),
    [
        (5, 60.0, [3.75, 7.5, 15.0, 30.0]),
        (3, 8.0, [2.0, 4.0]),
        (4, 0.001, [SHORTEST_PAUSE_S] * 3),
        (1, 60.0, []),
    ],
)
def test_who_refuses_for_good_is_asked_so_often_and_named(
    attempts: int, wait_s: float, expected: list[float]
) -> None:
    asks = job_settings(on_missing="wait", attempts=attempts, wait_s=wait_s)
    trip = Trip(asks)
    trip.groups = trip.groups[: len(OWNERS)]
    trip.plan_run = trip.make()
    asked = refusing(trip, "bern", float("inf"))
    trip.run()
    assert len(asked) == attempts
    assert pauses(trip) == expected
    (skipped,) = [e.fields for e in trip.events if e.kind == "visit.skipped"]
    assert (skipped["reason"], skipped["line"]) == ("disk-full", "it is full")
    assert trip.tally.causes == {"bern-train": Failed("disk-full", "it is full")}


def test_others_load_while_one_is_not_asked_and_nobody_is_late() -> None:
    """The pauses are longer than the accelerator may be silent while it has work."""
    asks = job_settings(
        on_missing="wait", wait_s=600.0, lease_s=1.0, work_s=1.0, mixed=True
    )
    trip = Trip(asks)
    asked = refusing(trip, "bern", trip.clock() + 500.0)
    trip.run()
    assert trip.tally.verified == trip.planned
    assert asked[-1] - 1000.0 >= 500.0
    beside = [o.visit for o in trip.offers() if o.position == 0 and o.holder != "bern"]
    said = trip.accelerator.said
    last = max(
        at
        for at, each in enumerate(said)
        if isinstance(each, OfferVisit) and (each.position, each.holder) == (0, "bern")
    )
    loaded = {each.visit for each in said[:last] if isinstance(each, VisitLoaded)}
    assert len(beside) == 2
    assert set(beside) <= loaded


def test_a_holder_that_came_back_is_asked_at_once() -> None:
    trip = Trip(job_settings(on_missing="wait"))
    began = trip.clock()
    fails = iter((True,))

    def come_back() -> None:
        if next(fails, False):
            trip.live.enter(ScriptedHolder("bern"))  # type: ignore[arg-type]

    asked = refusing(trip, "bern", began + 0.001, come_back)
    trip.run()
    assert asked[:3] == [began, began, pytest.approx(began + 7.5, abs=0.1)]


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [("recipe-error", 7), ("recipe-killed", 7), ("no-memory", 3)],
)
def test_a_recipe_that_fails_ends_the_job(reason: str, exit_code: int) -> None:
    trip = Trip(job_settings())
    original = trip.accelerator._say

    def say(visit: VisitId) -> object:
        if trip.accelerator._next[visit] == "work":
            return VisitEnded(
                visit=visit,
                outcome="failed",
                reason=reason,
                line="at 3",
                fatal=True,
            )
        return original(visit)

    trip.accelerator._say = say  # type: ignore[method-assign]
    with pytest.raises(SealiftError) as failure:
        trip.run()
    assert (failure.value.code, failure.value.exit_code) == (reason, exit_code)


@pytest.mark.parametrize(
    ("code", "kind"), [("recipe-error", JobError), ("something", FailedError)]
)
def test_what_the_accelerator_says_ends_the_job(code: str, kind: type) -> None:
    trip = Trip(job_settings())
    trip.accelerator._say = lambda visit: Failed(code, "why")  # type: ignore[method-assign]
    with pytest.raises(kind):
        trip.run()


@pytest.mark.parametrize("after", range(1, 12))
def test_an_accelerator_that_dies_takes_its_visits_along(after: int) -> None:
    trip = Trip(job_settings(buffers=2), dies_after=after)
    with pytest.raises(PeerError) as failure:
        trip.run()
    trip.plan_run.lose(str(failure.value))
    ended = [e.fields["visit"] for e in trip.events if e.kind == "visit.ended"]
    offered = [e.fields["visit"] for e in trip.events if e.kind == "visit.offered"]
    assert sorted(map(str, ended)) == sorted(map(str, offered))
    reasons = {e.fields["reason"] for e in trip.events if e.kind == "visit.ended"}
    assert "accelerator-lost" in reasons


def test_an_accelerator_that_says_nothing_is_given_up() -> None:
    trip = Trip(job_settings(lease_s=10.0, work_s=20.0))

    def nothing(timeout_s: float | None = None) -> bytes:
        assert timeout_s is not None
        trip.clock.advance(timeout_s)
        raise PeerError("nothing", code="peer-timeout")

    trip.accelerator.receive = nothing  # type: ignore[method-assign]
    with pytest.raises(PeerError):
        trip.run()
    assert trip.clock() - 1000.0 == pytest.approx(90.0)
