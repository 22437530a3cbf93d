"""A meeting from invitation to agreement: restarts at any point, changes, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sealift.cli.meeting.host import _require_all_willing
from sealift.cli.meeting.place import open_folder
from sealift.crypto.identity import create_identity
from sealift.errors import MalformedError, PolicyError, RefusedError
from sealift.ids import MAX_RANKS
from sealift.meet.connection import Attendance
from sealift.meet.host import NOT_INVITED
from sealift.meet.messages import REASONS, Decline, Over, Read, Wait, Welcome
from sealift.meet.owner import MeetingProgress, OwnerMeeting
from sealift.meet.terms import sign_card
from tests.sim.invited import NAMES, UNTIL_S, MetGuest, MetHost, walk
from tests.worlds.consortium import OUTPUT


@pytest.fixture
def host(tmp_path: Path) -> MetHost:
    return MetHost(tmp_path)


def everybody(host: MetHost) -> list[MetGuest]:
    return [MetGuest(host, name) for name in NAMES]


def test_three_parties_and_a_host_agree(host: MetHost) -> None:
    guests = everybody(host)
    walk(*guests)
    digests = {each.verified.digest for each in guests if each.verified}
    assert len(digests) == 1
    agreement = guests[0].verified.agreement  # type: ignore[union-attr]
    assert agreement.rows_at_home
    assert agreement.data_owners == NAMES
    assert (agreement.model_owner, agreement.operator) == ("host", "host")
    assert [len(each.asked) for each in guests] == [1, 1, 1]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whoever_starts_again_goes_on(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Killed between any two messages, host or guest, with the answer lost or not."""
    host = MetHost(tmp_path_factory.mktemp("meeting"))
    guests = everybody(host)
    for _ in range(data.draw(st.integers(0, 30), label="steps")):
        each = data.draw(st.sampled_from(guests))
        each.step()
        if data.draw(st.booleans(), label="guest killed"):
            each.restart()
        if data.draw(st.booleans(), label="host killed"):
            host.restart()
            for one in guests:
                one.restart()
    walk(*guests)
    assert len({each.verified.digest for each in guests if each.verified}) == 1
    assert all(len({terms.digest for terms in each.asked}) == 1 for each in guests)


def test_a_changed_recipe_asks_everybody_again(host: MetHost) -> None:
    guests = everybody(host)
    while not all(isinstance(each.told and each.told[-1], Wait) for each in guests[:2]):
        for each in guests[:2]:
            each.step()
    third = guests[2]
    while not isinstance(third.told and third.told[-1], Read):
        third.step()
    for each in guests[:2]:  # they say yes, and wait for the third
        while each.kept_consent is None:
            each.step()
    host.redeclare(job='plan = "ddp"\n\n[training]\nepochs = 9\n')
    for each in guests:
        each.restart()
    walk(*guests)
    assert [len({t.digest for t in each.asked}) for each in guests] == [2, 2, 1]
    assert len({each.verified.digest for each in guests if each.verified}) == 1


def test_a_no_is_told_to_all_by_name_and_may_be_taken_back(host: MetHost) -> None:
    guests = everybody(host)
    guests[1].answer = False
    walk(*guests)
    over = Over("meeting-declined", "east", REASONS["below-floor"])
    assert [each.told[-1] for each in guests] == [over] * 3
    guests[1].answer = True
    for each in guests[::-1]:
        each.restart()
        each.step()
    walk(*guests)
    assert all(each.verified for each in guests)


def test_a_no_has_no_text_of_its_own() -> None:
    for code in REASONS:
        assert Decline(code).code == code
    with pytest.raises(MalformedError) as caught:
        Decline("one of 40 rows is too old")
    assert caught.value.code == "bad-meeting"


def test_columns_that_do_not_fit_are_told_to_all(host: MetHost) -> None:
    guests = everybody(host)
    guests[2].columns = {"x": "does not fit"}
    walk(*guests)
    assert guests[0].told[-1] == Over("columns-differ", "south", "x")
    guests[2].columns = {"x": "fits"}
    for each in guests:
        each.restart()
    guests[2].kept_card = None
    host.restart()
    assert isinstance(guests[2].arrive(), Welcome)


def test_what_makes_no_agreement_is_told_to_all(tmp_path: Path) -> None:
    host = MetHost(tmp_path, changes={"output": replace(OUTPUT, model_to=("nobody",))})
    guests = everybody(host)
    walk(*guests)
    codes = {each.told[-1].code for each in guests if isinstance(each.told[-1], Over)}
    assert codes == {"bad-agreement"}


def test_an_invitation_is_used_by_one_key(host: MetHost) -> None:
    north = MetGuest(host, "north")
    assert isinstance(north.step(), Welcome)
    thief = MetGuest(host, "north", identity=create_identity("north"))
    told = thief.arrive()
    assert isinstance(told, Over)
    assert told.code == "invitation-used-twice"
    north.restart()
    again = north.arrive()
    assert isinstance(again, Welcome)
    assert again.contested


def test_an_invitation_that_is_over_lets_nobody_in(host: MetHost) -> None:
    host.now_s = UNTIL_S
    told = MetGuest(host, "north").arrive()
    assert told == NOT_INVITED


def test_a_card_about_other_columns_is_its_party_s_no(host: MetHost) -> None:
    """It would not cross to the others, who hear of it; the party may come back."""
    guests = everybody(host)
    guests[2].columns = {f"{number:04}{'x' * 240}": "fits" for number in range(4000)}
    walk(*guests)
    last = [each.told[-1] for each in guests]
    assert all(isinstance(each, Over) for each in last)
    assert {(each.code, each.party) for each in last} == {("meeting-declined", "south")}  # type: ignore[union-attr]
    assert host.host.book.seat("south").brought is None  # type: ignore[union-attr]
    guests[2].columns = {"x": "fits"}
    for each in guests[::-1]:
        each.restart()
        each.step()
    walk(*guests)
    assert all(each.verified for each in guests)


def test_a_yes_that_is_too_long_is_its_party_s_no(host: MetHost) -> None:
    guests = everybody(host)
    guests[2].resource = {
        "schema": {"fields": "x" * host.host.declaration.consent_bytes}
    }
    walk(*guests)
    last = guests[0].told[-1]
    assert isinstance(last, Over)
    assert (last.code, last.party) == ("meeting-declined", "south")
    assert host.host.book.seat("south").consent is None  # type: ignore[union-attr]


def test_a_small_table_is_named_and_another_one_may_come(tmp_path: Path) -> None:
    """Of a party whose own machine did not notice; the host goes on."""
    host = MetHost(tmp_path, changes={"output": replace(OUTPUT, min_owner_rows=30)})
    guests = everybody(host)
    guests[1].resource = {"rows": 29, "total_bytes": 29 * 16}
    walk(*guests)
    told = [each.told[-1] for each in guests]
    assert {(each.code, each.party) for each in told} == {("bad-agreement", "east")}  # type: ignore[union-attr]
    guests[1].resource, guests[1].kept_terms = {}, None
    for each in guests[::-1]:
        each.restart()
        each.step()
    walk(*guests)
    assert all(each.verified for each in guests)


def test_a_schema_that_could_not_cross_is_not_declared(host: MetHost) -> None:
    fields = [
        {"name": f"f{number}", "dtype": "float32", "description": "x" * 400}
        for number in range(200)
    ]
    many = tuple(f"party-{number}" for number in range(16))
    with pytest.raises(MalformedError) as caught:
        replace(host.host.declaration, schema={"fields": fields}, guests=many)
    assert caught.value.code == "bad-meeting"
    replace(host.host.declaration, schema={"fields": fields[:20]}, guests=many)


def test_terms_are_about_the_declared_columns(host: MetHost) -> None:
    """A host that lets another card through shows it to nobody's person."""
    guests = everybody(host)
    walk(*guests)
    terms = guests[0].asked[0]
    south, identity = terms.cards[2].body, guests[2].identity
    assert identity is not None
    other = sign_card(replace(south, columns={"y": "fits"}), identity)
    with pytest.raises(PolicyError, match="columns"):
        replace(terms, cards=(*terms.cards[:2], other)).verify()


def test_a_host_names_no_more_parties_than_there_can_be() -> None:
    """Its guests' screens show them again every second."""
    names = tuple(f"party-{number}" for number in range(MAX_RANKS + 1))
    assert Wait(names[1:], contested=False).parties == names[1:]
    with pytest.raises(MalformedError) as caught:
        Wait(names, contested=False)
    with pytest.raises(MalformedError, match="too many"):
        Wait((), contested=False, away=names)
    assert caught.value.field == "parties"


def test_who_left_without_signing_is_told_to_the_others(host: MetHost) -> None:
    """Not of who dials again at once, nor of who has signed, nor to itself."""
    connected, now_s = {"new-1", "guest-east"}, 0.0
    here = Attendance(lambda: connected, lambda: now_s)
    host.host = replace(host.host, away=here.away)
    north, east, south = everybody(host)
    for each, name in ((north, "new-1"), (east, "guest-east")):
        here.arrive(each.name, name)
        while not isinstance(each.told and each.told[-1], Wait):
            each.step()
    connected.remove("guest-east")
    assert host.host.gone() == ()
    now_s = 3.0
    assert host.host.gone() == ("east",)
    north.step()
    assert north.told[-1] == Wait(("south",), contested=False, away=("east",))
    assert host.host.next_for("east") == Wait(("south",), contested=False)
    connected.add("guest-east")
    assert host.host.gone() == ()
    walk(north, east, south)
    connected.clear()
    assert host.host.away() == frozenset()
    now_s = 6.0
    assert host.host.away() == frozenset(NAMES[:2])
    assert host.host.gone() == ()


@pytest.mark.parametrize("met", [False, True])
def test_an_owner_waits_for_its_host_and_says_once_that_it_left(
    host: MetHost, tmp_path: Path, capsys: pytest.CaptureFixture[str], met: bool
) -> None:
    invitation = replace(host.invite("north"), addresses=("127.0.0.1:1",))
    place, slept = open_folder(tmp_path, "north"), iter(range(4))

    def sleep(_seconds: float) -> None:
        if next(slept, None) is None:
            raise InterruptedError

    owner = OwnerMeeting(
        invitation,
        place,
        create_identity("north"),
        (),
        MeetingProgress(invitation=invitation.to_text()),
        clock=iter(range(1, 99, 2)).__next__,
        sleep=sleep,
    )
    owner._met = met
    with pytest.raises(InterruptedError):
        owner.attend()
    said = capsys.readouterr().err
    assert said.count("host is not connected any more, and not all have signed") == met


class Relayed:
    """The host's relay: who is connected, in turn."""

    def __init__(self, *names: set[str], then: Any = None) -> None:
        self._names, self._then = list(names), then

    @property
    def names(self) -> set[str]:
        found = self._names.pop(0)
        if not self._names and self._then:
            self._then()
        return found


def test_a_host_ends_once_the_others_have_heard_a_no(tmp_path: Path) -> None:
    """It waits for nobody who has left; who comes back meanwhile is asked again."""
    book = MetHost(tmp_path).host.book
    talk: Any = SimpleNamespace(wait_for=lambda what: None)
    relay: Any = Relayed()
    _require_all_willing(book, relay, talk)  # nobody said no, and nobody is waited for
    book.decline("south", REASONS["meeting-declined"])
    relay = Relayed({"host", "guest-north"}, {"host"})
    with pytest.raises(RefusedError) as caught:
        _require_all_willing(book, relay, talk)
    assert caught.value.code == "meeting-declined"
    assert "south" in str(caught.value)
    relay = Relayed(
        {"host", "guest-south"}, {"host"}, then=lambda: book.decline("south", None)
    )
    _require_all_willing(book, relay, talk)
