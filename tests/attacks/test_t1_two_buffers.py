"""T1 with several visits in the accelerator: a holder reaches its own buffer only.

While one owner's cargo waits, or loads beside it, another holder with a valid lease and
valid MACs aims at the first one's buffer. The visit is refused, the first one's rows stay
as they are, and its visit ends well. Against mutants without the rule the frame gets
through, and still lands in its own pool: no number of a message chooses memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sealift.travel.visit.lease import Frame
from sealift.travel.visit.messages import VisitEnded
from sealift.travel.visit.state import Visit
from tests.sim.hands import WAIT_S, Bring, Hand, sending
from tests.sim.hosting_world import Guest, HostingWorld
from tests.sim.visit_world import VisitWorld

SHAPES = [
    pytest.param({"buffers": 2}, id="two buffers"),
    pytest.param({"buffers": 1, "mixed": True}, id="mixed"),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


@pytest.fixture(params=SHAPES)
def both(
    world: VisitWorld, request: pytest.FixtureRequest
) -> Iterator[tuple[HostingWorld, Guest, int]]:
    """A host, a visit whose cargo waits in it, and the position of the next visit."""
    made = HostingWorld(world, **request.param)
    yield made, made.load("ada", 0), 0 if request.param.get("mixed") else 1
    made.close()


def aiming(change: Callable[[Hand, Guest], dict[str, Any]], victim: Guest) -> Bring:
    """A holder whose first frame is aimed at somebody else's visit."""

    def frames(hand: Hand) -> list[bytes]:
        whole = hand.frames()
        whole[0] = hand.frame(0, **change(hand, victim))
        return whole

    return sending(frames)


def handle(hand: Hand, victim: Guest) -> dict[str, Any]:
    return {"handle": victim.outcome.lease.body.handle}


def beyond(hand: Hand, victim: Guest) -> dict[str, Any]:
    return {"offset": hand.lease.max_bytes}


def key(hand: Hand, victim: Guest) -> dict[str, Any]:
    return {"key": victim.outcome.secrets["visit"]}


AIMS = [
    pytest.param(handle, "foreign-buffer", id="its handle"),
    pytest.param(beyond, "outside-lease", id="behind the own buffer"),
    pytest.param(key, "authentication", id="its key"),
]


@pytest.mark.parametrize(("aim", "code"), AIMS)
def test_a_frame_for_the_other_visit(
    world: VisitWorld, both: tuple[HostingWorld, Guest, int], aim: Any, code: str
) -> None:
    made, victim, position = both
    attacker = made.begin("bern", position, aiming(aim, victim))
    assert made.wait_for(VisitEnded, attacker.id).reason == code
    assert attacker.pool.scrubbed
    assert bytes(victim.pool.buffer) == world.plain["ada-train"]
    assert world.untouched()
    assert made.work(0, victim)[0].outcome == "verified"
    assert [rows for _visit, rows in world.trained] == [world.plain["ada-train"]]


@pytest.mark.parametrize("aim", [handle, beyond])
def test_that_is_believed_still_lands_at_home(
    world: VisitWorld,
    both: tuple[HostingWorld, Guest, int],
    monkeypatch: pytest.MonkeyPatch,
    aim: Any,
) -> None:
    """The mutant: nobody compares the frame's place with the lease."""
    made, victim, position = both
    monkeypatch.setattr(Visit, "_check_place", lambda *_: None)
    attacker = made.begin("bern", position, aiming(aim, victim))
    attacker.holder.join(0.1)
    assert bytes(victim.pool.buffer) == world.plain["ada-train"]
    assert world.untouched()


def test_frames_of_the_other_visit_are_no_frames_of_this_one(
    world: VisitWorld, both: tuple[HostingWorld, Guest, int]
) -> None:
    """What crossed for one visit is played into the next one."""
    made, victim, position = both
    recorded = world.raw_frames(victim.outcome)
    attacker = made.begin("bern", position, sending(lambda hand: recorded))
    assert made.wait_for(VisitEnded, attacker.id).reason == "authentication"
    assert bytes(victim.pool.buffer) == world.plain["ada-train"]


def test_and_would_be_without_macs(
    world: VisitWorld,
    both: tuple[HostingWorld, Guest, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant takes the MAC; the place gives it away, and home's own tag after that."""
    made, victim, position = both
    monkeypatch.setattr(Frame, "authenticate", lambda *_: None)
    recorded = world.raw_frames(victim.outcome)
    attacker = made.begin("bern", position, sending(lambda hand: recorded))
    assert made.wait_for(VisitEnded, attacker.id).reason == "foreign-buffer"
    monkeypatch.setattr(Visit, "_check_place", lambda *_: None)
    again = made.begin("bern", position, sending(lambda hand: recorded))
    assert made.wait_for(VisitEnded, again.id).reason == "authentication"
    assert bytes(victim.pool.buffer) == world.plain["ada-train"]


def test_a_lease_of_one_visit_opens_no_other(
    world: VisitWorld, both: tuple[HostingWorld, Guest, int]
) -> None:
    made, victim, position = both

    def bring(hand: Hand) -> Any:
        hand.present(lease=victim.outcome.lease)
        return hand.session.receive(WAIT_S)

    attacker = made.begin("bern", position, bring)
    assert made.wait_for(VisitEnded, attacker.id).reason == "foreign-lease"
    assert made.work(0, victim)[0].outcome == "verified"
