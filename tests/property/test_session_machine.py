"""State machines: a session under any interleaving, and the relay's switchboard."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.session.relay.envelope import (
    EnvelopeKind,
    RelayEnvelope,
    credit,
    fresh_circuit,
)
from sealift.session.relay.switchboard import Switchboard
from tests.sim.attested import Cast, both
from tests.sim.examples import examples

CAST = Cast()
WINDOW_BYTES = 1024
SIDES = st.sampled_from([0, 1])


class SessionMachine(RuleBasedStateMachine):
    """What is received is what was sent, in order, until somebody closes."""

    @initialize()
    def start(self) -> None:
        self.ends = CAST.sessions()
        self.sent: tuple[deque[tuple[bool, bytes]], ...] = (deque(), deque())
        self.epoch = 0
        self.open = True

    @precondition(lambda self: self.open)
    @rule(side=SIDES, message=st.binary(max_size=64), raw=st.booleans())
    def send(self, side: int, message: bytes, raw: bool) -> None:
        end = self.ends[side]
        (end.send_raw if raw else end.send)(message)
        self.sent[side].append((raw, message))

    @precondition(lambda self: self.open)
    @rule(side=SIDES)
    def receive(self, side: int) -> None:
        expected = self.sent[1 - side]
        if not expected:
            with pytest.raises(PeerError, match="in time"):
                self.ends[side].receive_any(0)
            return
        incoming = self.ends[side].receive_any(1)
        assert (incoming.raw, incoming.payload) == expected.popleft()

    @precondition(lambda self: self.open and self.epoch < 3)
    @rule()
    def rekey(self) -> None:
        here, there = self.ends
        expected = self.sent[0]
        here_done = lambda: (here.rekey(60), here.send(b"renewed"))  # noqa: E731
        wanted = len(expected) + 1
        _, got = both(here_done, lambda: [there.receive_any(5) for _ in range(wanted)])
        received = [(incoming.raw, incoming.payload) for incoming in got]
        assert received == [*expected, (False, b"renewed")]
        expected.clear()
        self.epoch += 1

    @precondition(lambda self: self.open)
    @rule(side=SIDES)
    def close(self, side: int) -> None:
        self.ends[side].close()
        other, expected = self.ends[1 - side], self.sent[side]
        got = [other.receive_any(1) for _ in expected]
        assert [(incoming.raw, incoming.payload) for incoming in got] == [*expected]
        with pytest.raises(PeerError, match="the peer closed the session"):
            other.receive_any(1)
        self.open = False

    @precondition(lambda self: not self.open)
    @rule(side=SIDES)
    def use_after_the_end(self, side: int) -> None:
        with pytest.raises(PeerError):
            self.ends[side].send(b"")
        with pytest.raises(PeerError):
            self.ends[side].receive(0)

    @invariant()
    def both_are_in_the_same_epoch(self) -> None:
        if hasattr(self, "ends"):
            assert {end.key_epoch for end in self.ends} == {self.epoch}

    def teardown(self) -> None:
        for end in getattr(self, "ends", ()):
            end.close()


class SwitchboardMachine(RuleBasedStateMachine):
    """Any envelopes from anybody: bounded, routed to the circuit's ends only."""

    @initialize()
    def start(self) -> None:
        self.board = Switchboard(window_bytes=WINDOW_BYTES)
        self.alive: dict[int, str] = {}
        self.circuits: dict[bytes, tuple[int, int]] = {}
        self.ids = [fresh_circuit() for _ in range(4)]

    def handle(self, connection: int, envelope: bytes) -> None:
        try:
            deliveries = self.board.handle(connection, envelope)
        except SealiftError:
            self.drop(connection)
            return
        for delivery in deliveries:
            assert delivery.connection in self.alive
            self.follow(connection, delivery.connection, delivery.frame)

    def follow(self, sender: int, receiver: int, frame: bytes) -> None:
        """Check a delivery against our own picture of who may talk to whom."""
        envelope = RelayEnvelope.parse(frame)
        ends = self.circuits.get(envelope.circuit)
        if envelope.kind is EnvelopeKind.OPEN:
            assert ends is None
            assert envelope.name == self.alive[sender]
            self.circuits[envelope.circuit] = (sender, receiver)
        elif envelope.kind in (EnvelopeKind.FRAME, EnvelopeKind.CREDIT):
            assert ends is not None
            assert {sender, receiver} == set(ends)
        elif envelope.kind is EnvelopeKind.CLOSE:
            assert receiver in (ends or self.closed)
            if ends is not None:
                self.closed = ends
                del self.circuits[envelope.circuit]

    @rule(connection=st.integers(0, 4), name=st.sampled_from("abc"))
    def register(self, connection: int, name: str) -> None:
        if connection in self.alive:
            return
        envelope = RelayEnvelope(EnvelopeKind.REGISTER, name=name).encode()
        if name in self.alive.values():
            with pytest.raises(PeerError, match="taken"):
                self.board.register(connection, envelope, None)
            return
        self.board.register(connection, envelope, None)
        self.alive[connection] = name

    @precondition(lambda self: self.alive)
    @rule(
        choice=st.integers(0, 4),
        kind=st.sampled_from(EnvelopeKind),
        circuit=st.integers(0, 3),
        name=st.sampled_from(["", "a", "b", "c", "d"]),
        payload=st.one_of(st.binary(max_size=8), st.just(bytes(WINDOW_BYTES // 2))),
    )
    def speak(
        self, choice: int, kind: EnvelopeKind, circuit: int, name: str, payload: bytes
    ) -> None:
        connection = list(self.alive)[choice % len(self.alive)]
        envelope = RelayEnvelope(kind, self.ids[circuit], name, payload)
        self.handle(connection, envelope.encode())

    @precondition(lambda self: self.circuits)
    @rule(choice=st.integers(0, 3), back=st.integers(1, WINDOW_BYTES))
    def give_credit(self, choice: int, back: int) -> None:
        circuit, ends = list(self.circuits.items())[choice % len(self.circuits)]
        self.handle(ends[1], credit(circuit, back))

    @precondition(lambda self: self.alive)
    @rule(choice=st.integers(0, 4))
    def leave(self, choice: int) -> None:
        self.drop(list(self.alive)[choice % len(self.alive)])

    def drop(self, connection: int) -> None:
        del self.alive[connection]
        told = {delivery.connection for delivery in self.board.drop(connection)}
        ended = [ends for ends in self.circuits.values() if connection in ends]
        others = {end for ends in ended for end in ends} - {connection}
        assert told == others
        self.circuits = {
            circuit: ends
            for circuit, ends in self.circuits.items()
            if connection not in ends
        }

    @invariant()
    def what_is_under_way_is_bounded(self) -> None:
        if hasattr(self, "board"):
            for route in self.board._routes.values():
                assert all(
                    0 <= under_way < 2 * WINDOW_BYTES
                    for under_way in route.under_way.values()
                )

    @rule(frame=st.binary(max_size=40))
    def parse_anything(self, frame: bytes) -> None:
        with suppress(MalformedError):
            RelayEnvelope.parse(frame)


TestSession = SessionMachine.TestCase
TestSession.settings = examples(25, stateful_step_count=20)
TestSwitchboard = SwitchboardMachine.TestCase
TestSwitchboard.settings = examples(60, stateful_step_count=40)
