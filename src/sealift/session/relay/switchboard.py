"""The relay's decisions, pure: envelopes in, deliveries out. No sockets, no threads.

Guarantees: a frame goes only between the two connections of its circuit, unchanged and
in order; an end with more under way than its window allows loses the circuit, so what
waits in the relay is bounded; a connection that ends closes its circuits at their other
ends; a name with a key in the registry is its holder's alone, and strangers have few
places and none of others. Not guaranteed: that any other name is whose it says. Names
route; identity is proven in the session's handshake, end to end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sealift.errors import AuthenticationError, MalformedError, PeerError
from sealift.ids import Buffer
from sealift.session.relay.envelope import (
    CHALLENGE_BYTES,
    FRAME_COST_BYTES,
    WINDOW_BYTES,
    EnvelopeKind,
    Registry,
    RelayEnvelope,
    close,
    refuse,
    relay_error,
)

MAX_OPENED_UNPROVEN: Final = 8  # circuits that a stranger's connection may have opened


@dataclass(frozen=True, slots=True)
class Delivery:
    """Bytes for one connection."""

    connection: int
    frame: Buffer


@dataclass(slots=True)
class _Member:
    """A registered connection; ``address`` is a stranger's, None one that proved itself."""

    name: str
    address: str | None


@dataclass(slots=True)
class _Route:
    opener: int
    target: int
    under_way: dict[int, int] = field(default_factory=dict)  # bytes, by sender

    def other(self, connection: int) -> int:
        return self.target if connection == self.opener else self.opener


class Switchboard:
    """Who is registered, and which circuits are open between whom.

    Args:
        registry: Whose names are whose.
        window_bytes: What one end of a circuit may have under way.
        clock: Seconds since 1970, told to whoever registers; None tells nobody.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        window_bytes: int = WINDOW_BYTES,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._registry = registry or Registry()
        self._window_bytes = window_bytes
        self._clock = clock
        self._names: dict[str, int] = {}
        self._asked: dict[int, tuple[str, bytes]] = {}  # a name, and our challenge
        self._members: dict[int, _Member] = {}
        self._routes: dict[bytes, _Route] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names that are registered now."""
        return frozenset(self._names)

    def name_of(self, connection: int) -> str:
        """The name of a registered connection, or an empty text."""
        member = self._members.get(connection)
        return member.name if member else ""

    def is_proven(self, connection: int) -> bool:
        """Whether a registered connection is a party's, ours, or vouched for."""
        member = self._members.get(connection)
        return member is not None and member.address is None

    def register(self, connection: int, frame: Buffer, address: str | None) -> Delivery:
        """Take an envelope of a connection that has no name yet; return what answers it.

        Args:
            connection: Its number.
            frame: A registration, or the proof that was asked for.
            address: Where it comes from; None for one of this process.

        Raises:
            PeerError: if the name is taken or not proven, or strangers have no place.
            MalformedError: if it is neither.
        """
        envelope = RelayEnvelope.parse(frame)
        asked = self._asked.pop(connection, None)
        if asked is not None:
            self._require_proof(*asked, envelope)
            return self._enter(connection, _Member(asked[0], None))
        if envelope.kind is not EnvelopeKind.REGISTER or not envelope.name:
            raise MalformedError("expected a registration", code="bad-envelope")
        if address is not None and envelope.name in self._registry.keys:
            challenge = secrets.token_bytes(CHALLENGE_BYTES)
            self._asked[connection] = envelope.name, challenge
            return Delivery(
                connection,
                RelayEnvelope(EnvelopeKind.CHALLENGE, payload=challenge).encode(),
            )
        if address is not None:
            self._require_place(address)
        return self._enter(connection, _Member(envelope.name, address))

    def vouch(self, circuit: bytes) -> int | None:
        """Whoever opened a circuit was judged by its evidence: the name is its own.

        Returns its connection; None if it is gone, or its name proven already.
        """
        route = self._routes.get(circuit)
        if route is None or self.is_proven(route.opener):
            return None
        member = self._members[route.opener]
        if self._is_held(member.name):
            return None
        member.address = None
        self._names[member.name] = route.opener
        return route.opener

    def handle(self, connection: int, frame: Buffer) -> list[Delivery]:
        """What follows from one envelope of a registered connection.

        Raises:
            MalformedError: if it does not parse or may not come from there; the
                connection must be dropped then.
        """
        envelope = RelayEnvelope.parse(frame)
        if envelope.kind is EnvelopeKind.OPEN:
            return self._open(connection, envelope)
        route = self._routes.get(envelope.circuit)
        if route is None or connection not in (route.opener, route.target):
            return []  # closed meanwhile: what was under way is dropped
        match envelope.kind:
            case EnvelopeKind.FRAME:
                return self._forward(connection, route, envelope, frame)
            case EnvelopeKind.CREDIT:
                return self._credit(connection, route, envelope, frame)
            case EnvelopeKind.CLOSE:
                del self._routes[envelope.circuit]
                return [Delivery(route.other(connection), frame)]
            case _:
                raise MalformedError("unexpected envelope", code="bad-envelope")

    def drop(self, connection: int) -> list[Delivery]:
        """Forget a connection; its circuits are closed at their other ends."""
        self._asked.pop(connection, None)
        member = self._members.pop(connection, None)
        if member is not None and self._names.get(member.name) == connection:
            del self._names[member.name]
        ended = {
            circuit: route
            for circuit, route in self._routes.items()
            if connection in (route.opener, route.target)
        }
        for circuit in ended:
            del self._routes[circuit]
        return [
            Delivery(route.other(connection), close(circuit, "peer-gone"))
            for circuit, route in ended.items()
            if route.other(connection) in self._members
        ]

    def _enter(self, connection: int, member: _Member) -> Delivery:
        if self._is_held(member.name):
            raise relay_error("name-taken", member.name)
        if member.address is None:
            self._names[member.name] = connection
        self._names.setdefault(member.name, connection)
        self._members[connection] = member
        clock = int(self._clock()).to_bytes(8, "big") if self._clock else b""
        answer = RelayEnvelope(EnvelopeKind.REGISTERED, name=member.name, payload=clock)
        return Delivery(connection, answer.encode())

    def _is_held(self, name: str) -> bool:
        holder = self._names.get(name)
        return holder is not None and self.is_proven(holder)

    def _require_proof(
        self, name: str, challenge: bytes, envelope: RelayEnvelope
    ) -> None:
        if envelope.kind is not EnvelopeKind.PROVE:
            raise MalformedError("expected a proof", code="bad-envelope")
        try:
            self._registry.verify(name, challenge, envelope.payload)
        except AuthenticationError:
            raise relay_error("name-unproven", name) from None

    def _require_place(self, address: str) -> None:
        strangers = [each.address for each in self._members.values()]
        full = len(strangers) - strangers.count(None) >= self._registry.strangers
        if full or strangers.count(address) >= self._registry.strangers_each:
            raise relay_error("relay-full")

    def _open(self, connection: int, envelope: RelayEnvelope) -> list[Delivery]:
        try:
            target = self._admit(connection, envelope)
        except PeerError as error:
            return [Delivery(connection, refuse(envelope.circuit, error.code))]
        self._routes[envelope.circuit] = _Route(connection, target)
        name = self._members[connection].name
        there = RelayEnvelope(EnvelopeKind.OPEN, envelope.circuit, name)
        back = RelayEnvelope(EnvelopeKind.OPENED, envelope.circuit, envelope.name)
        return [Delivery(target, there.encode()), Delivery(connection, back.encode())]

    def _admit(self, connection: int, envelope: RelayEnvelope) -> int:
        own, target = self._members[connection].name, self._names.get(envelope.name)
        if self._is_held(own) and self._names[own] != connection:
            raise relay_error("name-taken", own)  # vouched for since, for another
        if target is None or target == connection:
            raise relay_error("unknown-peer", envelope.name)
        opened = sum(route.opener == connection for route in self._routes.values())
        proven = self.is_proven(connection)
        most = self._registry.circuits if proven else MAX_OPENED_UNPROVEN
        if opened >= most or envelope.circuit in self._routes:
            raise relay_error("too-many-circuits")
        return target

    def _forward(
        self, sender: int, route: _Route, envelope: RelayEnvelope, frame: Buffer
    ) -> list[Delivery]:
        under_way = route.under_way.get(sender, 0)
        if under_way >= self._window_bytes:
            return self._cut(route, envelope.circuit, "flooded")
        route.under_way[sender] = under_way + len(envelope.payload) + FRAME_COST_BYTES
        return [Delivery(route.other(sender), frame)]

    def _credit(
        self, receiver: int, route: _Route, envelope: RelayEnvelope, frame: Buffer
    ) -> list[Delivery]:
        sender = route.other(receiver)
        left = route.under_way.get(sender, 0) - envelope.credit_bytes
        if left < 0:
            return self._cut(route, envelope.circuit, "flooded")
        route.under_way[sender] = left
        return [Delivery(sender, frame)]

    def _cut(self, route: _Route, circuit: bytes, reason: str) -> list[Delivery]:
        del self._routes[circuit]
        frame = close(circuit, reason)
        return [Delivery(route.opener, frame), Delivery(route.target, frame)]
