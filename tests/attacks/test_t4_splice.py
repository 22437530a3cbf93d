"""T4: no replay, no reordering, no truncation, no splice; and no other content.

Somebody on the line changes what crosses; a holder with valid MACs sends the right
frames in a wrong way, or another content under its own key (rule C5). Whatever it is:
no training on it, no receipt. Each attack wins against a mutant without its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.channel.record.commitment import VerifiedLeaves
from sealift.channel.record.opener import RecordOpener
from sealift.channel.record.sealedfile import RawSealedFile, write_sealed_file
from sealift.travel.visit.lease import Frame, RecordTarget, placement
from sealift.travel.visit.state import Visit, VisitState
from tests.sim.faultyline import Fault
from tests.sim.hands import Bring, Hand, sending
from tests.sim.visit_world import Outcome, VisitWorld
from tests.worlds.visits import RECORD_BYTES

FIRST = 6  # before it on the line: two of the handshake, header, lease, leaves, path
Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def assert_refused(world: VisitWorld, outcome: Outcome, *codes: str) -> None:
    """No training, no receipt, nothing left."""
    assert outcome.reason in codes
    assert outcome.receipt is None
    assert world.trained == []
    assert world.pools[-1].scrubbed


def no_mac(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Frame, "authenticate", lambda *_: None)


def no_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Visit, "_check_place", lambda *_: None)


def no_order(patch: pytest.MonkeyPatch) -> None:
    """Frames are taken in any order; each goes where its number says."""

    def admit(visit: Visit, frame: Frame) -> RecordTarget:
        visit._next += 1
        number = frame.sequence % visit.expected_frames
        return placement(visit.lease, number, visit._record_bytes)

    patch.setattr(Visit, "admit", admit)


def no_count(patch: pytest.MonkeyPatch) -> None:
    """All but the last frame will do."""
    genuine = Visit.expected_frames.fget
    assert genuine is not None
    fewer = property(lambda visit: genuine(visit) - 1)
    patch.setattr(Visit, "expected_frames", fewer)

    def seal(visit: Visit, frames: int, cargo_bytes: int) -> None:
        visit.state = VisitState.SEALED

    patch.setattr(Visit, "seal", seal)


def no_leaf(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VerifiedLeaves, "verify", lambda *_: None)


FIELDS = {
    "sequence": 8, "record": 16, "handle": 17, "offset": 40, "length": 48,
    "mac": 50, "ciphertext": 90, "tag": -1,
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_byte(world: VisitWorld, field: str) -> None:
    world.faults = [Fault("flip", FIRST + 1, FIELDS[field])]
    assert_refused(world, world.visit("ada"), "authentication")


@pytest.mark.parametrize("field", ["sequence", "record", "handle", "offset", "length"])
def test_only_the_mac_notices_a_harmless_flip(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    world.faults = [Fault("flip", FIRST, FIELDS[field])]
    for mutate in (no_mac, no_place) if field != "sequence" else (no_mac,):
        mutate(monkeypatch)
    if field == "sequence":
        monkeypatch.setattr(Visit, "admit", _in_turn)
    assert world.visit("ada").verified


def _in_turn(visit: Visit, frame: Frame) -> RecordTarget:
    visit._next += 1
    return placement(visit.lease, visit._next - 1, visit._record_bytes)


@pytest.mark.parametrize("kind", ["drop", "duplicate", "hold", "truncate"])
def test_a_hostile_line(world: VisitWorld, kind: Any) -> None:
    world.faults = [Fault(kind, FIRST + 1, 60 if kind == "truncate" else 1)]
    codes = ("frame-order", "malformed", "unexpected-frame")
    assert_refused(world, world.visit("ada"), *codes)


def test_the_last_frame_is_cut_off(world: VisitWorld) -> None:
    last = FIRST + len(world.held["ada-train"].leaves) - 1
    world.faults = [Fault("drop", last)]
    world.lease_s = 0.2  # the holder waits in vain for credit until its lease is over
    assert_refused(world, world.visit("ada"), "peer-failed", "peer-timeout")


def swapped(hand: Hand) -> list[bytes]:
    frames = hand.frames()
    return [frames[1], frames[0], *frames[2:]]


def repeated(hand: Hand) -> list[bytes]:
    frames = hand.frames()
    return [frames[0], frames[0], *frames[2:]]


@pytest.mark.parametrize("frames", [swapped, repeated])
def test_frames_in_another_order(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, frames: Any
) -> None:
    assert_refused(world, world.visit("ada", sending(frames)), "frame-order")
    no_order(monkeypatch)
    assert world.visit("ada", sending(frames)).verified
    whole = world.trained[-1][1] == world.plain["ada-train"]
    assert whole is (frames is swapped)  # repeated: a record was never brought


def test_a_frame_of_the_visit_before(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = world.raw_frames(world.visit("ada"))
    world.trained.clear()
    replayed = sending(lambda hand: [old[0], *hand.frames()[1:]])
    assert_refused(world, world.visit("ada", replayed), "authentication")
    no_mac(monkeypatch)
    assert_refused(world, world.visit("ada", replayed), "foreign-buffer")
    no_place(monkeypatch)
    assert world.visit("ada", replayed).verified


def too_short(hand: Hand) -> Any:
    hand.introduce()
    hand.send(hand.frames()[:-1])
    return hand.finish(hand.total)


def test_truncation_before_the_last(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(world, world.visit("ada", too_short), "unexpected-frame")
    no_count(monkeypatch)
    assert world.visit("ada", too_short).verified
    assert world.trained[-1][1] != world.plain["ada-train"]


@pytest.mark.parametrize("told", [{"frames": 3}, {"cargo_bytes": 1}])
def test_a_false_count(world: VisitWorld, told: dict[str, int]) -> None:
    def bring(hand: Hand) -> Any:
        hand.introduce()
        hand.send(hand.frames())
        return hand.finish(**told)

    assert_refused(world, world.visit("ada", bring), "cargo-truncated")


def test_a_record_of_another_holder(world: VisitWorld) -> None:
    foreign = world.held["bern-train"].source.record(0)
    spliced = sending(lambda h: [h.frame(0, bytes_=foreign), *h.frames()[1:]])
    assert_refused(world, world.visit("ada", spliced), "authentication")
    assert world.visit("bern").verified  # where it belongs it opens


def test_a_record_from_elsewhere_in_the_file(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    spliced = sending(lambda h: [h.frame(0, source=1), *h.frames()[1:]])
    assert_refused(world, world.visit("ada", spliced), "authentication")
    genuine = RecordOpener.open_in

    def anywhere(
        opener: Any, slot: Any, place: Any, record: Any, **options: Any
    ) -> Any:
        """Mutant: the index is not bound."""
        if record == world.held["ada-train"].source.record(1):
            place = replace(place, index=1, sequence=1)
        return genuine(opener, slot, place, record, **options)

    monkeypatch.setattr(RecordOpener, "open_in", anywhere)
    assert_refused(world, world.visit("ada", spliced), "content-mismatch")
    no_leaf(monkeypatch)
    assert world.visit("ada", spliced).verified


def other_content(world: VisitWorld) -> Bring:
    """The holder of the key seals other rows under it, and shows the agreed leaves."""
    plain = bytes(len(world.plain["ada-train"]))
    card = write_sealed_file(
        world.folder / "other.sealed",
        [plain],
        key=world.consortium.keys["ada-train"],
        total_bytes=len(plain),
        record_bytes=RECORD_BYTES,
    )
    other = world.files.enter_context(RawSealedFile(card.path))

    def bring(hand: Hand) -> Any:
        hand.introduce(header=other.header_bytes)
        numbers = range(hand.total)
        hand.send(hand.frame(n, bytes_=other.record(n)) for n in numbers)
        return hand.finish()

    return bring


def test_other_content_under_the_same_key(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring = other_content(world)
    assert_refused(world, world.visit("ada", bring), "content-mismatch")
    no_leaf(monkeypatch)
    assert world.visit("ada", bring).verified
    assert world.trained[-1][1] != world.plain["ada-train"]


def test_leaves_that_were_not_agreed_on(world: VisitWorld) -> None:
    held = world.held["ada-train"]
    world.held["ada-train"] = replace(held, leaves=held.leaves[::-1])
    assert_refused(world, world.visit("ada"), "content-mismatch")
