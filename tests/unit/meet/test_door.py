"""The two ends of a meeting over the relay's real port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import PeerError, RefusedError
from sealift.events import Event, discard
from sealift.meet.connection import (
    MAX_EACH,
    PROOF_S,
    Conversation,
    MeetingListener,
    guest_name,
    places,
)
from sealift.meet.guest import expect_host, guest_endpoint
from sealift.meet.invitation import HOST, Invitation
from sealift.meet.messages import Ask, BringCard
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import connect
from tests.sim.invited import NAMES, MetHost

WAIT_S = 60.0


class Opened:
    """A host behind a port."""

    def __init__(self, folder: Path) -> None:
        self.met = MetHost(folder)
        self.told: list[Event] = []
        book, meeting = self.met.host.book, self.met.meeting
        self.relay = Relay.listen(registry=places(book, meeting))
        client = self.relay.local_client(HOST)
        MeetingListener(client, self.met.host, sink=self.told.append).start()

    def invite(self, name: str) -> Invitation:
        """The line with the port's address."""
        host, port = self.relay.address
        invitation = self.met.invite(name)
        return Invitation(
            meeting=invitation.meeting,
            name=name,
            host=invitation.host,
            secret=invitation.secret,
            expires_s=invitation.expires_s,
            addresses=("127.0.0.1:1", f"{host}:{port}"),
        )

    def wait_for(self, kind: str) -> Event:
        deadline = time.monotonic() + WAIT_S
        while True:
            found = [each for each in self.told if each.kind == kind]
            if found:
                return found[0]
            assert time.monotonic() < deadline, self.told
            time.sleep(0.01)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    host = Opened(tmp_path)
    with host.relay:
        yield host


def test_a_guest_comes_in_and_comes_back_under_its_own_name(opened: Opened) -> None:
    north, invitation = create_identity("north"), opened.invite("north")
    with Conversation(invitation, north, dial_s=0.2) as host:
        assert not host.contested
        assert isinstance(host.say(Ask()), BringCard)
    with Conversation(invitation, north, dial_s=0.2) as host:
        assert guest_name("north") in opened.relay.names
        assert isinstance(host.say(Ask()), BringCard)
    assert opened.wait_for("guest.arrived").fields["name"] == "north"


def test_a_thief_is_refused_and_the_party_is_told(opened: Opened) -> None:
    invitation = opened.invite("north")
    with Conversation(invitation, create_identity("north"), dial_s=0.2) as host:
        with pytest.raises(RefusedError) as caught:
            Conversation(invitation, create_identity("north"), dial_s=0.2)
        assert caught.value.code == "invitation-used-twice"
        assert isinstance(host.say(Ask()), BringCard)
    assert opened.wait_for("guest.refused").fields["reason"] == "invitation-used-twice"


def test_all_come_at_once(opened: Opened) -> None:
    found: list[object] = []

    def come(name: str) -> None:
        identity = create_identity(name)
        with Conversation(opened.invite(name), identity, dial_s=0.2) as host:
            found.append(host.say(Ask()))

    threads = [threading.Thread(target=come, args=(name,)) for name in NAMES]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert [type(each) for each in found] == [BringCard] * 3


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"body":{},"type":"ask"}', b'{"body":{},"type":"finished"}']
)
def test_whoever_talks_nonsense_ends_its_own_session_alone(
    opened: Opened, raw: bytes
) -> None:
    invitation, north = opened.invite("north"), create_identity("north")
    with (
        RelayClient.dial(opened.relay.address, "new-1") as client,
        connect(
            client.open(HOST),
            guest_endpoint(invitation, north),
            expect_host(invitation),
        ) as session,
    ):
        session.send(raw)
        with pytest.raises(PeerError):
            session.receive(WAIT_S)
    assert opened.wait_for("guest.gone")
    with Conversation(invitation, north, dial_s=0.2) as host:
        assert isinstance(host.say(Ask()), BringCard)


def test_nobody_there_is_an_error_of_the_peer(opened: Opened) -> None:
    invitation = opened.invite("north")
    opened.relay.close()
    with pytest.raises(PeerError):
        Conversation(invitation, create_identity("north"), dial_s=0.2)


def test_parties_behind_one_address_meet(tmp_path: Path) -> None:
    """More than strangers may be from one address: who proved itself is vouched for."""
    met = MetHost(tmp_path, names=tuple(f"party-{number}" for number in range(8)))
    registry = places(met.host.book, met.meeting)
    relay = Relay.listen(registry=replace(registry, strangers_each=2))
    with relay, ExitStack() as stack:
        client = relay.local_client(HOST)
        MeetingListener(client, met.host, sink=discard, vouch=relay.vouch).start()
        host, port = relay.address
        for name in met.names:
            here = replace(met.invite(name), addresses=(f"{host}:{port}",))
            entered = Conversation(here, create_identity(name), dial_s=5.0)
            told = stack.enter_context(entered).say(Ask())
            assert isinstance(told, BringCard)


def test_one_party_has_a_few_conversations_at_a_time(tmp_path: Path) -> None:
    """A party that is in keeps no other one out, however often it comes."""
    met = MetHost(tmp_path)
    registry = places(met.host.book, met.meeting)
    with Relay.listen(registry=registry) as relay:
        client = relay.local_client(HOST)
        MeetingListener(client, met.host, sink=discard, vouch=relay.vouch).start()
        host, port = relay.address
        identities = {name: create_identity(name) for name in ("north", "east")}

        def comes(name: str) -> Conversation:
            here = replace(met.invite(name), addresses=(f"{host}:{port}",))
            return Conversation(here, identities[name], dial_s=5.0)

        with ExitStack() as stack:
            for _ in range(MAX_EACH):
                talk = stack.enter_context(comes("north"))
                assert isinstance(talk.say(Ask()), BringCard)
            with comes("north") as one_more, pytest.raises(PeerError):
                one_more.say(Ask())
            with comes("east") as other:
                assert isinstance(other.say(Ask()), BringCard)
        deadline = time.monotonic() + WAIT_S
        while True:  # its places are free again once it is gone
            with comes("north") as again:
                try:
                    assert isinstance(again.say(Ask()), BringCard)
                    break
                except PeerError:
                    assert time.monotonic() < deadline


def test_a_stranger_that_proves_nothing_loses_its_place(tmp_path: Path) -> None:
    met = MetHost(tmp_path)
    registry = places(met.host.book, met.meeting)
    assert registry.proof_s == PROOF_S == 60.0  # as SECURITY says
    north = create_identity("north")
    with Relay.listen(registry=replace(registry, proof_s=0.2)) as relay:
        client = relay.local_client(HOST)
        MeetingListener(client, met.host, sink=discard, vouch=relay.vouch).start()
        host, port = relay.address
        here = replace(met.invite("north"), addresses=(f"{host}:{port}",))
        with (
            RelayClient.dial(relay.address, "new-1") as stranger,
            Conversation(here, north, dial_s=5.0) as proven,
        ):
            with pytest.raises(PeerError):
                stranger.accept(WAIT_S)
            assert isinstance(proven.say(Ask()), BringCard)
            assert "new-1" not in relay.names


def test_a_session_without_a_proof_ends(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealift.meet.connection.ARRIVE_S", 0.1)
    invitation, north = opened.invite("north"), create_identity("north")
    with (
        RelayClient.dial(opened.relay.address, "new-1") as client,
        connect(
            client.open(HOST),
            guest_endpoint(invitation, north),
            expect_host(invitation),
        ) as session,
        pytest.raises(PeerError),
    ):
        session.receive(WAIT_S)
    assert opened.wait_for("guest.gone").fields["reason"] == "peer-timeout"
