"""Connections that somebody read from before the relay did, and that left meanwhile."""

from __future__ import annotations

import socket
import time

from sealift.channel.transport.tcp import LENGTH_BYTES
from sealift.session.relay.envelope import EnvelopeKind, RelayEnvelope
from sealift.session.relay.server import Relay


def registration(name: str) -> bytes:
    frame = RelayEnvelope(EnvelopeKind.REGISTER, name=name).encode()
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


def test_who_left_before_it_was_heard_takes_no_name() -> None:
    """Else the name would be taken for as long as the relay runs, by nobody."""
    with Relay(None) as relay:
        for number in range(20):
            here, there = socket.socketpair()
            there.close()
            relay.attach(here, registration(f"late-{number}"))
        end = time.monotonic() + 300
        while (relay._peers or relay._begun) and time.monotonic() < end:
            time.sleep(0.01)
        assert relay.names == frozenset()
        with relay.local_client("late-0") as link:
            assert relay.names == {link.name}


def test_who_stays_is_heard() -> None:
    """Control."""
    with Relay(None) as relay:
        here, there = socket.socketpair()
        relay.attach(here, registration("early"))
        there.settimeout(5)
        assert there.recv(LENGTH_BYTES)
        assert relay.names == {"early"}
        there.close()
