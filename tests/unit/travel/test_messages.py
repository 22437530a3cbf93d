"""Messages, live sessions and peer policies."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.codec import encode
from sealift.errors import MalformedError, PeerError, PolicyError
from sealift.ids import Role, VisitId
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.peers import (
    accelerator_names,
    expect_accelerator,
    expect_broker,
    expect_data_owner,
    expect_holder,
    expect_orchestrator,
    relay_name,
)
from sealift.travel.visit.messages import (
    Cargo,
    Credit,
    Failed,
    VisitPhase,
    Withdrawn,
    message_name,
    parse_message,
    receive_message,
    send_message,
)
from tests.sim.hands import WAIT_S
from tests.sim.utterances import ANY
from tests.sim.visit_parts import FakeClock
from tests.unit.travel.leases import LEASE
from tests.worlds.consortium import make_consortium


class Loop:
    """A session that hears itself."""

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()

    def send(self, message: bytes) -> None:
        self.queue.append(message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        return self.queue.popleft()


@pytest.mark.parametrize(
    "message",
    [Credit(3), Cargo(2, 80), VisitPhase(VisitId(bytes(16)), "load"), Failed("a", "b")],
)
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    loop = Loop()
    send_message(loop, message)
    assert receive_message(loop, type(message), timeout_s=1) == message


def test_names_are_distinct() -> None:
    assert len({message_name(kind) for kind in ANY}) == len(ANY)
    assert message_name(VisitPhase) == "visit-phase"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"credit"',
        b'{"body":{"frames":1}}',
        b'{"body":{"frames":1},"more":1,"type":"credit"}',
        b'{"body":{"frames":"1"},"type":"credit"}',
        b'{"body":{},"type":"credit"}',
        b'{"type":"credit","body":{"frames":1}}',
        b'{"body":{"frames":1},"type":"unheard-of"}',
        b'{"body":{"frames":1},"type":["credit"]}',
        encode({"type": "withdrawn", "body": Withdrawn(VisitId(bytes(16)))}),
    ],
)
def test_anything_else_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_message(raw, (Credit,))


def test_a_refusal_stands_in_for_every_answer() -> None:
    loop = Loop()
    for _ in range(2):
        send_message(loop, Failed("no-such-resource", "no key was released for that"))
    with pytest.raises(PeerError, match="no key was released"):
        receive_message(loop, Credit, timeout_s=1)
    assert isinstance(receive_message(loop, Credit, Failed, timeout_s=1), Failed)


def somebody(name: str) -> Any:
    """A session that tells who it is, and that it was closed."""
    peer = SimpleNamespace(role=Role.HOLDER, name=name)
    session = SimpleNamespace(peer=peer, closed=False)
    session.close = lambda: setattr(session, "closed", True)
    return session


def test_whose_handshake_took_longer_than_a_later_one_replaces_nobody() -> None:
    live = LiveSessions(clock=FakeClock())
    first, second = somebody("ada"), somebody("ada")
    live.enter(second, 2)
    live.enter(first, 1)
    assert (first.closed, second.closed) == (True, False)
    assert live.find(Role.HOLDER, "ada") is second


def test_a_newcomer_replaces_the_session_before() -> None:
    live = LiveSessions(clock=FakeClock())
    first, second = somebody("ada"), somebody("ada")
    live.enter(first)
    assert live.wait_for(Role.HOLDER, "ada", 0) is first
    live.enter(second)
    assert first.closed
    live.leave(first)  # too late: it is not the one that is here
    assert live.find(Role.HOLDER, "ada") is second
    assert live.find(Role.BROKER, "ada") is None
    live.leave(second)
    with pytest.raises(PeerError) as refusal:
        live.wait_for(Role.HOLDER, "ada", 0)
    assert refusal.value.code == "peer-missing"


def test_nobody_waits_for_who_has_left() -> None:
    live = LiveSessions(clock=FakeClock())
    wanted = [(Role.HOLDER, "ada"), (Role.HOLDER, "bern")]
    live.enter(somebody("ada"))
    live.await_no_more(wanted[1], PolicyError("bern has left", code="owner-left"))
    live.gather(wanted, WAIT_S)
    with pytest.raises(PeerError) as refusal:
        live.wait_for(*wanted[1], WAIT_S)
    assert refusal.value.code == "owner-left"


def test_who_waits_hears_what_ended_the_job() -> None:
    live = LiveSessions(clock=FakeClock())
    live.end(PolicyError("bern has left", code="owner-left"))
    # Whether or not somebody is missing besides: it may have been the last.
    live.await_no_more((Role.HOLDER, "bern"), PeerError("gone", code="owner-left"))
    for wanted in ((Role.ACCELERATOR, "accelerator-0"), (Role.HOLDER, "bern")):
        with pytest.raises(PolicyError) as refusal:
            live.gather([wanted], 0.0)
        assert refusal.value.code == "owner-left"


def test_a_roster_closes_everybody() -> None:
    live = LiveSessions(clock=FakeClock())
    sessions = [somebody("ada"), somebody("bern")]
    for session in sessions:
        live.enter(session)
    live.close()
    assert all(session.closed for session in sessions)


def test_each_role_meets_only_whom_the_agreement_names() -> None:
    consortium = make_consortium()
    agreement = consortium.verified()
    keys = {name: found.public_key for name, found in consortium.identities.items()}
    holder = expect_holder(agreement, replace(LEASE, holder="bern"))
    assert (holder.roles, holder.identities) == (
        frozenset({Role.HOLDER}),
        {"bern": keys["bern"]},
    )
    assert holder.require_identity
    assert expect_orchestrator(agreement).names == {"cleo"}
    assert expect_broker(agreement, "ada").identities == {"ada": keys["ada"]}
    assert expect_data_owner(agreement).identities == keys
    accelerator = expect_accelerator(agreement, "accelerator-1", keys["ada"])
    assert accelerator.names == {"accelerator-1"}
    assert accelerator.require_evidence
    assert accelerator.instance == keys["ada"]
    assert accelerator.appraiser.accept == agreement.accept


def test_names_on_the_relay() -> None:
    assert relay_name(Role.HOLDER, "ada") == "holder-ada"
    assert accelerator_names(2) == ("accelerator-0", "accelerator-1")
