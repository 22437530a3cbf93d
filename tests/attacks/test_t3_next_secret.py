"""T3: the secrets of one visit open nothing of the next one.

The attacker was the holder of a visit, keeps every secret of it, and records the whole
line of the next visit. It tries each key, each key ratcheted forward in the way of the
vendor (SHA-256, then HKDF), and its own data keys. The right keys do open (the control),
and against keys that are rotated by such a ratchet the same attack wins (the mutant).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sealift.channel.record.opener import RecordOpener, StreamOpener
from sealift.crypto.hash import sha256
from sealift.crypto.keys import TOKEN, Label, SecretKey, derive
from sealift.errors import AuthenticationError
from sealift.session.frames import FrameKind
from sealift.session.transcript import KeySchedule, Side
from sealift.travel.visit.lease import Frame, parse_frame
from tests.sim.hands import sending
from tests.sim.outcome import Outcome
from tests.sim.visit_world import VisitWorld

STEPS = 3


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def ratchet(key: SecretKey) -> SecretKey:
    """The next key of a public one-way ratchet."""
    return derive(SecretKey(sha256(key.reveal(TOKEN))), Label.VISIT_FRAME)


def keys_of_session(master: SecretKey, outcome: Outcome) -> Iterator[SecretKey]:
    """Every key of a session, were this its master secret; the rest is public."""
    schedule = KeySchedule.__new__(KeySchedule)
    schedule._master, schedule.th2 = master, outcome.th2
    yield from (schedule.traffic_key(side) for side in Side)
    yield schedule.export(Label.VISIT_FRAME, outcome.lease.body.digest.raw)


def guesses(secrets: Iterable[SecretKey], target: Outcome) -> Iterator[SecretKey]:
    """Every key that the attacker has or can make."""
    for key in secrets:
        for _ in range(STEPS):
            yield key
            yield derive(key, Label.VISIT_FRAME, target.lease.body.digest.raw)
            yield from keys_of_session(key, target)
            key = ratchet(key)


def opened(key: SecretKey, target: Outcome, header: bytes) -> set[str]:
    """What of a recorded visit this key opens."""
    found = set()
    for frame in target.wire:
        kind, payload = FrameKind(frame[0]), frame[1:]
        try:
            if kind is FrameKind.HEADER:
                StreamOpener(key, payload)
                found.add("messages")
            elif kind is FrameKind.RAW:
                parse_frame(payload).authenticate(key, target.lease.body.digest)
                found.add("frames")
        except AuthenticationError:
            continue
    try:
        RecordOpener(key, header)
    except AuthenticationError:
        return found
    return found | {"records"}


def attack(
    world: VisitWorld, secrets: Iterable[SecretKey], target: Outcome
) -> set[str]:
    """What all the attacker's keys open together."""
    header = world.held[target.offer.resource].source.header_bytes
    found: set[str] = set()
    for key in guesses(secrets, target):
        found |= opened(key, target, header)
    return found


@pytest.mark.parametrize("next_holder", ["ada", "bern"])
def test_a_visit_says_nothing_about_the_next(
    world: VisitWorld, next_holder: str
) -> None:
    before, target = world.visit("ada"), world.visit(next_holder)
    assert target.verified
    own = world.consortium.keys["ada-train"]
    known = [*before.secrets.values(), own]
    # Its own rows it may open for ever: the data key is not the visit's.
    expected = {"records"} if next_holder == "ada" else set()
    assert attack(world, known, target) == expected


def test_the_right_keys_open_everything(world: VisitWorld) -> None:
    world.visit("ada")
    target = world.visit("bern")
    keys = target.secrets
    assert attack(world, [keys["visit"]], target) == {"frames"}
    assert attack(world, [keys["send"]], target) == {"messages"}
    assert attack(world, [keys["receive"]], target) == {"messages"}
    assert attack(world, [keys["master"]], target) == {"messages", "frames"}
    data_key = world.consortium.keys["bern-train"]
    assert attack(world, [data_key], target) == {"records"}


def test_a_ratchet_is_followed(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, masters = [SecretKey.generate()], dict[bytes, bytes]()

    def rotate(schedule: KeySchedule, shared: SecretKey, th2: bytes) -> None:
        if th2 not in masters:
            chain.append(ratchet(chain[-1]))
            masters[th2] = chain[-1].reveal(TOKEN)
        schedule._master, schedule.th2 = SecretKey(masters[th2]), th2

    monkeypatch.setattr(KeySchedule, "__init__", rotate)
    before, target = world.visit("ada"), world.visit("bern")
    found = attack(world, before.secrets.values(), target)
    assert found == {"messages", "frames"}


def test_the_last_visits_key_makes_no_frame(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = world.visit("ada").secrets["visit"]
    with_old_key = sending(
        lambda hand: [hand.frame(number, key=old) for number in range(hand.total)]
    )
    world.trained.clear()
    outcome = world.visit("ada", with_old_key)
    assert outcome.reason == "authentication"
    assert world.trained == []
    monkeypatch.setattr(Frame, "authenticate", lambda *_: None)  # the mutant
    assert world.visit("ada", with_old_key).verified
