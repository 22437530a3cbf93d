"""What somebody gets who is not invited, or is invited twice, from the real host.

Each attack has its control: the same steps without the lie come to an agreement
(``tests/unit/meet``). A host that lies meets the real owner in ``test_lying_hosts``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import AuthenticationError, MalformedError, RefusedError
from sealift.meet.guest import expect_host, guest_endpoint
from sealift.meet.host import NOT_INVITED
from sealift.meet.invitation import Prover, prove_invited
from sealift.meet.messages import (
    Agree,
    Arrive,
    Ask,
    Bring,
    BringCard,
    Over,
    Read,
    Wait,
)
from sealift.meet.question import words_of
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
    assert session.take(Arrive(card, proof)) == NOT_INVITED
    with pytest.raises(MalformedError) as caught:
        session.take(Ask())
    assert caught.value.code == "bad-message"


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
