"""Strangers at the relay who take no answer, or go on under a name that is another's by now."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing, suppress

import pytest

from sealift.errors import PeerError, SealiftError
from sealift.session.relay import server as relay_module
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import EnvelopeKind, RelayEnvelope, fresh_circuit
from sealift.session.relay.server import Relay
from tests.attacks.test_relay_strangers import (
    CHUNK,
    REGISTRY,
    SOUTH,
    dial,
    stranger,
    wait_until,
    waiting_bytes,
)


def test_answers_that_a_stranger_does_not_take_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks and takes no answer would else have the one who answers held."""
    monkeypatch.setattr(relay_module, "PARTY_BYTES", 4 << 20)
    with ExitStack() as stack:
        relay = stack.enter_context(Relay.listen(registry=REGISTRY))
        north = stack.enter_context(dial(relay, "holder-north"))
        south = stack.enter_context(dial(relay, "holder-south", SOUTH))
        asking = stranger(relay, "src")
        stack.callback(asking.close)
        for _ in range(8):
            opening = RelayEnvelope(EnvelopeKind.OPEN, fresh_circuit(), "holder-north")
            asking.send(opening.encode())

        circuits = [north.accept(60) for _ in range(8)]

        def answer() -> None:
            with suppress(SealiftError):
                for circuit in circuits:
                    for _ in range(3):
                        circuit.send(CHUNK)

        threading.Thread(target=answer, daemon=True).start()
        wait_until(lambda: waiting_bytes(relay) > relay_module.ADDRESS_BYTES)
        asking.send(opening.encode())  # and is heard no more
        wait_until(
            lambda: [each.address for each in list(relay._held)] == ["127.0.0.1"]
        )
        with closing(south.open("holder-north", 60)) as asked:
            asked.send(b"still here?")
            answering = north.accept(60)
            answering.send(answering.receive(60))
            assert asked.receive(60) == b"still here?"


def test_whoever_had_a_name_before_it_was_vouched_for_speaks_under_it_no_more() -> None:
    """Brokers keep places for the accelerator, by the name that the relay tells them."""
    with ExitStack() as stack:
        relay = stack.enter_context(Relay.listen(registry=REGISTRY))
        broker = stack.enter_context(dial(relay, "broker-north"))
        early, genuine = (
            stack.enter_context(RelayClient.dial(relay.address, "accelerator"))
            for _ in range(2)
        )
        early.open("broker-north", 60)  # control: nobody was vouched for yet
        assert broker.accept(60).peer_name == "accelerator"
        relay.vouch(genuine.open("broker-north", 60).id)
        broker.accept(60)
        with pytest.raises(PeerError) as caught:
            early.open("broker-north", 60)
        assert caught.value.code == "name-taken"
        genuine.open("broker-north", 60)
        assert broker.accept(60).peer_name == "accelerator"
