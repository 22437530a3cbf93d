"""T1: a holder writes its leased range, once, and nothing else.

Evil holders with valid MACs send frames for other places and at other times, and leases
for somebody else are presented. Each is refused and scrubbed, and nothing around the
buffer changes. Against a mutant without the rule, each attack gets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sealift.crypto.sign import SigningKey, sign_document
from sealift.errors import PolicyError, StaleError
from sealift.ids import Digest, Handle
from sealift.release.receipt import SignedReceipt
from sealift.travel.accelerator import visit as host
from sealift.travel.accelerator import visit as rows
from sealift.travel.visit.lease import Frame, Lease, RecordTarget, placement
from sealift.travel.visit.state import Visit, VisitState
from tests.sim.hands import Bring, Hand, sending
from tests.sim.outcome import Outcome
from tests.sim.visit_world import VisitWorld

Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def assert_refused(world: VisitWorld, outcome: Outcome, code: str) -> None:
    """The visit failed for this reason, and left nothing behind."""
    assert outcome.reason == code
    assert outcome.receipt is None
    assert world.trained == []
    assert world.untouched()
    assert all(pool.scrubbed for pool in world.pools)


def changing(sequence: int, change: Callable[[Hand], dict[str, Any]]) -> Bring:
    """A holder that sends everything, but one frame changed."""

    def frames(hand: Hand) -> list[bytes]:
        whole = hand.frames()
        number = sequence % len(whole)
        whole[number] = hand.frame(number, **change(hand))
        return whole

    return sending(frames)


@dataclass(frozen=True)
class BadFrame:
    """A frame that is not for its place."""

    name: str
    sequence: int
    change: Callable[[Hand], dict[str, Any]]
    code: str = "outside-lease"

    def __str__(self) -> str:
        return self.name


BAD_FRAMES = (
    BadFrame("to the start", -1, lambda hand: {"offset": 0}),
    BadFrame("one byte further", 0, lambda hand: {"offset": 1}),
    BadFrame("past the end", -1, lambda hand: {"offset": hand.lease.max_bytes}),
    BadFrame("wraps around", 0, lambda hand: {"offset": (1 << 64) - 32}),
    BadFrame("longer", 0, lambda hand: {"length": hand.record_bytes + 1}),
    BadFrame("longer than all", 0, lambda hand: {"length": 1 << 63}),
    BadFrame("empty", 0, lambda hand: {"length": 0}),
    BadFrame("another record", 0, lambda hand: {"record": 3, "source": 3}),
    BadFrame(
        "another buffer",
        0,
        lambda hand: {"handle": Handle.generate()},
        "foreign-buffer",
    ),
)


@pytest.mark.parametrize("bad", BAD_FRAMES, ids=str)
def test_a_frame_for_another_place(world: VisitWorld, bad: BadFrame) -> None:
    outcome = world.visit("ada", changing(bad.sequence, bad.change))
    assert_refused(world, outcome, bad.code)


@pytest.mark.parametrize("bad", BAD_FRAMES, ids=str)
def test_is_refused_by_that_rule_alone(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, bad: BadFrame
) -> None:
    """Without the rule it gets through; it is then placed by the lease all the same."""
    monkeypatch.setattr(Visit, "_check_place", lambda *_: None)
    outcome = world.visit("ada", changing(bad.sequence, bad.change))
    # Another record's bytes still fail at home's own tag: the index is bound there too.
    assert outcome.verified is (bad.name != "another record")
    assert world.untouched()


def test_a_frame_that_is_believed_writes_elsewhere(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit(visit: Visit, frame: Frame) -> RecordTarget:
        place = placement(visit.lease, frame.sequence, visit._record_bytes)
        visit._next += 1
        return replace(place, offset=frame.offset, length=frame.length)

    monkeypatch.setattr(Visit, "admit", admit)
    monkeypatch.setattr(rows, "spare_cores", lambda: 0)  # checked before it is lost
    outcome = world.visit("ada", changing(-1, lambda hand: {"offset": 0}))
    assert outcome.verified
    lost = world.trained[-1][1][:32]
    assert lost != world.plain["ada-train"][:32]


# Both stay for the answer: a line that closes under the accelerator is another story.
def before_the_lease(hand: Hand) -> SignedReceipt:
    hand.session.send_raw(hand.frame(0))
    hand.introduce()
    return hand.finish(hand.total)


def instead_of_the_end(hand: Hand) -> SignedReceipt:
    hand.introduce()
    hand.send([*hand.frames(), hand.frame(0)])
    return hand.finish(hand.total)


@pytest.mark.parametrize("bring", [before_the_lease, instead_of_the_end])
def test_a_frame_at_another_time(world: VisitWorld, bring: Bring) -> None:
    assert_refused(world, world.visit("ada", bring), "unexpected-frame")


def test_a_frame_after_the_end_is_not_read(world: VisitWorld) -> None:
    def late(hand: Hand) -> Any:
        hand.introduce()
        hand.send(hand.frames())
        hand.session.send_raw(hand.frame(0, source=1))
        return hand.finish()

    outcome = world.visit("ada", late)
    assert outcome.reason == "unexpected-frame"
    assert world.trained == []


@pytest.mark.parametrize(
    "state", [state for state in VisitState if state is not VisitState.LEASED]
)
def test_frames_are_admitted_while_leased_only(
    world: VisitWorld, state: VisitState
) -> None:
    offer = world.offer("ada")
    hosted = world.host(offer, lambda *_: pytest.fail("nobody is met"))
    visit = hosted._visit
    visit.accept(world.grant(offer, hosted).body, 96)
    visit.state = state
    frame = Frame(b"", 0, 0, visit.handle, 0, 96, b"", memoryview(b""))
    with pytest.raises(StaleError) as refusal:
        visit.admit(frame)
    assert refusal.value.code == "visit-state"
    visit.state = VisitState.LEASED
    assert visit.admit(frame).length == 96  # the control


@dataclass(frozen=True)
class BadLease:
    """A lease that is not for this visit, and a mutant that takes it."""

    name: str
    change: dict[str, Any]
    mutants: tuple[Mutate, ...]
    code: str = "foreign-lease"

    def __str__(self) -> str:
        return self.name


def believe_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host, "verify_lease", lambda signed, terms: signed.body)


def forget_the_offer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host.HostedVisit, "_check_against_offer", lambda *_: None)


def accept_any(patch: pytest.MonkeyPatch) -> None:
    def accept(visit: Visit, lease: Lease, record_bytes: int) -> None:
        visit._lease, visit._record_bytes = lease, record_bytes
        visit._deadline = visit._clock() + lease.lease_s
        visit.state = VisitState.LEASED

    patch.setattr(Visit, "accept", accept)


def place_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Visit, "_check_place", lambda *_: None)


OTHER_KEY = SigningKey.generate()
BAD_LEASES = (
    BadLease("instance", {"accelerator": OTHER_KEY.public_key}, (believe_the_lease,)),
    BadLease("job", {"job": "another"}, (believe_the_lease,)),
    BadLease("agreement", {"agreement": Digest.of(b"x")}, (believe_the_lease,)),
    BadLease(
        "seconds", {"lease_s": 61.0}, (believe_the_lease,), "lease-exceeds-agreement"
    ),
    BadLease("rows", {"shape": (19, 40)}, (forget_the_offer,)),
    BadLease("content", {"content": Digest.of(b"x")}, (forget_the_offer,)),
    BadLease("handle", {"handle": Handle.generate()}, (accept_any, place_anywhere)),
    BadLease("length", {"max_bytes": 801}, (accept_any,), "lease-too-long"),
)


@pytest.mark.parametrize("bad", BAD_LEASES, ids=str)
def test_a_lease_for_something_else(world: VisitWorld, bad: BadLease) -> None:
    world.change_lease = lambda lease: replace(lease, **bad.change)
    assert_refused(world, world.visit("ada"), bad.code)


@pytest.mark.parametrize("bad", BAD_LEASES, ids=str)
def test_is_taken_without_that_rule(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, bad: BadLease
) -> None:
    for mutate in bad.mutants:
        mutate(monkeypatch)
    world.change_lease = lambda lease: replace(lease, **bad.change)
    assert world.visit("ada").verified


def test_a_restarted_accelerator_refuses_the_old_lease(world: VisitWorld) -> None:
    offer = world.offer("ada")
    signed = world.visit("ada", offer=offer).lease
    world.trained.clear()
    world.endpoint = world.start_accelerator()
    world.rules.seen.clear()  # a fresh process remembers nothing
    outcome = world.visit("ada", offer=offer, signed=signed)
    assert_refused(world, outcome, "foreign-lease")


def test_a_lease_that_the_orchestrator_did_not_sign(world: VisitWorld) -> None:
    offer = world.offer("ada")
    hosted = world.host(offer, lambda *_: pytest.fail("nobody is met"))
    forged = sign_document(world.grant(offer, hosted).body, OTHER_KEY)
    ended = hosted.run(forged)
    assert (ended.outcome, ended.reason) == ("failed", "authentication")
    assert world.pools[-1].scrubbed


def test_a_visit_id_is_used_once(world: VisitWorld) -> None:
    offer = world.offer("ada")
    assert world.visit("ada", offer=offer).verified
    with pytest.raises(StaleError) as refusal:
        world.visit("ada", offer=offer)
    assert refusal.value.code == "visit-replayed"
    world.rules.seen.clear()  # the mutant
    assert world.visit("ada", offer=offer).verified


def test_no_holder_is_visited_more_often_than_agreed(world: VisitWorld) -> None:
    world.rules.max_visits = 1
    assert world.visit("ada").verified
    with pytest.raises(PolicyError) as refusal:
        world.visit("ada")
    assert refusal.value.code == "too-many-visits"
    assert world.visit("bern").verified


def test_another_lease_than_the_granted_one(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = world.visit("ada").lease

    def bring(hand: Hand) -> Any:
        hand.introduce(lease=granted)
        hand.send(hand.frames())
        return hand.finish()

    world.trained.clear()
    assert_refused(world, world.visit("ada", bring), "foreign-lease")
    monkeypatch.setattr(host, "check_presented", lambda *_: None)
    assert world.visit("ada", bring).verified
