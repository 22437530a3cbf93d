"""The relay's decisions, pure: envelopes in, deliveries out. No sockets, no threads.

Guarantees: a frame goes only between the two connections of its circuit, unchanged and
in order; an end with more under way than its window allows loses the circuit, so what
waits in the relay is bounded; a connection that ends closes its circuits at their other
ends. Not guaranteed: that a name is whose it says. Names route; identity is proven in
the session's handshake, end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sealift.errors import MalformedError, PeerError
from sealift.ids import Buffer
from sealift.session.envelope import (
    FRAME_COST_BYTES,
    WINDOW_BYTES,
    Envelope,
    EnvelopeKind,
    close,
    refuse,
    relay_error,
)

MAX_CONNECTIONS: Final = 256
MAX_OPENED: Final = 32  # circuits that one connection may have opened


@dataclass(frozen=True, slots=True)
class Delivery:
    """Bytes for one connection."""

    connection: int
    frame: Buffer


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
        window_bytes: What one end of a circuit may have under way.
    """

    def __init__(self, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._names: dict[str, int] = {}
        self._connections: dict[int, str] = {}
        self._routes: dict[bytes, _Route] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names that are registered now."""
        return frozenset(self._names)

    def name_of(self, connection: int) -> str:
        """The name of a registered connection, or an empty text."""
        return self._connections.get(connection, "")

    def register(self, connection: int, frame: Buffer) -> Delivery:
        """Take a connection's first envelope; return what answers it.

        Raises:
            PeerError: if the name is taken or the relay is full.
            MalformedError: if it is not a registration.
        """
        envelope = Envelope.parse(frame)
        if envelope.kind is not EnvelopeKind.REGISTER or not envelope.name:
            raise MalformedError("expected a registration", code="bad-envelope")
        if envelope.name in self._names:
            raise relay_error("name-taken", envelope.name)
        if len(self._connections) >= MAX_CONNECTIONS:
            raise relay_error("relay-full")
        self._names[envelope.name] = connection
        self._connections[connection] = envelope.name
        answer = Envelope(EnvelopeKind.REGISTERED, name=envelope.name)
        return Delivery(connection, answer.encode())

    def handle(self, connection: int, frame: Buffer) -> list[Delivery]:
        """What follows from one envelope of a registered connection.

        Raises:
            MalformedError: if it does not parse or may not come from there; the
                connection must be dropped then.
        """
        envelope = Envelope.parse(frame)
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
        name = self._connections.pop(connection, None)
        if name is not None:
            del self._names[name]
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
            if route.other(connection) in self._connections
        ]

    def _open(self, connection: int, envelope: Envelope) -> list[Delivery]:
        try:
            target = self._admit(connection, envelope)
        except PeerError as error:
            return [Delivery(connection, refuse(envelope.circuit, error.code))]
        self._routes[envelope.circuit] = _Route(connection, target)
        name = self._connections[connection]
        there = Envelope(EnvelopeKind.OPEN, envelope.circuit, name)
        back = Envelope(EnvelopeKind.OPENED, envelope.circuit, envelope.name)
        return [
            Delivery(target, there.encode()),
            Delivery(connection, back.encode()),
        ]

    def _admit(self, connection: int, envelope: Envelope) -> int:
        target = self._names.get(envelope.name)
        if target is None or target == connection:
            raise relay_error("unknown-peer", envelope.name)
        opened = sum(route.opener == connection for route in self._routes.values())
        if opened >= MAX_OPENED or envelope.circuit in self._routes:
            raise relay_error("too-many-circuits")
        return target

    def _forward(
        self, sender: int, route: _Route, envelope: Envelope, frame: Buffer
    ) -> list[Delivery]:
        under_way = route.under_way.get(sender, 0)
        if under_way >= self._window_bytes:
            return self._cut(route, envelope.circuit, "flooded")
        route.under_way[sender] = under_way + len(envelope.payload) + FRAME_COST_BYTES
        return [Delivery(route.other(sender), frame)]

    def _credit(
        self, receiver: int, route: _Route, envelope: Envelope, frame: Buffer
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
