"""An agreement takes 64 parties, so the relay of its job has room for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError
from sealift.events import Event
from sealift.ids import Role
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.session.relay.server import Relay
from sealift.travel.orchestrator.job import Orchestrator
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.peers import (
    ORCHESTRATOR,
    accelerator_names,
    registry_of,
    relay_name,
)
from sealift.travel.settings import JobSettings, RunSettings, TravelSettings
from tests.worlds.consortium import make_consortium

OWNERS = tuple(f"ward-{number:02}" for number in range(63))


def test_an_accelerator_keeps_two_circuits_to_each_of_63_owners() -> None:
    """For its keys and for their lease; all come at one time, from one address."""
    consortium = make_consortium((*OWNERS, "host"), ("train",))
    agreement = consortium.verified()
    registry = registry_of(agreement)
    with ExitStack() as stack:
        relay = stack.enter_context(Relay.listen(registry=registry))
        orchestrator = stack.enter_context(relay.local_client(ORCHESTRATOR))

        def dial(name: str, owner: str) -> RelayClient:
            identity = consortium.identities[owner]
            prove = prover(identity, agreement.digest, name)
            return RelayClient.dial(relay.address, name, 60.0, prove)

        names = [
            (relay_name(role, owner), owner)
            for owner in OWNERS
            for role in (Role.BROKER, Role.HOLDER)
        ]
        with ThreadPoolExecutor(len(names)) as pool:
            clients = list(pool.map(lambda each: dial(*each), names))
        for each in clients:
            stack.callback(each.close)
        accelerator = stack.enter_context(
            RelayClient.dial(relay.address, accelerator_names()[0])
        )
        accelerator.open(ORCHESTRATOR)
        relay.vouch(orchestrator.accept(60).id)  # its evidence was accepted
        for name, _ in names[::2]:
            for _ in range(2):
                accelerator.open(name)
        met = [each.open(accelerator.name) for each in clients[1::2]]
        heard = [accelerator.accept(60) for _ in met]
        assert {each.peer_name for each in heard} == {name for name, _ in names[1::2]}


@pytest.mark.parametrize("on_missing", ["wait", "skip"])
def test_of_64_parties_of_which_60_never_come_all_are_accounted_for(
    on_missing: Any,
) -> None:
    """One line with names and a number; where nobody is waited for, an event for each."""
    verified = make_consortium((*OWNERS, "host"), ("train",)).verified()
    here = {(Role.ACCELERATOR, "accelerator-0")}
    here |= {(Role.HOLDER, owner) for owner in OWNERS[:4]}
    told: list[Event] = []
    coming = Coming(here)
    orchestrator = Orchestrator(
        verified,
        JobSettings(
            travel=TravelSettings(on_missing=on_missing), run=RunSettings(gather_s=5.0)
        ),
        sessions=coming.sessions,
        signer=SigningKey.generate(),
        job="digits",
        clock=coming.clock,
        sink=told.append,
        hopes=lambda stops: True,
    )
    if on_missing == "wait":
        with pytest.raises(PeerError) as caught:
            orchestrator._gather()
        assert caught.value.code == "peer-missing"
        assert "holder ward-04" in str(caught.value)
        assert "and 56 more" in str(caught.value)
    else:
        orchestrator._gather()
        missing = [e.fields["holder"] for e in told if e.kind == "holder.missing"]
        assert missing == [*OWNERS[4:], "host"]
    assert coming.clock() == 5.0  # for all of them together


def test_nobody_is_missing_while_others_still_arrive() -> None:
    """64 parties that start on busy machines take long; one that comes and goes does not count."""
    wanted = [(Role.HOLDER, owner) for owner in OWNERS]
    coming = Coming(set(), later=wanted)
    coming.sessions.gather(wanted, 5.0)
    assert coming.clock() == len(wanted) * 4.0
    assert all(coming.sessions.find(*each) for each in wanted)
    restless = Coming(set(), later=wanted[:1] * 50, leaving=True)
    restless.sessions.gather(wanted, 5.0)
    assert restless.clock() == 9.0


class Coming:
    """Live sessions of those that are here and of those that come, one every four seconds."""

    def __init__(
        self,
        here: Iterable[tuple[Role, str]],
        later: Iterable[tuple[Role, str]] = (),
        *,
        leaving: bool = False,
    ) -> None:
        self._now_s, self._later, self._leaving = 0.0, list(later), leaving
        self._last: Any = None
        self.sessions = LiveSessions(clock=self.clock)
        changed: Any = self.sessions._changed
        changed.wait = self._wait
        for each in here:
            self._enter(each)

    def clock(self) -> float:
        return self._now_s

    def _wait(self, seconds: float) -> None:
        assert self._now_s < 1000, "it waits for ever"
        if not self._later or seconds < 4.0:
            self._now_s += seconds
            return
        self._now_s += 4.0
        if self._leaving and self._last:
            self.sessions.leave(self._last)
        self._last = self._enter(self._later.pop(0))

    def _enter(self, key: tuple[Role, str]) -> Any:
        role, name = key
        peer = SimpleNamespace(role=role, name=name)
        session: Any = SimpleNamespace(peer=peer, close=lambda: None)
        self.sessions.enter(session)
        return session
