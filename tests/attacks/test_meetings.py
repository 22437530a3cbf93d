"""What somebody gets who is not invited, is invited twice, or is a host that lies.

Each attack has its control: the same steps without the lie come to an agreement
(``tests/unit/meet``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import AuthenticationError, PolicyError, RefusedError, SealiftError
from sealift.meet.guest import expect_host, guest_endpoint
from sealift.meet.messages import (
    Agree,
    Arrive,
    Ask,
    Bring,
    BringCard,
    Check,
    Over,
    Read,
    Signed,
    Wait,
)
from sealift.meet.proof import Prover, prove_invited
from sealift.meet.terms import sign_card
from sealift.meet.words import words_of
from sealift.release.agreement.code import measure_bundle
from tests.sim.invited import NAMES, MetGuest, MetHost


@pytest.fixture
def host(tmp_path: Path) -> MetHost:
    return MetHost(tmp_path)


def until(kind: type, *guests: MetGuest) -> None:
    """All of them were told this last."""
    for _ in range(30):
        for each in guests:
            if not (each.told and isinstance(each.told[-1], kind)):
                each.step()
        if all(isinstance(each.told[-1], kind) for each in guests):
            return
    raise AssertionError([each.told[-1] for each in guests])


def test_a_man_in_the_middle_has_not_the_hosts_key(
    host: MetHost, tmp_path: Path
) -> None:
    north = MetGuest(host, "north")
    (tmp_path / "other").mkdir()
    between = MetHost(tmp_path / "other")
    between.meeting = host.meeting  # even with the mail
    north.host = between
    with pytest.raises(RefusedError, match="identity key"):
        north.arrive()


def test_a_proof_from_another_session_is_worth_nothing(host: MetHost) -> None:
    north = MetGuest(host, "north")
    assert north.identity is not None
    endpoint = guest_endpoint(north.invitation, north.identity)
    first, _ = host.meet(endpoint, expect_host(north.invitation))
    replayed = north.guest.arrive(first.th2)
    _, session = host.meet(endpoint, expect_host(north.invitation))
    told = session.take(replayed)
    assert isinstance(told, Over)
    assert told.code == "not-invited"
    assert host.host.book.seat("north").card is None  # type: ignore[union-attr]


@pytest.mark.parametrize("lie", ["name", "key", "secret"])
def test_all_that_is_wrong_has_one_answer(host: MetHost, lie: str) -> None:
    north = MetGuest(host, "north")
    own = create_identity("north")
    card, secret = own.card, north.invitation.secret
    endpoint = guest_endpoint(north.invitation, own)
    if lie == "name":
        card = replace(card, name="west")
    elif lie == "key":
        card = create_identity("north").card
    else:
        secret = MetGuest(host, "east").invitation.secret
    ours, session = host.meet(endpoint, expect_host(north.invitation))
    proof = prove_invited(secret, Prover.GUEST, ours.th2, card)
    assert session.take(Arrive(card, proof)) == Over(
        "not-invited", "", "the invitation is not valid here, or it is over"
    )
    with pytest.raises(SealiftError, match="nobody arrived"):
        session.take(Ask())


def test_a_spent_invitation_takes_no_second_key_also_after_a_restart(
    host: MetHost,
) -> None:
    north = MetGuest(host, "north")
    north.arrive()
    host.restart()
    north.restart()
    thief = MetGuest(host, "north", identity=create_identity("north"))
    told = thief.arrive()
    assert isinstance(told, Over)
    assert told.code == "invitation-used-twice"
    until(BringCard, north)
    north.restart()
    until(Wait, north)
    assert north.told[-1] == Wait(("east", "south"), contested=True)


def test_nobody_brings_or_says_yes_for_another(host: MetHost) -> None:
    north, east, south = (MetGuest(host, name) for name in NAMES)
    until(BringCard, north, east, south)
    assert north.session is not None
    east.step()
    assert east.kept_card is not None
    with pytest.raises(AuthenticationError):
        north.session.take(Bring(east.kept_card))
    assert north.identity is not None
    stolen = replace(east.kept_card.body, party=north.identity.card)
    with pytest.raises(AuthenticationError):
        north.session.take(Bring(replace(east.kept_card, body=stolen)))
    until(Read, north, east, south)
    east.step()
    assert east.kept_consent is not None
    with pytest.raises(AuthenticationError):
        north.session.take(Agree(east.kept_consent))


Change = Callable[[Any, MetGuest], Any]


def _other_rule(told: Read, guest: MetGuest) -> Read:
    """The owner's own rule, softened: signed by nobody."""
    place = NAMES.index(guest.name)
    card = told.terms.cards[place]
    softer = replace(card.body.rule, max_uses=0)
    cards = list(told.terms.cards)
    cards[place] = replace(card, body=replace(card.body, rule=softer))
    return Read(replace(told.terms, cards=tuple(cards)))


def _other_key(told: Read, guest: MetGuest) -> Read:
    """An invented party in the place of this one."""
    place = NAMES.index(guest.name)
    invented = create_identity(guest.name)
    body = replace(told.terms.cards[place].body, party=invented.card)
    cards = list(told.terms.cards)
    cards[place] = sign_card(body, invented)
    return Read(replace(told.terms, cards=tuple(cards)))


def _other_code(told: Read, guest: MetGuest) -> Read:
    """Another job than the one that was shown when the card was made."""
    declared = replace(told.terms.declaration, job='plan = "travel"\n')
    cards = [
        replace(card, body=replace(card.body, declaration=declared.digest))
        for card in told.terms.cards
    ]
    return Read(replace(told.terms, declaration=declared, cards=tuple(cards)))


def _without_one(told: Read, guest: MetGuest) -> Read:
    """One party fewer than was declared."""
    others = [card for card in told.terms.cards if card.body.party.name != "south"]
    return Read(replace(told.terms, cards=tuple(others)))


@pytest.mark.parametrize("change", [_other_rule, _other_key, _other_code, _without_one])
def test_terms_that_were_changed_are_not_put_before_anybody(
    host: MetHost, change: Change
) -> None:
    guests = [MetGuest(host, name) for name in NAMES]
    until(Read, *guests)
    north = guests[0]
    north.told[-1] = change(north.told[-1], north)
    with pytest.raises((PolicyError, AuthenticationError)):
        north.step()
    assert not north.asked


def test_the_check_of_ones_own_card_is_what_refuses(
    host: MetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: terms that only hang together would be asked about."""
    guests = [MetGuest(host, name) for name in NAMES]
    until(Read, *guests)
    north = guests[0]
    north.told[-1] = _other_key(north.told[-1], north)  # type: ignore[arg-type]
    north.told[-1].terms.verify()  # type: ignore[union-attr]
    monkeypatch.setattr(
        "sealift.meet.guest.Guest.read", lambda self, terms, declared, own: terms
    )
    north.step()
    assert north.asked


def _softer_yes(told: Check, guest: MetGuest) -> Check:
    other = next(name for name in NAMES if name != guest.name)
    signed = told.consents[other]
    fewer = replace(signed.body.resources[0], rows=41, total_bytes=41 * 16)
    forged = replace(signed, body=replace(signed.body, resources=(fewer,)))
    return replace(told, consents={**told.consents, other: forged})


def _not_everybody(told: Check, guest: MetGuest) -> Check:
    other = next(name for name in NAMES if name != guest.name)
    left = {name: each for name, each in told.consents.items() if name != other}
    return replace(told, consents=left)


def _without_mine(told: Check, guest: MetGuest) -> Check:
    other = next(name for name in NAMES if name != guest.name)
    swapped = {**told.consents, guest.name: told.consents[other]}
    return replace(told, consents=swapped)


@pytest.mark.parametrize("change", [_softer_yes, _not_everybody, _without_mine])
def test_an_agreement_of_other_parts_is_not_signed(
    host: MetHost, change: Change
) -> None:
    guests = [MetGuest(host, name) for name in NAMES]
    until(Check, *guests)
    north = guests[0]
    north.told[-1] = change(north.told[-1], north)
    with pytest.raises((PolicyError, AuthenticationError)):
        north.step()
    assert north.kept_agreement is None


def test_an_agreement_that_others_signed_otherwise_is_not_kept(host: MetHost) -> None:
    guests = [MetGuest(host, name) for name in NAMES]
    until(Signed, *guests)
    north = guests[0]
    signed = north.told[-1]
    assert isinstance(signed, Signed)
    later = replace(signed.agreement.agreement, not_after=1_900_000_000)
    north.told[-1] = Signed(replace(signed.agreement, agreement=later))
    with pytest.raises(PolicyError, match="another agreement"):
        north.step()
    missing = {k: v for k, v in signed.agreement.signatures.items() if k != "east"}
    north.told[-1] = Signed(replace(signed.agreement, signatures=missing))
    with pytest.raises(PolicyError, match="east"):
        north.step()
    assert north.verified is None


def test_other_files_than_declared_are_noticed(host: MetHost) -> None:
    north = MetGuest(host, "north")
    until(BringCard, north)
    told = north.told[-1]
    assert isinstance(told, BringCard)
    north.told[-1] = replace(told, files={**told.files, "recipe.py": b"import os\n"})
    with pytest.raises(PolicyError, match="files"):
        north.step()


@pytest.mark.parametrize(
    "path",
    ["../x.py", "/tmp/x.py", "net/../../x.py", "./x.py", "a//x.py", "a\\..\\x.py"],
)
def test_no_file_is_written_outside_of_the_recipes_folder(
    host: MetHost, path: str
) -> None:
    files = {"recipe.py": b"x = 1\n", path: b"evil\n"}
    host.redeclare(code=measure_bundle(files, "recipe.py"))
    north = MetGuest(host, "north")
    until(BringCard, north)
    told = north.told[-1]
    assert isinstance(told, BringCard)
    north.told[-1] = replace(told, files=files)
    with pytest.raises(PolicyError, match="outside of its folder"):
        north.step()


def test_two_worlds_have_two_sets_of_words(host: MetHost, tmp_path: Path) -> None:
    """A host that invents a party for each: only comparing words finds it."""
    guests = [MetGuest(host, name) for name in NAMES]
    until(Read, *guests)
    (tmp_path / "other").mkdir()
    world = MetHost(tmp_path / "other", identity=host.identity)
    others = [MetGuest(world, name) for name in NAMES]
    others[0].identity = guests[0].identity
    until(Read, *others)
    here, there = guests[0].told[-1], others[0].told[-1]
    assert isinstance(here, Read)
    assert isinstance(there, Read)
    assert words_of(here.terms.digest) != words_of(there.terms.digest)
