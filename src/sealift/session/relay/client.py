"""A process's one connection to the relay, and the circuits over it.

Everybody dials out: no process but the orchestrator listens. A reader thread takes
envelopes apart and never waits for anything but the connection; it ends with the connection.
A dead connection is a ``PeerError`` in every circuit; the role exits or dials again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from sealift.channel.transport.transport import Deadline, Transport, peer_timeout
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.envelope import (
    MAX_ENVELOPE_BYTES,
    EnvelopeKind,
    Prove,
    RelayEnvelope,
    close,
    fresh_circuit,
    relay_error,
)
from sealift.session.relay.proxy import RelayTransport, dial_relay

DIAL_TIMEOUT_S: Final = 10.0
MAX_BACKLOG: Final = 256  # all strangers together cannot fill it, nor a single party:
MAX_BACKLOG_EACH: Final = 48  # of one name; a party has four at most
_RETRY_S: Final = 0.05
_FULL: Final = "relay-full"


class RelayClient:
    """A registered connection to the relay.

    Args:
        transport: The connection; this object owns it from now on.
        name: What this process wants to be called.
        timeout_s: How long the relay may take to answer.
        prove: Proves the name, where the agreement gives it a key.

    Attributes:
        clock_s: What time the relay said it was, in seconds since 1970; None if it did
            not. Nobody vouches for it.

    Raises:
        PeerError: if the relay refuses the name (``name-taken``, ``name-unproven``) or
            does not answer.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        timeout_s: float = DIAL_TIMEOUT_S,
        prove: Prove | None = None,
    ) -> None:
        self.name = name
        self._transport = transport
        self._changed = threading.Condition()
        self._circuits: dict[bytes, Circuit] = {}
        self._answers: dict[bytes, str | None] = {}
        self._backlog: deque[Circuit] = deque()
        self._end: str | None = None
        self.clock_s: int | None = None
        self._register(timeout_s, prove)
        self._reader = threading.Thread(
            target=self._read, name=f"relay client {name}", daemon=True
        )
        self._reader.start()

    @classmethod
    def dial(
        cls,
        address: tuple[str, int],
        name: str,
        timeout_s: float = DIAL_TIMEOUT_S,
        prove: Prove | None = None,
    ) -> RelayClient:
        """Connect to the relay, trying again until ``timeout_s`` if nobody listens yet.

        A relay that is full is asked again as well: others prove themselves, and make room.

        Raises:
            PeerError: if nobody answers there, or the name is refused; ``relay-full``.
            UnavailableError, UsageError: a proxy does not let it through (``dial_relay``).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            late, refused = time.monotonic() + _RETRY_S >= deadline, False
            try:
                transport = dial_relay(address, timeout_s=timeout_s)
                refused = True
                return cls(transport, name, timeout_s, prove)
            except PeerError as error:
                if late or (refused and error.code != _FULL):
                    raise
            time.sleep(_RETRY_S)

    def open(
        self, peer_name: str, timeout_s: float = DIAL_TIMEOUT_S, *, wait_s: float = 0.0
    ) -> Circuit:
        """A circuit to a peer; ``wait_s`` is how long it may take to appear.

        Raises:
            PeerError: ``unknown-peer``, ``peer-timeout``, ``relay-gone``.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return self._open(peer_name, timeout_s)
            except PeerError as error:
                late = time.monotonic() + _RETRY_S >= deadline
                if error.code != "unknown-peer" or late:
                    raise
            time.sleep(_RETRY_S)

    def accept(self, timeout_s: float | None = None) -> Circuit:
        """The next circuit that a peer opened to us.

        Raises:
            PeerError: ``peer-timeout``, or the connection ended.
        """
        deadline = Deadline(timeout_s)
        with self._changed:
            while not self._backlog:
                self._wait(deadline)
            return self._backlog.popleft()

    def close(self) -> None:
        """Close the connection and all its circuits; waits for the reader to end."""
        self._finish("link-closed")
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def __enter__(self) -> RelayClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _register(self, timeout_s: float, prove: Prove | None) -> None:
        try:
            hello = RelayEnvelope(EnvelopeKind.REGISTER, name=self.name)
            answer = self._ask(hello, timeout_s)
            if answer.kind is EnvelopeKind.CHALLENGE:
                if prove is None:
                    raise relay_error("name-unproven", self.name)
                proof = prove(bytes(answer.payload))
                answer = self._ask(
                    RelayEnvelope(EnvelopeKind.PROVE, payload=proof), timeout_s
                )
            if answer.kind is EnvelopeKind.REFUSED:
                raise relay_error(answer.reason, self.name)
            if answer.kind is not EnvelopeKind.REGISTERED:
                raise MalformedError("not a relay", code="bad-envelope")
            self.clock_s = answer.clock_s
        except SealiftError:
            self._transport.close()
            raise

    def _ask(self, envelope: RelayEnvelope, timeout_s: float) -> RelayEnvelope:
        self._transport.send(envelope.encode())
        if isinstance(self._transport, RelayTransport):
            self._transport.hear(timeout_s)
        return RelayEnvelope.parse(self._transport.receive(timeout_s))

    def _open(self, peer_name: str, timeout_s: float) -> Circuit:
        circuit = self._circuit(fresh_circuit(), peer_name)
        with self._changed:
            if self._end is not None:
                raise relay_error(self._end)
            self._circuits[circuit.id] = circuit
        try:
            self._write(
                RelayEnvelope(EnvelopeKind.OPEN, circuit.id, peer_name).encode()
            )
            self._await_answer(circuit, Deadline(timeout_s))
        except BaseException:
            self._forget(circuit.id)
            raise
        return circuit

    def _await_answer(self, circuit: Circuit, deadline: Deadline) -> None:
        with self._changed:
            while circuit.id not in self._answers:
                self._wait(deadline)
            refusal = self._answers.pop(circuit.id)
        if refusal is not None:
            raise relay_error(refusal, circuit.peer_name)

    def _wait(self, deadline: Deadline) -> None:
        if self._end is not None:
            raise relay_error(self._end)
        left_s = deadline.remaining_s()
        if left_s is not None and left_s <= 0:
            raise peer_timeout()
        self._changed.wait(left_s)

    def _circuit(self, circuit: bytes, peer_name: str) -> Circuit:
        return Circuit(
            circuit,
            peer_name,
            write=self._write,
            max_frame_bytes=self._transport.max_frame_bytes - MAX_ENVELOPE_BYTES,
        )

    def _write(self, frame: bytes) -> None:
        if self._end is not None:
            raise relay_error(self._end)
        self._transport.send(frame)
        if frame[1] == EnvelopeKind.CLOSE:
            self._forget(RelayEnvelope.parse(frame).circuit)

    def _forget(self, circuit: bytes) -> None:
        with self._changed:
            self._circuits.pop(circuit, None)
            self._answers.pop(circuit, None)

    def _read(self) -> None:
        try:
            while True:
                self._take(RelayEnvelope.parse(self._transport.receive(None)))
        except SealiftError:
            self._finish("relay-gone")

    def _take(self, envelope: RelayEnvelope) -> None:
        if envelope.kind is EnvelopeKind.OPEN:
            self._take_open(envelope)
            return
        with self._changed:
            circuit = self._circuits.get(envelope.circuit)
        if circuit is None:
            return  # closed here meanwhile
        match envelope.kind:
            case EnvelopeKind.FRAME:
                circuit.deliver(bytes(envelope.payload))
            case EnvelopeKind.CREDIT:
                circuit.give_credit(envelope.credit_bytes)
            case EnvelopeKind.CLOSE:
                # Not its answer: whoever opened it may not have seen that yet.
                with self._changed:
                    self._circuits.pop(envelope.circuit, None)
                circuit.end(envelope.reason)
            case EnvelopeKind.OPENED:
                self._answer(envelope.circuit, None)
            case EnvelopeKind.REFUSED:
                self._answer(envelope.circuit, envelope.reason)
            case _:
                raise MalformedError("unexpected envelope", code="bad-envelope")

    def _take_open(self, envelope: RelayEnvelope) -> None:
        circuit = self._circuit(envelope.circuit, envelope.name)
        with self._changed:
            waiting = [each.peer_name for each in self._backlog]
            full = len(waiting) >= MAX_BACKLOG
            full = full or waiting.count(circuit.peer_name) >= MAX_BACKLOG_EACH
            if not full:
                self._circuits[circuit.id] = circuit
                self._backlog.append(circuit)
                self._changed.notify_all()
        if full:
            self._write(close(circuit.id, "peer-busy"))

    def _answer(self, circuit: bytes, refusal: str | None) -> None:
        with self._changed:
            self._answers[circuit] = refusal
            self._changed.notify_all()

    def _finish(self, reason: str) -> None:
        with self._changed:
            if self._end is None:
                self._end = reason
            circuits = list(self._circuits.values())
            self._circuits.clear()
            self._changed.notify_all()
        self._transport.close()
        for circuit in circuits:
            circuit.end(reason)
