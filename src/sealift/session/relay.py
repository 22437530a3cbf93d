"""The orchestrator's one port: forwards frames between named processes, unopened.

All decisions are ``Switchboard``'s; here are the sockets around it. One thread accepts;
another reads from every connection that has something, and writes to every one that
takes something, so that a slow reader stops nobody else. Both end with ``close``.
The relay is trusted for progress only: it can drop and delay, and nothing more.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from sealift.channel.transports.tcp import TcpListener, TcpTransport
from sealift.channel.transports.transport import DEFAULT_SEND_TIMEOUT_S, peer_timeout
from sealift.errors import PeerError, SealiftError
from sealift.events import Sink, discard, emit, unfailing
from sealift.ids import Buffer
from sealift.session.envelope import NO_CIRCUIT, refuse
from sealift.session.link import Link
from sealift.session.relayline import READ_BYTES, RelayLine
from sealift.session.switchboard import MAX_CONNECTIONS, Delivery, Switchboard

REGISTER_TIMEOUT_S: Final = 10.0
ACCEPT_PAUSE_S: Final = 0.05
MAX_OUTBOX_BYTES: Final = 256 << 20  # a connection that takes nothing is dropped then
MAX_OUTBOX_PIECES: Final = 1 << 17
_READING: Final = select.EPOLLIN | select.EPOLLRDHUP
_GONE: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_LAST_READS: Final = 64
_LOOK_S: Final = 1.0  # how often deadlines are looked at


class Relay:
    """Accepts connections and forwards between them until closed.

    Args:
        listener: Where processes dial in, or None for local links alone.
        sink: Gets ``relay.registered``, ``relay.refused`` and ``relay.gone``.
    """

    def __init__(self, listener: TcpListener | None, *, sink: Sink = discard) -> None:
        self._listener = listener
        self._sink = unfailing(sink)
        self._lock = threading.Lock()
        self._board = Switchboard()
        self._lines: dict[int, RelayLine] = {}  # by number
        self._waited: dict[int, RelayLine] = {}  # by descriptor
        self._due_s: dict[RelayLine, float] = {}  # to register, or to take something
        self._begun: deque[RelayLine] = deque()
        self._to_flush: dict[RelayLine, None] = {}
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._count = 0
        self._closing = threading.Event()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._forwarder = threading.Thread(
            target=self._forward, name="relay", daemon=True
        )
        self._forwarder.start()
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
        """A link of the relay's own process, over a pair of sockets."""
        here, there = socket.socketpair()
        self.attach(there)
        return Link(TcpTransport(here), name)

    def attach(self, sock: socket.socket, begun: bytes = b"") -> None:
        """Serve one more connection; ``begun`` is what was read of it already."""
        with self._lock:
            if self._closing.is_set() or len(self._lines) >= MAX_CONNECTIONS:
                _turn_away(sock)
                return
            self._count += 1
            line = RelayLine(self._count, sock, begun)
            self._lines[line.number] = self._waited[line.fileno()] = line
            self._due_s[line] = time.monotonic() + REGISTER_TIMEOUT_S
            self._poll.register(line, _READING)
            if begun:
                self._begun.append(line)
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Stop listening, end every connection, wait for both threads."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        os.eventfd_write(self._wake, 1)
        if self._listener is not None:
            self._listener.close()
            self._acceptor.join()
        self._forwarder.join()
        self._poll.close()
        os.close(self._wake)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closing.is_set():
            try:
                self.attach(self._listener.accept_socket(None))
            except PeerError:
                # Closed, or a peer that left before it was accepted; or no descriptor
                # is left, which lasts.
                self._closing.wait(ACCEPT_PAUSE_S)

    def _forward(self) -> None:
        look_s = time.monotonic() + _LOOK_S
        while not self._closing.is_set():
            for descriptor, events in self._poll.poll(_LOOK_S):
                line = self._waited.get(descriptor)
                if line is not None:
                    self._serve(line, events)
                else:
                    self._serve_begun(descriptor)
            self._flush()
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                self._drop_overdue()
        for line in self._lines.values():
            line.close()

    def _serve(self, line: RelayLine, events: int) -> None:
        if events & select.EPOLLOUT:
            self._to_flush[line] = None
        if not events & ~select.EPOLLOUT:
            return
        # Whoever has left is forgotten at once: it may be back, in this very round.
        for _ in range(_LAST_READS if events & _GONE else 1):
            if line.number in self._lines:
                self._take_all(line, lambda: line.receive(self._scratch))

    def _serve_begun(self, descriptor: int) -> None:
        """Woken up: lines came of which something was read already."""
        if descriptor == self._wake:
            os.eventfd_read(self._wake)
        while self._begun:
            line = self._begun.popleft()
            if line.number in self._lines:  # else it has left already
                self._take_all(line, line.begin)

    def _take_all(self, line: RelayLine, read: Callable[[], Iterator[Buffer]]) -> None:
        try:
            for frame in read():
                self._take(line, frame)
        except SealiftError as error:
            self._drop(line, error)

    def _take(self, line: RelayLine, frame: Buffer) -> None:
        with self._lock:
            known = self._board.name_of(line.number)
            if known:
                self._deliver(self._board.handle(line.number, frame))
        if not known:
            self._register(line, frame)

    def _register(self, line: RelayLine, frame: Buffer) -> None:
        try:
            with self._lock:
                self._deliver([self._board.register(line.number, frame)])
        except SealiftError as error:
            emit(self._sink, "relay.refused", reason=error.code)
            line.put(refuse(NO_CIRCUIT, error.code))
            with suppress(PeerError):  # it is dropped in any case
                line.flush()
            raise
        line.registered()
        self._due_s.pop(line, None)
        emit(self._sink, "relay.registered", name=self._board.name_of(line.number))

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            target = self._lines.get(delivery.connection)
            if target is not None:
                target.put(delivery.frame)
                self._to_flush[target] = None

    def _flush(self) -> None:
        """Send what was queued; who is dropped for it may leave others more to send."""
        while self._to_flush:
            line = next(iter(self._to_flush))
            del self._to_flush[line]
            if line.number not in self._lines:
                continue
            before = line.outbox_bytes
            try:
                line.flush()
                _require_room(line)
            except PeerError as error:
                self._drop(line, error)
                continue
            self._wait_for(line, progress=line.outbox_bytes < before)

    def _wait_for(self, line: RelayLine, *, progress: bool) -> None:
        """To read, and to write if something is left; and not for ever."""
        left = bool(line.outbox)
        began = left and not line.blocked
        if left != line.blocked:
            line.blocked = left
            writing = select.EPOLLOUT if left else 0
            self._poll.modify(line, _READING | writing)
            self._due_s.pop(line, None)
        if began or (left and progress):
            self._due_s[line] = time.monotonic() + DEFAULT_SEND_TIMEOUT_S

    def _drop_overdue(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            due = [line for line, due_s in self._due_s.items() if now_s >= due_s]
        for line in due:
            self._drop(line, peer_timeout())
        self._flush()

    def _drop(self, line: RelayLine, error: SealiftError) -> None:
        with self._lock:
            if self._lines.pop(line.number, None) is None:
                return
            name = self._board.name_of(line.number)
            self._deliver(self._board.drop(line.number))
            self._poll.unregister(line)
            del self._waited[line.fileno()]
            self._due_s.pop(line, None)
            line.close()
        if name:
            emit(self._sink, "relay.gone", name=name, reason=error.code)


def _require_room(line: RelayLine) -> None:
    full = line.outbox_bytes > MAX_OUTBOX_BYTES or len(line.outbox) > MAX_OUTBOX_PIECES
    if full:
        raise PeerError("the peer takes nothing", code="peer-timeout")


def _turn_away(sock: socket.socket) -> None:
    transport = TcpTransport(sock, send_timeout_s=0.0)
    with suppress(SealiftError):
        transport.send(refuse(NO_CIRCUIT, "relay-full"))
    transport.close()
