"""The orchestrator's one port: forwards frames between named processes, unopened.

All decisions are ``Switchboard``'s; here are the sockets and threads around it: one that
accepts, and per connection one that reads and one that writes, so that a slow reader
stops nobody else. All of them end with ``close``.
The relay is trusted for progress only: it can drop and delay, and nothing more.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Final

from sealift.channel.memory import memory_pair
from sealift.channel.tcp import TcpListener
from sealift.channel.transport import Transport
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.session.envelope import MAX_ENVELOPE_BYTES, NO_CIRCUIT, refuse
from sealift.session.link import Link
from sealift.session.switchboard import MAX_CONNECTIONS, Delivery, Switchboard

REGISTER_TIMEOUT_S: Final = 10.0
ACCEPT_PAUSE_S: Final = 0.05
MAX_OUTBOX_BYTES: Final = 256 << 20  # a connection that takes nothing is dropped then
MAX_OUTBOX_FRAMES: Final = 1 << 16


class _Connection:
    """A transport with an outbox, emptied by a thread of its own."""

    def __init__(self, number: int, transport: Transport) -> None:
        self.number = number
        self.transport = transport
        self._changed = threading.Condition()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._closing = False
        self._writer = threading.Thread(
            target=self._write, name=f"relay writer {number}", daemon=True
        )
        self._writer.start()

    def put(self, frame: bytes) -> None:
        """Queue a frame; never waits."""
        with self._changed:
            self._outbox.append(frame)
            self._outbox_bytes += len(frame)
            full = (
                self._outbox_bytes > MAX_OUTBOX_BYTES
                or len(self._outbox) > MAX_OUTBOX_FRAMES
            )
            self._changed.notify_all()
        if full:
            self.abandon()

    def abandon(self) -> None:
        """Drop the connection at once; its reader ends, and reports it gone."""
        with self._changed:
            self._closing = True
            self._outbox.clear()
            self._changed.notify_all()
        self.transport.close()

    def finish(self) -> None:
        """Write out what is queued, close, and wait for the writer to end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join()

    def _write(self) -> None:
        try:
            while (frame := self._next()) is not None:
                self.transport.send(frame)
        except SealiftError:
            pass  # the reader sees the same end and reports it
        self.transport.close()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._outbox and not self._closing:
                self._changed.wait()
            if not self._outbox:
                return None
            frame = self._outbox.popleft()
            self._outbox_bytes -= len(frame)
            return frame


class Relay:
    """Accepts connections and forwards between them until closed.

    Args:
        listener: Where processes dial in, or None for local links alone.
        sink: Gets ``relay.registered``, ``relay.refused`` and ``relay.gone``.
    """

    def __init__(self, listener: TcpListener | None, *, sink: Sink = discard) -> None:
        self._listener = listener
        self._sink = sink
        self._lock = threading.Lock()
        self._board = Switchboard()
        self._connections: dict[int, _Connection] = {}
        self._readers: list[threading.Thread] = []
        self._count = 0
        self._closing = threading.Event()
        self._acceptor = threading.Thread(
            target=self._accept, name="relay acceptor", daemon=True
        )
        if listener is not None:
            self._acceptor.start()

    @classmethod
    def listen(
        cls, host: str = "127.0.0.1", port: int = 0, *, sink: Sink = discard
    ) -> Relay:
        """A relay on a fresh listener.

        Raises:
            UnavailableError: if the port is in use or may not be opened.
        """
        return cls(TcpListener(host, port), sink=sink)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to dial."""
        assert self._listener is not None
        return self._listener.address

    @property
    def names(self) -> frozenset[str]:
        """Who is registered now."""
        with self._lock:
            return self._board.names

    def local_link(self, name: str = "orchestrator") -> Link:
        """A link of the relay's own process, without a socket."""
        here, there = memory_pair()
        self.attach(there)
        return Link(here, name)

    def attach(self, transport: Transport) -> None:
        """Serve one more connection."""
        with self._lock:
            if self._closing.is_set() or len(self._connections) >= MAX_CONNECTIONS:
                with suppress(SealiftError):
                    transport.send(refuse(NO_CIRCUIT, "relay-full"))
                transport.close()
                return
            self._count += 1
            connection = _Connection(self._count, transport)
            self._connections[connection.number] = connection
            reader = threading.Thread(
                target=self._serve,
                args=(connection,),
                name=f"relay reader {connection.number}",
                daemon=True,
            )
            self._readers = [old for old in self._readers if old.is_alive()]
            self._readers.append(reader)
            reader.start()

    def close(self) -> None:
        """Stop listening, end every connection, wait for every thread."""
        with self._lock:
            self._closing.set()
            connections, readers = list(self._connections.values()), self._readers
        if self._listener is not None:
            self._listener.close()
            self._acceptor.join()
        for connection in connections:
            connection.abandon()
        for reader in readers:
            reader.join()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closing.is_set():
            try:
                self.attach(self._listener.accept(None))
            except PeerError:
                # Closed, or a peer that left before it was accepted; or no descriptor
                # is left, which lasts.
                self._closing.wait(ACCEPT_PAUSE_S)

    def _serve(self, connection: _Connection) -> None:
        try:
            self._register(connection)
            while True:
                frame = connection.transport.receive(None)
                with self._lock:
                    self._deliver(self._board.handle(connection.number, frame))
        except SealiftError as error:
            self._drop(connection, error)
        connection.finish()

    def _register(self, connection: _Connection) -> None:
        transport = connection.transport
        longest, transport.max_frame_bytes = (
            transport.max_frame_bytes,
            MAX_ENVELOPE_BYTES,
        )
        frame = transport.receive(REGISTER_TIMEOUT_S)
        transport.max_frame_bytes = longest
        try:
            with self._lock:
                self._deliver([self._board.register(connection.number, frame)])
        except (PeerError, MalformedError) as error:
            connection.put(refuse(NO_CIRCUIT, error.code))
            emit(self._sink, "relay.refused", reason=error.code)
            raise
        emit(self._sink, "relay.registered", name=self._name(connection))

    def _drop(self, connection: _Connection, error: SealiftError) -> None:
        name = self._name(connection)
        with self._lock:
            self._deliver(self._board.drop(connection.number))
            del self._connections[connection.number]
        if name:
            emit(self._sink, "relay.gone", name=name, reason=error.code)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Queue under the lock, so that the order of decisions is kept."""
        for delivery in deliveries:
            target = self._connections.get(delivery.connection)
            if target is not None:
                target.put(delivery.frame)

    def _name(self, connection: _Connection) -> str:
        with self._lock:
            return self._board.name_of(connection.number)
