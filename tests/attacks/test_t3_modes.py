"""T3, completed: what a past holder can do with its keys, in every mode of crossing.

The attacker was the holder of a visit and keeps every key that it ever had, the one that
was handed to it included; it records the next visit and ratchets forward. Where records
are sealed again under a fresh key, and where they cross as at home, it opens nothing;
under a vendor's ratchet the same attack reads the next holder's rows. And nobody but all
parties together can bring a visit into a weaker mode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.level import Level
from sealift.crypto.kdf import Label, expand
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.demo.attacks.follower import Recorded, follow
from sealift.demo.attacks.visits import RecordingSession
from sealift.errors import MalformedError, PolicyError, UnavailableError
from sealift.release.agreement import Mode
from sealift.release.receipt import SignedReceipt
from sealift.travel import accelerator as host
from sealift.travel import load, reseal
from sealift.travel.holder import Provisioning, check_lease
from sealift.travel.lease import Lease, LeaseTerms, SignedLease
from sealift.travel.orchestrator import Orchestrator
from sealift.travel.ratchet import Ratchet, advance
from sealift.travel.roster import Roster
from sealift.travel.settings import TravelSettings
from sealift.travel.visitkeys import Exporting, VisitKeys
from tests.sim.hands import Bring, Hand
from tests.sim.visit_world import MODES, Outcome, VisitWorld
from tests.vectors.test_hkdf import hkdf_expand

FRESH: tuple[Mode, ...] = ("at-rest", "visit")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def provision(hand: Hand, session: RecordingSession) -> SignedReceipt:
    """The real holder, through something that takes notes."""
    held, signed = hand.held, hand.signed
    provisioning = Provisioning(
        held, signed, clock=hand.clock, check_heads=lambda _: None
    )
    return provisioning.provision(session)


def recorded_visit(
    world: VisitWorld, owner: str
) -> tuple[RecordingSession, Outcome, Recorded]:
    """One honest visit, and everything that its holder had and the line showed."""
    sessions: list[RecordingSession] = []

    def bring(hand: Hand) -> SignedReceipt:
        sessions.append(RecordingSession(hand.session, hand.lease))
        return provision(hand, sessions[0])

    outcome = world.visit(owner, bring)
    assert outcome.verified, outcome.ended
    target = Recorded(
        outcome.lease.lease,
        world.resource(f"{owner}-train"),
        tuple(world.raw_frames(outcome)),
        sessions[0].header,
    )
    return sessions[0], outcome, target


def attack(world: VisitWorld, next_holder: str = "bern") -> bytes:
    """What a past holder opens of the next visit, with all that it has."""
    session, outcome, _ = recorded_visit(world, "ada")
    _, _, target = recorded_visit(world, next_holder)
    return follow([*session.keys, *outcome.secrets.values()], target)


@pytest.mark.parametrize("mode", FRESH)
@pytest.mark.parametrize("next_holder", ["ada", "bern"])
def test_a_past_holder_opens_nothing(
    world: VisitWorld, mode: Mode, next_holder: str
) -> None:
    world.mode = mode
    assert attack(world, next_holder) == b""


def test_under_the_ratchet_it_reads_the_rows(world: VisitWorld) -> None:
    world.mode = "ratchet"
    assert attack(world) == world.plain["bern-train"]


def test_the_ratchet_does_not_run_backwards(world: VisitWorld) -> None:
    world.mode = "ratchet"
    _, _, before = recorded_visit(world, "ada")
    session, outcome, _ = recorded_visit(world, "bern")
    assert follow([*session.keys, *outcome.secrets.values()], before) == b""


@pytest.mark.parametrize("mode", MODES)
def test_the_visits_own_keys_open_it(world: VisitWorld, mode: Mode) -> None:
    """The control: the search finds the rows where the key is the right one."""
    world.mode = mode
    session, _, target = recorded_visit(world, "bern")
    keys = [*session.keys, world.consortium.keys["bern-train"]]
    assert follow(keys, target) == world.plain["bern-train"]


def test_the_data_key_opens_nothing_that_was_sealed_again(world: VisitWorld) -> None:
    world.mode = "visit"
    _, _, target = recorded_visit(world, "bern")
    assert follow([world.consortium.keys["bern-train"]], target) == b""


def test_a_key_that_does_not_change_is_noticed(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: record keys of mode ``visit`` come from a chain, not from sessions."""
    chain, keys = Ratchet(), dict[bytes, bytes]()

    def rotate(session: Exporting, lease: Lease) -> VisitKeys:
        if lease.digest.raw not in keys:
            keys[lease.digest.raw] = chain.take().reveal(TOKEN)
        frame = session.export(Label.VISIT_FRAME, lease.digest.raw)
        record = SecretKey(keys[lease.digest.raw])
        return VisitKeys(frame, record, lease.digest.raw)

    world.mode = "visit"
    for module in (load, reseal):
        monkeypatch.setattr(module, "keys_of_session", rotate)
    session, outcome, _ = recorded_visit(world, "ada")
    _, _, target = recorded_visit(world, "bern")
    chained = SecretKey(keys[outcome.lease.lease.digest.raw])
    assert follow([*session.keys, chained], target) == world.plain["bern-train"]


def test_one_step_is_the_vendors() -> None:
    key = SecretKey(bytes(range(32)))
    digest = hashlib.sha256(bytes(range(32))).digest()
    expected = hkdf_expand(digest, Label.RATCHET.value.encode(), 32)
    assert advance(key).reveal(TOKEN) == expand(key, Label.RATCHET).reveal(TOKEN)
    assert advance(key).reveal(TOKEN) == expected


def test_each_visit_gets_another_key_of_the_chain() -> None:
    chain = Ratchet()
    first, second = chain.take(), chain.take()
    assert advance(first).reveal(TOKEN) == second.reveal(TOKEN)
    assert first.reveal(TOKEN) != second.reveal(TOKEN)


# what crosses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("first_row", "rows"), [(0, 20), (3, 1), (7, 9), (19, 1)])
def test_rows_arrive_as_leased(
    world: VisitWorld, mode: Mode, first_row: int, rows: int
) -> None:
    world.mode = mode
    outcome = world.visit("ada", offer=world.offer("ada", first_row, rows))
    assert outcome.verified
    start = first_row * 40
    assert world.trained[-1][1] == world.plain["ada-train"][start : start + rows * 40]
    assert world.untouched()
    assert world.pools[-1].scrubbed


@pytest.mark.parametrize("mode", MODES)
def test_the_receipt_names_the_mode(world: VisitWorld, mode: Mode) -> None:
    world.mode = mode
    outcome = world.visit("ada")
    assert outcome.receipt is not None
    assert outcome.receipt.receipt.mode == mode


def test_a_receipt_of_another_mode_is_not_taken(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = host.HostedVisit._hand_receipt

    def lie(visit: host.HostedVisit, *rest: object) -> None:
        assert visit._lease is not None
        visit._lease = replace(visit._lease, crossing="visit")
        original(visit, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(host.HostedVisit, "_hand_receipt", lie)
    outcome = world.visit("ada")
    assert outcome.receipt is None
    assert outcome.holder_error is not None
    assert outcome.holder_error.code == "foreign-receipt"


def sealed_again_records(world: VisitWorld, change: Callable[[bytes], bytes]) -> Bring:
    """A holder that brings other rows than agreed, properly sealed for the visit."""

    def bring(hand: Hand) -> SignedReceipt:
        opened = reseal.RecordOpener.open_in

        def other(self: object, slot: object, *rest: object, **more: object) -> object:
            plaintext = bytes(opened(self, slot, *rest, **more))  # type: ignore[arg-type]
            return memoryview(change(plaintext))

        class Poisoned(reseal.ResealedSource):
            def __init__(self, *args: object) -> None:
                super().__init__(*args)  # type: ignore[arg-type]
                self._opener.open_in = other.__get__(self._opener)  # type: ignore[method-assign]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reseal, "ResealedSource", Poisoned)
            return provision(hand, RecordingSession(hand.session, hand.lease))

    return bring


def test_other_rows_sealed_again_are_not_the_agreed_content(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.mode = "visit"

    def flip(row: bytes) -> bytes:
        return row[:-1] + bytes([row[-1] ^ 1])

    outcome = world.visit("ada", sealed_again_records(world, flip))
    assert outcome.reason == "content-mismatch"
    assert world.trained == []
    assert world.pools[-1].scrubbed
    leaves = load.VerifiedLeaves
    monkeypatch.setattr(leaves, "verify", lambda *_: None)  # the mutant
    assert world.visit("ada", sealed_again_records(world, flip)).verified
    assert world.trained[-1][1] != world.plain["ada-train"]


def test_a_record_leaves_once(world: VisitWorld) -> None:
    key = SecretKey.generate()
    held = world.held["ada-train"]
    assert held.data_key is not None
    source = reseal.ResealedSource(held.source, held.data_key, VisitKeys(key, key))
    source.record(2)
    for index in (2, 0):
        with pytest.raises(Exception, match="has left already"):
            source.record(index)
    assert len(source.record(3)) == source.record_length(3)
    assert not any(source._slot._memory)
    source.close()
    assert not any(source._sealed)


@pytest.mark.parametrize("mode", ["visit", "ratchet"])
def test_without_its_key_at_home_a_holder_says_so(
    world: VisitWorld, mode: Mode
) -> None:
    world.mode = mode
    world.held["ada-train"] = replace(world.held["ada-train"], data_key=None)
    outcome = world.visit("ada")
    assert isinstance(outcome.holder_error, UnavailableError)
    assert outcome.holder_error.code == "no-key"
    assert world.trained == []


# nobody chooses a weaker mode alone (rule M8)


def terms(world: VisitWorld, *modes: Mode) -> LeaseTerms:
    agreement = world.consortium.agreement
    return LeaseTerms(
        orchestrator=agreement.party(agreement.operator).sign,
        job="job",
        agreement=world.agreement.digest,
        accelerator=world.endpoint.instance.public_key,
        longest_s=60.0,
        modes=modes,
    )


def granted(world: VisitWorld, mode: Mode) -> SignedLease:
    world.mode = mode
    offer = world.offer("ada")
    return world.grant(offer, world.host(offer, lambda *_: pytest.fail("nobody")))


@pytest.mark.parametrize("mode", ["visit", "ratchet"])
def test_a_mode_that_is_not_agreed_is_refused_at_both_ends(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    signed = granted(world, mode)
    with pytest.raises(PolicyError) as refusal:
        check_lease(signed, world.held, holder="ada", terms=terms(world, "at-rest"))
    assert refusal.value.code == "mode-not-agreed"
    assert check_lease(signed, world.held, holder="ada", terms=terms(world, mode))
    travel = replace(world.consortium.agreement.travel, modes=("at-rest",))
    only = replace(world.consortium.agreement, travel=travel)
    world.consortium = replace(world.consortium, agreement=only)
    world.agreement = world.consortium.verified()
    world.endpoint = world.start_accelerator()
    assert world.visit("ada").reason == "mode-not-agreed"
    monkeypatch.setattr(host, "verify_lease", lambda lease, _: lease.lease)  # mutant
    assert world.visit("ada").verified


def test_a_mode_that_was_changed_after_signing_is_refused(world: VisitWorld) -> None:
    signed = granted(world, "at-rest")
    weaker = SignedLease(replace(signed.lease, crossing="ratchet"), signed.signature)
    with pytest.raises(Exception, match="authentication") as refusal:
        check_lease(weaker, world.held, holder="ada", terms=terms(world, *MODES))
    assert refusal.value.code == "authentication"  # type: ignore[attr-defined]


def test_an_orchestrator_does_not_start_in_a_mode_that_is_not_agreed(
    world: VisitWorld,
) -> None:
    travel = replace(world.consortium.agreement.travel, modes=("at-rest",))
    only = replace(world.consortium.agreement, travel=travel)
    consortium = replace(world.consortium, agreement=only)
    orchestrator = Orchestrator(
        consortium.verified(),
        TravelSettings(mode="visit"),
        roster=Roster(clock=world.clock),
        signer=consortium.identities[only.operator],
        job="job",
        clock=world.clock,
        sink=lambda _: None,
    )
    with pytest.raises(PolicyError) as refusal:
        orchestrator.run(None, lambda _: None)  # type: ignore[arg-type]
    assert refusal.value.code == "mode-not-agreed"


def test_the_ratchet_needs_development_and_nothing_else(world: VisitWorld) -> None:
    agreement = world.consortium.agreement
    with pytest.raises(MalformedError) as refusal:
        replace(agreement, accept=(Level.TEE,))
    assert refusal.value.field == "travel.modes"
    with pytest.raises(MalformedError) as refusal:
        replace(agreement, accept=(Level.TEE, Level.DEVELOPMENT))
    assert refusal.value.field == "accept"  # development stands alone, if at all
    travel = replace(agreement.travel, modes=("at-rest", "visit"))
    assert replace(agreement, accept=(Level.TEE,), travel=travel)
