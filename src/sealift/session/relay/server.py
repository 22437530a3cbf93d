"""The orchestrator's one port: forwards frames between named processes, unopened.

All decisions are ``Switchboard``'s; here are the sockets around it. One thread accepts;
another reads from every connection that has something, and writes to every one that
takes something, so that a slow reader stops nobody else. Both end with ``close``.
What waits for a slow reader counts against its sender, of whom nothing more is read
then; strangers have one such account in all, and one for each address, and what parties
answer them counts there as well. Connections
count from their accept; of those that have not registered the oldest go first.
The relay is trusted for progress only: it can drop and delay, and nothing more.

One connection of the relay: frames in, frames out, and never a wait.

Frames as ``channel/transport/tcp.py`` writes them: a big-endian u32 length, then the frame. What
the socket does not take at once stays in the outbox, and counts against whoever sent it.
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
from weakref import WeakValueDictionary

from sealift.channel.transport.tcp import (
    LENGTH_BYTES,
    TcpListener,
    TcpTransport,
    peer_host,
    settle_socket,
)
from sealift.channel.transport.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    DEFAULT_SEND_TIMEOUT_S,
    check_announced_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.errors import PeerError, SealiftError, require_value
from sealift.events import Sink, discard, emit, unfailing
from sealift.ids import Buffer
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import (
    FRAME_COST_BYTES,
    MAX_REGISTRATION_BYTES,
    NO_CIRCUIT,
    Registry,
    refuse,
    relay_error,
)
from sealift.session.relay.switchboard import Delivery, Switchboard

REGISTER_TIMEOUT_S: Final = 10.0
ACCEPT_PAUSE_S: Final = 0.05
MAX_UNREGISTERED: Final = 32
MAX_UNREGISTERED_EACH: Final = 8  # of them from one address
# What may wait in outboxes, of one party, of one address of strangers, of all strangers.
PARTY_BYTES: Final = 64 << 20
ADDRESS_BYTES: Final = 8 << 20
STRANGERS_BYTES: Final = 32 << 20
FULL: Final = "relay-full"
_READING: Final = select.EPOLLIN | select.EPOLLRDHUP
_GONE: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_LAST_READS: Final = 64
FULL_EVENT_S: Final = 1.0  # from one event about strangers without a place to the next
_LOOK_S: Final = 1.0  # how often deadlines are looked at


READ_BYTES: Final = 64 << 10  # at once; longer frames are read into their own memory
_PIECES: Final = 64  # of the outbox in one call; the system takes 1024


class Account:
    """Bytes of somebody that wait in outboxes, whosever they are.

    Args:
        most_bytes: From here on nothing more is read of it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it has to wait until others took some of it."""
        return self.bytes >= self._most_bytes


Accounts = tuple[Account, ...]
_Piece = tuple[Buffer, Accounts]  # and what it counts against


class RelayConnection:
    """A socket whose frames are forwarded.

    Args:
        number: Its number at the relay.
        sock: Owned from here on.
        begun: What somebody else read of it already.
        address: Where it comes from; None for this process.
        accounts: That its frames count against.
    """

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        begun: bytes,
        *,
        address: str | None,
        accounts: Accounts,
    ) -> None:
        settle_socket(sock)
        self.number = number
        self.address = address
        self.accounts = accounts
        self.outbox_bytes = 0
        self.outbox: deque[_Piece] = deque()
        self.blocked = False  # the socket did not take all of it
        self.held = False  # nothing is read of it
        self._max_frame_bytes = MAX_REGISTRATION_BYTES
        self._sock = sock
        self._rest = begun
        self._long: memoryview | None = None
        self._filled = 0

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def registered(self) -> None:
        """From here on its frames may be as long as any."""
        self._max_frame_bytes = DEFAULT_MAX_FRAME_BYTES

    def begin(self) -> Iterator[Buffer]:
        """The frames that were read already; raises like ``receive``."""
        return self._split()

    def receive(self, scratch: memoryview) -> Iterator[Buffer]:
        """What one read of the socket completes.

        Args:
            scratch: ``READ_BYTES`` of memory, free again when the iterator ends.

        Raises:
            PeerError: if the connection ended.
            MalformedError: if a frame above the limit is announced.
        """
        if self._long is None:
            self._rest += scratch[: self._read(scratch)]
            return self._split()
        self._filled += self._read(self._long[self._filled :])
        if self._filled < len(self._long):
            return iter(())
        frame, self._long = self._long, None
        return iter((frame,))

    @property
    def is_over(self) -> bool:
        """Whether too much of what it sent waits for others."""
        return any(account.is_full for account in self.accounts)

    def put(self, frame: Buffer, sender: Accounts = ()) -> None:
        """Queue a frame that counts against its sender until it is sent."""
        self.outbox.append((len(frame).to_bytes(LENGTH_BYTES, "big"), ()))
        self.outbox.append((frame, sender))
        self.outbox_bytes += LENGTH_BYTES + len(frame)
        _charge(sender, len(frame) + FRAME_COST_BYTES)

    def flush(self) -> None:
        """Send of the outbox what the socket takes now.

        Raises:
            PeerError: if the connection ended.
        """
        while self.outbox:
            pieces = [self.outbox[i][0] for i in range(min(_PIECES, len(self.outbox)))]
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                return
            except OSError as error:
                raise peer_closed(error) from None
            self._forget(sent)

    def close(self) -> None:
        """Close the socket; what was not sent is lost."""
        for piece, sender in self.outbox:
            _charge(sender, -len(piece) - FRAME_COST_BYTES)
        self.outbox.clear()
        self._sock.close()

    def _read(self, room: memoryview) -> int:
        try:
            count = self._sock.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise peer_closed(error) from None
        if count == 0:
            raise peer_closed("the peer closed it")
        return count

    def _split(self) -> Iterator[Buffer]:
        raw, at = self._rest, 0
        while len(raw) - at >= LENGTH_BYTES:
            start = at + LENGTH_BYTES
            length = int.from_bytes(raw[at:start], "big")
            check_announced_bytes(length, self._max_frame_bytes)
            if len(raw) - start < length:
                if length > READ_BYTES:
                    self._begin_long(length, raw[start:])
                    at = len(raw)
                break
            at = start + length
            yield raw[start:at]
        self._rest = raw[at:]

    def _begin_long(self, length: int, begun: bytes) -> None:
        self._long = memoryview(bytearray(length))
        self._long[: len(begun)] = begun
        self._filled = len(begun)

    def _forget(self, sent: int) -> None:
        """Take what was sent out of the outbox."""
        self.outbox_bytes -= sent
        while sent:
            first, sender = self.outbox.popleft()
            if sent < len(first):
                self.outbox.appendleft((memoryview(first)[sent:], sender))
                _charge(sender, -sent)
                return
            sent -= len(first)
            _charge(sender, -len(first) - FRAME_COST_BYTES)


def _charge(accounts: Accounts, count: int) -> None:
    for account in accounts:
        account.bytes += count


class Relay:
    """Accepts connections and forwards between them until closed.

    Args:
        listener: Where processes dial in, or None for local clients alone.
        registry: Whose names are whose; without it everybody is a stranger.
        sink: Gets ``relay.registered``, ``relay.refused`` and ``relay.gone``.
        clock: Seconds since 1970, told to whoever registers; None tells nobody.
    """

    def __init__(
        self,
        listener: TcpListener | None,
        *,
        registry: Registry | None = None,
        sink: Sink = discard,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._listener = listener
        self._sink = unfailing(sink)
        self._lock = threading.Lock()
        self._board = Switchboard(registry, clock=clock)
        self._proof_s = registry.proof_s if registry else None
        self._peers: dict[int, RelayConnection] = {}  # by number
        self._waited: dict[int, RelayConnection] = {}  # by descriptor
        self._due_s: dict[
            RelayConnection, float
        ] = {}  # to register, or to take something
        self._proof_due_s: dict[RelayConnection, float] = {}  # of strangers
        self._begun: deque[RelayConnection] = deque()
        self._unregistered: dict[RelayConnection, None] = {}  # the oldest first
        self._crowded_out: deque[RelayConnection] = deque()
        self._to_flush: dict[RelayConnection, None] = {}
        self._held: dict[RelayConnection, None] = {}
        self._full = 0  # connections that found no place since that was said last
        self._full_again_s = 0.0
        self._strangers = Account(STRANGERS_BYTES)
        # Whoever comes back finds its own again while anything in it waits.
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()
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
        cls,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        registry: Registry | None = None,
        sink: Sink = discard,
        clock: Callable[[], float] | None = None,
    ) -> Relay:
        """A relay on a fresh listener.

        Raises:
            UnavailableError: if the port is in use or may not be opened.
        """
        return cls(TcpListener(host, port), registry=registry, sink=sink, clock=clock)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to dial."""
        return require_value(self._listener).address

    @property
    def names(self) -> frozenset[str]:
        """Who is registered now."""
        with self._lock:
            return self._board.names

    def local_client(self, name: str = "orchestrator") -> RelayClient:
        """A client in the relay's own process, over a pair of sockets."""
        here, there = socket.socketpair()
        self._attach(there, b"", None, (Account(PARTY_BYTES),))
        return RelayClient(TcpTransport(here), name)

    def attach(self, sock: socket.socket, begun: bytes = b"") -> None:
        """Serve one more connection; ``begun`` is what was read of it already."""
        address = peer_host(sock)
        self._attach(sock, begun, address, self._strangers_of(address))

    def vouch(self, circuit: bytes) -> None:
        """Whoever opened this circuit was judged by its evidence: its name is its own."""
        with self._lock:
            number = self._board.vouch(circuit)
            peer = self._peers.get(number) if number is not None else None
            if peer is not None:
                peer.accounts = self._accounts_of(peer)
                self._proof_due_s.pop(peer, None)

    def _attach(
        self, sock: socket.socket, begun: bytes, address: str | None, accounts: Accounts
    ) -> None:
        with self._lock:
            if self._closing.is_set():
                sock.close()
                return
            has_room = self._make_room(address)
            if has_room:
                self._enter(sock, begun, address, accounts)
        if not has_room:
            self._turn_away(sock)

    def _enter(
        self, sock: socket.socket, begun: bytes, address: str | None, accounts: Accounts
    ) -> None:
        """Wait for a connection's registration; the lock is held."""
        self._count += 1
        peer = RelayConnection(
            self._count, sock, begun, address=address, accounts=accounts
        )
        self._peers[peer.number] = self._waited[peer.fileno()] = peer
        self._unregistered[peer] = None
        self._due_s[peer] = time.monotonic() + REGISTER_TIMEOUT_S
        self._poll.register(peer, _READING)
        if begun:
            self._begun.append(peer)
            os.eventfd_write(self._wake, 1)

    def _turn_away(self, sock: socket.socket) -> None:
        """Close a connection that was just accepted, and say that it may come again."""
        self._count_full()
        frame = refuse(NO_CIRCUIT, FULL)
        with suppress(OSError):
            sock.setblocking(False)
            sock.send(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
        sock.close()

    def _count_full(self) -> None:
        """Strangers without end make an event a second, with their number, and no more."""
        with self._lock:
            self._full += 1
        self._tell_full()

    def _tell_full(self, *, last: bool = False) -> None:
        with self._lock:
            count, now_s = self._full, time.monotonic()
            if not count or (now_s < self._full_again_s and not last):
                return
            self._full, self._full_again_s = 0, now_s + FULL_EVENT_S
        emit(self._sink, "relay.refused", reason=FULL, connections=count)

    def _make_room(self, address: str | None) -> bool:
        """Crowd out the oldest that has not registered; False if many were just now."""
        if address is None:
            return True
        here = [peer for peer in self._unregistered if peer.address == address]
        if len(here) >= MAX_UNREGISTERED_EACH:
            oldest = here[0]
        elif len(self._unregistered) >= MAX_UNREGISTERED:
            oldest = next(iter(self._unregistered))
        else:
            return True
        if len(self._crowded_out) >= MAX_UNREGISTERED:
            return False
        del self._unregistered[oldest]
        self._crowded_out.append(oldest)
        os.eventfd_write(self._wake, 1)
        return True

    def _strangers_of(self, address: str) -> Accounts:
        with self._lock:
            return self._strangers, self._account(f"address {address}", ADDRESS_BYTES)

    def _accounts_of(self, peer: RelayConnection) -> Accounts:
        if peer.address is None or not self._board.is_proven(peer.number):
            return peer.accounts
        name = self._board.name_of(peer.number)
        return (self._account(f"name {name}", PARTY_BYTES),)

    def _account(self, whose: str, most_bytes: int) -> Account:
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = Account(most_bytes)
        return account

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
        while not self._closing.is_set():
            try:
                self.attach(require_value(self._listener).accept_socket(None))
            except PeerError:
                # Closed, or a peer that left before it was accepted; or no descriptor
                # is left, which lasts.
                self._closing.wait(ACCEPT_PAUSE_S)

    def _forward(self) -> None:
        look_s = time.monotonic() + _LOOK_S
        while not self._closing.is_set():
            for descriptor, events in self._poll.poll(_LOOK_S):
                peer = self._waited.get(descriptor)
                if peer is not None:
                    self._serve(peer, events)
                else:
                    self._serve_begun(descriptor)
            self._flush()
            self._hear_again()
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                self._drop_overdue()
                self._tell_full()
        self._tell_full(last=True)
        for peer in self._peers.values():
            peer.close()

    def _serve(self, peer: RelayConnection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._to_flush[peer] = None
        if not events & ~select.EPOLLOUT:
            return
        if peer.held:  # gone: what it sent beyond its account nobody misses
            self._drop(peer, peer_closed())
            return
        # Whoever has left is forgotten at once: it may be back, in this very round.
        for _ in range(_LAST_READS if events & _GONE else 1):
            if peer.number in self._peers:
                self._take_all(peer, lambda: peer.receive(self._scratch))

    def _serve_begun(self, descriptor: int) -> None:
        """Woken up: connections came of which something was read already, or have to go."""
        if descriptor == self._wake:
            os.eventfd_read(self._wake)
        while self._crowded_out:
            peer = self._crowded_out.popleft()
            if not self._board.name_of(peer.number):  # else it was quick enough
                self._refuse(peer, FULL)
                self._drop(peer, relay_error(FULL))
        while self._begun:
            peer = self._begun.popleft()
            if peer.number in self._peers:  # else it has left already
                self._take_all(peer, peer.begin)

    def _take_all(
        self, peer: RelayConnection, read: Callable[[], Iterator[Buffer]]
    ) -> None:
        try:
            for frame in read():
                self._take(peer, frame)
        except SealiftError as error:
            self._drop(peer, error)
        if peer.is_over and self._board.name_of(
            peer.number
        ):  # else it may prove itself
            self._held[peer] = None
            peer.held = True
            self._listen(peer)

    def _hear_again(self) -> None:
        """Read again of those whose frames were taken meanwhile."""
        for peer in [peer for peer in self._held if not peer.is_over]:
            del self._held[peer]
            peer.held = False
            self._listen(peer)

    def _listen(self, peer: RelayConnection) -> None:
        reading = 0 if peer.held else _READING
        writing = select.EPOLLOUT if peer.blocked else 0
        self._poll.modify(peer, reading | writing)

    def _take(self, peer: RelayConnection, frame: Buffer) -> None:
        with self._lock:
            known = self._board.name_of(peer.number)
            if known:
                self._deliver(self._board.handle(peer.number, frame), peer.accounts)
        if not known:
            self._register(peer, frame)

    def _register(self, peer: RelayConnection, frame: Buffer) -> None:
        try:
            with self._lock:
                answer = self._board.register(peer.number, frame, peer.address)
                self._deliver([answer], peer.accounts)
                name = self._board.name_of(peer.number)
                if not name:  # asked to prove it
                    return
                peer.accounts = self._accounts_of(peer)
                self._unregistered.pop(peer, None)
                if self._proof_s and not self._board.is_proven(peer.number):
                    self._proof_due_s[peer] = time.monotonic() + self._proof_s
        except SealiftError as error:
            self._refuse(peer, error.code)
            raise
        peer.registered()
        self._due_s.pop(peer, None)
        emit(self._sink, "relay.registered", name=name)

    def _refuse(self, peer: RelayConnection, reason: str) -> None:
        """Tell a connection, and whoever watches this relay, why it is dropped."""
        if reason == FULL:
            self._count_full()
        else:
            emit(self._sink, "relay.refused", reason=reason)
        peer.put(refuse(NO_CIRCUIT, reason))
        with suppress(PeerError):  # it is dropped in any case
            peer.flush()

    def _deliver(self, deliveries: list[Delivery], sender: Accounts) -> None:
        for delivery in deliveries:
            target = self._peers.get(delivery.connection)
            if target is not None:
                # A party's answers that a stranger does not take are the stranger's.
                theirs = self._strangers in set(target.accounts) - set(sender)
                target.put(delivery.frame, target.accounts if theirs else sender)
                self._to_flush[target] = None

    def _flush(self) -> None:
        """Send what was queued; who is dropped for it may leave others more to send."""
        while self._to_flush:
            peer = next(iter(self._to_flush))
            del self._to_flush[peer]
            if peer.number not in self._peers:
                continue
            before = peer.outbox_bytes
            try:
                peer.flush()
            except PeerError as error:
                self._drop(peer, error)
                continue
            self._wait_for(peer, progress=peer.outbox_bytes < before)

    def _wait_for(self, peer: RelayConnection, *, progress: bool) -> None:
        """To read, and to write if something is left; and not for ever."""
        left = bool(peer.outbox)
        began = left and not peer.blocked
        if left != peer.blocked:
            peer.blocked = left
            self._listen(peer)
            self._due_s.pop(peer, None)
        if began or (left and progress):
            self._due_s[peer] = time.monotonic() + DEFAULT_SEND_TIMEOUT_S

    def _drop_overdue(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            both = (*self._due_s.items(), *self._proof_due_s.items())
            due = {peer for peer, due_s in both if now_s >= due_s}
        for peer in due:
            self._drop(peer, peer_timeout())
        self._flush()

    def _drop(self, peer: RelayConnection, error: SealiftError) -> None:
        with self._lock:
            if self._peers.pop(peer.number, None) is None:
                return
            name = self._board.name_of(peer.number)
            self._deliver(self._board.drop(peer.number), ())
            self._unregistered.pop(peer, None)
            self._held.pop(peer, None)
            self._poll.unregister(peer)
            del self._waited[peer.fileno()]
            self._due_s.pop(peer, None)
            self._proof_due_s.pop(peer, None)
            peer.close()
        if name:
            emit(self._sink, "relay.gone", name=name, reason=error.code)
