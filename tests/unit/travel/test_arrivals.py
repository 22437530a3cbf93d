"""Where visits meet their holders: over a real relay, several at one time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sealift.errors import PeerError, SealiftError
from sealift.release.agreement.statements import SignedStatement, sign_statement
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import Session
from sealift.travel.accelerator import visits as room
from sealift.travel.accelerator.visits import HolderArrivals
from sealift.travel.visit.lease import Lease
from sealift.travel.visit.messages import Said, receive_message, send_message
from tests.sim.hands import WAIT_S
from tests.sim.owners import NOW_S
from tests.sim.visit_world import VisitWorld
from tests.unit.travel.leases import LEASE


@dataclass
class Place:
    """A relay, an accelerator that meets, and holders that come."""

    world: VisitWorld
    relay: Relay
    link: RelayClient
    arrivals: HolderArrivals
    heard: list[SignedStatement] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def come(self, owner: str, *, relay_name: str = "") -> threading.Thread:
        """A holder opens a circuit and shows who it is."""

        def connect() -> None:
            name = relay_name or f"holder-{owner}"
            with self.relay.local_client(name) as link:
                try:
                    circuit = link.open("accelerator-0")
                    with self.world.connect(circuit, owner) as session:
                        session.receive(WAIT_S)
                except SealiftError:
                    return

        thread = threading.Thread(target=connect, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def meet(self, owner: str, timeout_s: float = WAIT_S) -> threading.Thread:
        """A visit waits for its holder."""

        def wait() -> None:
            self.sessions[owner] = self.arrivals(lease_of(owner), timeout_s)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread


def lease_of(owner: str) -> Lease:
    return replace(LEASE, holder=owner)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with (
        VisitWorld(tmp_path) as world,
        Relay.listen() as relay,
        relay.local_client("accelerator-0") as link,
    ):
        heard: list[SignedStatement] = []
        arrivals = HolderArrivals(
            link, world.endpoint, world.agreement, time.monotonic, heard=heard.append
        )
        arrivals.start()
        made = Place(world, relay, link, arrivals, heard)
        yield made
        for session in made.sessions.values():
            session.close()
        for thread in made.threads:
            thread.join(WAIT_S)


def test_two_visits_wait_and_each_gets_its_own(place: Place) -> None:
    waiting = [place.meet("ada"), place.meet("bern")]
    place.come("bern")
    place.come("ada")
    for each in waiting:
        each.join(WAIT_S)
    met = {owner: session.peer.name for owner, session in place.sessions.items()}
    assert met == {"ada": "ada", "bern": "bern"}


def test_a_holder_may_be_early(place: Place) -> None:
    place.come("bern")
    place.come("ada")
    time.sleep(0.2)
    for owner in ("ada", "bern"):
        place.meet(owner).join(WAIT_S)
        assert place.sessions[owner].peer.name == owner


def test_but_not_for_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "EARLY_S", 0.05)
    early = place.come("ada")
    time.sleep(0.2)
    with pytest.raises(PeerError) as failure:
        place.arrivals(lease_of("ada"), 0.2)
    assert failure.value.code == "holder-missing"
    early.join(WAIT_S)
    assert not early.is_alive()


def test_nobody_comes(place: Place) -> None:
    with pytest.raises(PeerError, match="ada did not") as failure:
        place.arrivals(lease_of("ada"), 0.1)
    assert failure.value.code == "holder-missing"


def test_who_is_no_holder_is_turned_away(place: Place) -> None:
    turned_away = place.come("ada", relay_name="stranger")
    turned_away.join(WAIT_S)
    assert not turned_away.is_alive()


def test_a_name_on_the_relay_is_no_proof(place: Place) -> None:
    """Bern under ada's name fails the handshake; ada is still waited for."""
    liar = place.come("bern", relay_name="holder-ada")
    waiting = place.meet("ada")
    liar.join(WAIT_S)
    assert not liar.is_alive()
    place.come("ada")
    waiting.join(WAIT_S)
    assert place.sessions["ada"].peer.name == "ada"


def test_the_newest_circuit_of_a_holder_counts(place: Place) -> None:
    """A holder that was started again is not kept waiting behind its former self."""
    with place.relay.local_client("holder-ada") as link:
        former = link.open("accelerator-0")
        time.sleep(0.1)
    place.come("ada")
    time.sleep(0.2)
    place.meet("ada").join(WAIT_S)
    assert place.sessions["ada"].peer.name == "ada"
    with pytest.raises(PeerError):
        former.receive(1.0)


def tell(place: Place, owner: str, name: str) -> SignedStatement:
    """An owner comes to say that it leaves, while no visit waits for it."""
    agreement, identity = (
        place.world.agreement,
        place.world.consortium.identities[owner],
    )
    said = sign_statement("leave", agreement.agreement, identity, NOW_S)
    with (
        place.relay.local_client(name) as link,
        place.world.connect(link.open("accelerator-0"), owner) as session,
    ):
        send_message(session, Said(said))
        assert receive_message(session, Said, timeout_s=WAIT_S).statement == said
    return said


def test_whoever_leaves_is_heard_at_once(place: Place) -> None:
    said = tell(place, "ada", "tell-ada")
    assert place.heard == [said]


def test_a_stranger_is_not(place: Place) -> None:
    """The name on the relay opens no door: its party's identity does."""
    elsewhere = place.world.folder / "elsewhere"
    elsewhere.mkdir()
    stranger = VisitWorld(elsewhere)
    with (
        stranger,
        place.relay.local_client("tell-ada") as link,
        pytest.raises(SealiftError),
        stranger.connect(link.open("accelerator-0"), "ada") as session,
    ):
        session.receive(WAIT_S)
    assert place.heard == []


def test_whoever_waits_hears_that_the_relay_is_gone(place: Place) -> None:
    failures: list[PeerError] = []

    def wait() -> None:
        try:
            place.arrivals(lease_of("ada"), WAIT_S)
        except PeerError as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    place.link.close()
    waiting.join(WAIT_S)
    (failure,) = failures
    assert failure.code != "holder-missing"
