"""Several visits in one accelerator: room, order, ends, and what is left of each."""

from __future__ import annotations

import threading
import time

import pytest

from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PolicyError,
    SealiftError,
    StaleError,
    UnavailableError,
)
from sealift.ids import VisitId
from sealift.train.loop.faults import no_memory
from sealift.travel.accelerator import visit as room
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.visit.memory import scrub
from sealift.travel.visit.messages import VisitEnded, WorkVisits
from tests.sim.hands import WAIT_S, Hand
from tests.sim.hosting_world import Guest, MakeHost, reason
from tests.sim.visit_world import VisitWorld


def plain(world: VisitWorld, guest: Guest) -> bytes:
    return world.plain[guest.outcome.offer.resource]


# overlap


def test_the_next_cargo_loads_while_one_is_worked_on(
    make: MakeHost, world: VisitWorld
) -> None:
    host = make()
    first = host.load("ada", 0)
    seen: list[Guest] = []

    def meanwhile() -> None:
        world.fails_in_work = lambda: None
        seen.append(host.load("bern", 1))
        assert bytes(first.pool.buffer) == plain(world, first)

    world.fails_in_work = meanwhile
    (ended,) = host.work(0, first)
    (second,) = seen
    assert ended.outcome == "verified"
    assert first.pool.scrubbed
    # The scrub of one visit touches nothing of the other one.
    assert bytes(second.pool.buffer) == plain(world, second)
    assert host.work(1, second)[0].outcome == "verified"
    assert second.pool.scrubbed
    assert [rows for _visit, rows in world.trained] == [
        plain(world, first),
        plain(world, second),
    ]
    assert world.untouched()
    assert {"wait", "check", "load", "train"} <= set(ended.phases_s)


def test_a_scrub_that_takes_everything_is_seen(
    make: MakeHost, world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: one arena for all visits would be scrubbed whole."""

    def all_of_it(regions: object) -> object:
        for pool in world.pools:
            scrub(pool.regions())
        return scrub(regions)  # type: ignore[arg-type]

    host = make()
    first, second = host.load("ada", 0), host.load("bern", 1)
    monkeypatch.setattr(room, "scrub", all_of_it)
    host.work(0, first)
    assert bytes(second.pool.buffer) != plain(world, second)


def test_a_holder_that_dies_while_the_other_trains(
    make: MakeHost, world: VisitWorld
) -> None:
    def die(hand: Hand) -> None:
        hand.introduce()
        hand.send(hand.frames()[:2])
        hand.session._transport.close()

    host = make()
    first = host.load("ada", 0)
    world.fails_in_work = lambda: check_dead(host.begin("bern", 1, die))

    def check_dead(guest: Guest) -> None:
        world.fails_in_work = lambda: None
        ended = host.wait_for(VisitEnded, guest.id)
        assert ended.outcome == "failed"
        assert guest.pool.scrubbed
        assert bytes(first.pool.buffer) == plain(world, first)

    assert host.work(0, first)[0].outcome == "verified"
    again = host.load("bern", 1)
    assert host.work(1, again)[0].outcome == "verified"


def test_a_lease_that_ends_while_the_other_trains(
    make: MakeHost, world: VisitWorld
) -> None:
    def stall(hand: Hand) -> None:
        hand.introduce()
        hand.send(hand.frames()[:2])
        hand.stall()
        hand.session.receive(WAIT_S)

    host = make()
    first = host.load("ada", 0)
    seen: list[Guest] = []

    def meanwhile() -> None:
        seen.append(host.begin("bern", 1, stall))
        ended = host.wait_for(VisitEnded, seen[0].id)
        assert ended.reason in ("peer-timeout", "lease-expired")

    world.fails_in_work = meanwhile
    # The lease of the first has run out as well; it was kept: its cargo is here.
    assert host.work(0, first)[0].outcome == "verified"
    assert seen[0].pool.scrubbed
    assert len(world.trained) == 1


# groups


def test_mixed_cargo_is_worked_on_together(make: MakeHost, world: VisitWorld) -> None:
    host = make(buffers=1, mixed=True)
    guests = [host.load(owner, 0) for owner in ("ada", "bern", "cleo")]
    ended = host.work(0, *guests)
    assert [each.outcome for each in ended] == ["verified"] * 3
    assert [rows for _visit, rows in world.trained] == [
        plain(world, each) for each in guests
    ]
    assert all(each.pool.scrubbed for each in guests)
    for guest in guests:
        guest.holder.join(WAIT_S)
        assert guest.outcome.receipt is not None


def test_bad_rows_in_mixed_cargo_fail_alone(make: MakeHost, world: VisitWorld) -> None:
    def check(cargo: LoadedCargo) -> None:
        if cargo.stop.holder == "bern":
            raise MalformedError("rows do not fit", field="x", code="bad-row")

    world.checks = check
    host = make(buffers=1, mixed=True)
    ada, cleo = host.load("ada", 0), host.load("cleo", 0)
    bern = host.begin("bern", 0)
    told = host.wait_for(VisitEnded, bern.id)
    assert (told.reason, told.fatal) == ("bad-row", False)
    assert "x" in told.line
    assert bern.pool.scrubbed
    ended = host.work(0, ada, cleo)
    assert [each.outcome for each in ended] == ["verified", "verified"]
    assert set(world.rules.counted.worked["train"]) == {"ada", "cleo"}


@pytest.mark.parametrize(
    "error", [JobError("the recipe failed", code="recipe-error"), no_memory()]
)
def test_a_recipe_that_fails_ends_every_visit_of_the_group(
    make: MakeHost, world: VisitWorld, error: SealiftError
) -> None:
    def fail() -> None:
        raise error

    world.fails_in_work = fail
    host = make(buffers=2, mixed=True)
    guests = [host.load("ada", 0), host.load("bern", 0)]
    loaded = host.load("cleo", 1)
    with pytest.raises((JobError, UnavailableError)) as failure:
        host.work(0, *guests)
    assert failure.value.code == error.code
    for guest in guests:
        assert host.wait_for(VisitEnded, guest.id).fatal
        assert guest.pool.scrubbed
    host.hosting.abandon("stopped")
    assert loaded.pool.scrubbed
    assert world.rules.counted.trained == {}


def test_groups_are_worked_on_in_order(make: MakeHost) -> None:
    host = make()
    first, second = host.load("ada", 0), host.load("bern", 1)
    host.work(1, second)
    with pytest.raises(StaleError) as refusal:
        host.hosting.work(WorkVisits(0, (first.id,)))
    assert refusal.value.code == "group-over"


def test_what_is_not_one_loaded_group_is_not_worked_on(
    make: MakeHost, world: VisitWorld
) -> None:
    host = make()
    first, second = host.load("ada", 0), host.load("bern", 1)
    for order in (
        WorkVisits(0, (first.id, second.id)),
        WorkVisits(1, (first.id,)),
        WorkVisits(7, (second.id,)),
    ):
        with pytest.raises(PolicyError) as refusal:
            host.hosting.work(order)
        assert refusal.value.code == "bad-group"
    host.work(0, first)
    stalling = host.begin("cleo", 2, lambda hand: hand.stall() or None)
    with pytest.raises(PolicyError):
        host.hosting.work(WorkVisits(2, (stalling.id,)))
    assert len(world.trained) == 1


def test_visits_that_ended_meanwhile_are_left_out(make: MakeHost) -> None:
    host = make()
    first = host.load("ada", 0)
    host.hosting.work(WorkVisits(0, (VisitId.generate(), first.id, first.id)))
    assert host.wait_for(VisitEnded, first.id).outcome == "verified"
    host.hosting.work(WorkVisits(1, (VisitId.generate(),)))


# ends


def test_cargo_that_nobody_works_on_is_scrubbed(
    make: MakeHost, world: VisitWorld
) -> None:
    host = make(idle_s=0.05)
    guest = host.begin("ada", 0)
    assert host.wait_for(VisitEnded, guest.id).reason == "never-worked"
    assert guest.pool.scrubbed
    host.hosting.work(WorkVisits(0, (guest.id,)))
    assert world.trained == []
    assert not reason(host.offer("bern", 1))


def test_everything_is_given_up(make: MakeHost, world: VisitWorld) -> None:
    held = threading.Event()

    def half(hand: Hand) -> None:
        hand.introduce()
        hand.send(hand.frames()[:3])
        held.set()
        hand.session.receive(WAIT_S)

    host = make(buffers=2, mixed=True)
    loaded = host.load("ada", 0)
    half_way = host.begin("bern", 0, half)
    host.offer("cleo", 1)
    assert held.wait(WAIT_S)
    told = host.hosting.abandon("stopped")
    assert told.visits == 3
    assert told.verified
    assert told.scrubbed_bytes == sum(
        len(part) for pool in world.pools for part in pool.regions().values()
    )
    assert all(pool.scrubbed for pool in world.pools)
    assert reason(host.offer("ada", 5)) == "too-many-buffers"
    with pytest.raises(StaleError):
        host.hosting.work(WorkVisits(-1, (loaded.id,)))
    half_way.holder.join(WAIT_S)
    assert half_way.outcome.receipt is None
    assert host.hosting.abandon("again").visits == 0


def test_a_signal_in_work_scrubs_both_when_it_has_passed(
    make: MakeHost, world: VisitWorld
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    host = make()
    first, second = host.load("ada", 0), host.load("bern", 1)
    world.fails_in_work = interrupt
    with pytest.raises(KeyboardInterrupt):
        host.hosting.work(WorkVisits(0, (first.id,)))
    assert host.hosting.abandon("stopped").visits == 2
    assert first.pool.scrubbed
    assert second.pool.scrubbed


def test_a_scrub_that_does_not_hold_stops_the_process(
    make: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever thread it happened; the other visits are scrubbed all the same."""

    def leave(hand: Hand) -> None:
        hand.introduce()
        hand.send(hand.frames()[:2])

    host = make()
    first = host.load("ada", 0)
    broken: list[int] = []

    def once(regions: object) -> object:
        if not broken:
            broken.append(1)
            return scrub(regions, write=lambda region: None)  # type: ignore[arg-type]
        return scrub(regions)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "scrub", once)
    second = host.begin("bern", 1, leave)
    deadline = time.monotonic() + WAIT_S
    while not host.stopped and time.monotonic() < deadline:
        time.sleep(0.01)
    (stopped,) = host.stopped
    assert isinstance(stopped, IntegrityError)
    assert not any(
        isinstance(each, VisitEnded) and each.visit == second.id for each in host.told
    )
    host.hosting.abandon("stopped")
    assert first.pool.scrubbed
