"""Frames over TCP: a big-endian u32 length, then the frame.

A frame that was half received when a timeout struck is kept and finished by the next
call. Names are resolved and sockets opened here and nowhere else in this room.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
from ipaddress import ip_network
from typing import Final

from sealift.channel.transport.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    DEFAULT_SEND_TIMEOUT_S,
    CopyingSlots,
    Deadline,
    check_announced_bytes,
    check_frame_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.errors import PeerError, UnavailableError
from sealift.ids import Buffer

LENGTH_BYTES: Final = 4
_BACKLOG: Final = 128
_AHEAD_BYTES: Final = 8 << 10
# What Linux says of a socket's memory (SO_MEMINFO, include/uapi/linux/sock_diag.h).
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")
# Of what waits to be sent a TCP socket says the first, and one between processes the second.
_SEND_BUFFER, _SEND_QUEUED, _SEND_ALLOCATED = 3, 5, 2
_KERNEL_BYTES: Final = 64 << 10  # what the system counts besides a frame's bytes


# A peer whose machine is gone, or cut off, says nothing: after so long its system is
# asked, and after so many times without an answer the connection has ended.
_IDLE_S, _PROBE_S, _PROBES = 15, 5, 3


def settle_socket(sock: socket.socket) -> None:
    """What every connection here is: not blocking, without delay, and asked when silent."""
    sock.setblocking(False)
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, _PROBES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class TcpTransport(CopyingSlots):
    """One connected stream socket.

    Args:
        sock: The socket; this object owns it from now on.
        max_frame_bytes: Longest frame sent or accepted.
        send_timeout_s: How long a peer may take nothing before it counts as gone.

    Attributes:
        max_received_bytes: Longest frame accepted, where that is less: what strangers
            announce is not worth its memory.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S,
    ) -> None:
        settle_socket(sock)
        self.max_frame_bytes = self.max_received_bytes = max_frame_bytes
        self._sock = sock
        self._send_timeout_s = send_timeout_s
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._body = bytearray()
        # What the system had beyond the frame that was asked for: small frames come in
        # one call then, with their lengths.
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._ahead_at = self._ahead_end = 0
        self._wanted = LENGTH_BYTES
        self._in_body = False
        self._filled = 0
        self._last_frame_bytes = 0
        self._closed = False
        self._half_sent = False

    @classmethod
    def dial(
        cls, host: str, port: int, *, timeout_s: float = DEFAULT_SEND_TIMEOUT_S
    ) -> TcpTransport:
        """Connect to a listener.

        Raises:
            PeerError: if nobody answers there.
        """
        return cls(connect_socket(host, port, timeout_s=timeout_s))

    @property
    def descriptor(self) -> int | None:  # type: ignore[override]
        """Of the socket."""
        return None if self._closed else self._sock.fileno()

    @property
    def has_ahead(self) -> bool:  # type: ignore[override]
        """Whether bytes were received behind the last frame."""
        return self._ahead_at < self._ahead_end

    @property
    def peer_host(self) -> str:
        """See ``peer_host``."""
        return peer_host(self._sock)

    def send(self, frame: Buffer) -> None:
        """Send one frame."""
        view = memoryview(frame).cast("B")
        check_frame_bytes(len(view), self.max_frame_bytes)
        with self._send_lock:
            if self._half_sent:
                raise peer_closed("a frame was sent only in part")
            length = memoryview(len(view).to_bytes(LENGTH_BYTES, "big"))
            try:
                self._send_all([length, view])
            finally:
                self._end_if_half_sent()

    def has_room(self, frame_bytes: int) -> bool:
        """Whether the system takes all of a frame, whatever the peer does.

        The system counts what it adds to a frame, too: a quarter of it at most.
        """
        try:
            raw = self._sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            memory = _MEMINFO.unpack(raw)
        except (OSError, struct.error):  # closed, or another system
            return False
        taken_bytes = max(memory[_SEND_QUEUED], memory[_SEND_ALLOCATED])
        free_bytes: int = memory[_SEND_BUFFER] - taken_bytes
        needed_bytes = frame_bytes + frame_bytes // 4 + _KERNEL_BYTES
        return needed_bytes <= free_bytes

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame; one copy more than ``borrow``."""
        with self._receive_lock:
            return bytes(self._next_frame(Deadline(timeout_s)))

    def borrow(self, timeout_s: float | None = None) -> memoryview:
        """The next frame, in this transport's own receive buffer."""
        with self._receive_lock:
            return self._next_frame(Deadline(timeout_s))

    def detach(self, frame: bytes) -> tuple[socket.socket, bytes]:
        """The socket, for somebody else, and what of its bytes was received already.

        Args:
            frame: The last frame received; it is given back, with what came behind it.
        """
        with self._send_lock, self._receive_lock:
            self._closed = True
            behind = bytes(self._ahead[self._ahead_at : self._ahead_end])
        return self._sock, len(frame).to_bytes(LENGTH_BYTES, "big") + frame + behind

    def close(self) -> None:
        """Close the socket; a thread that waits on it gets ``PeerError``."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)
        # A thread may be polling the descriptor: it must not be given to another file
        # before that thread woke up, hence the locks.
        with self._send_lock, self._receive_lock:
            self._sock.close()

    def _end_if_half_sent(self) -> None:
        """After half a frame the connection is over: the next would be its rest."""
        if self._half_sent:
            with contextlib.suppress(OSError):  # not connected any more
                self._sock.shutdown(socket.SHUT_RDWR)

    def _send_all(self, parts: list[memoryview]) -> None:
        deadline = Deadline(self._send_timeout_s)
        while parts:
            sent = self._attempt_send(parts)
            if sent is None:
                self._wait(select.POLLOUT, deadline)
                continue
            deadline = Deadline(self._send_timeout_s)
            parts = _without(parts, sent)
            self._half_sent = bool(parts)

    def _attempt_send(self, parts: list[memoryview]) -> int | None:
        if self._closed:
            raise peer_closed()
        try:
            return self._sock.sendmsg(parts)
        except BlockingIOError:
            return None
        except OSError as error:
            raise peer_closed(error) from error

    def _next_frame(self, deadline: Deadline) -> memoryview:
        while True:
            self._fill(deadline)
            if self._in_body:
                self._expect(LENGTH_BYTES, in_body=False)
                return memoryview(self._body)[: self._last_frame_bytes]
            length = int.from_bytes(self._body[:LENGTH_BYTES], "big")
            most = min(self.max_frame_bytes, self.max_received_bytes)
            check_announced_bytes(length, most)
            self._expect(length, in_body=True)

    def _expect(self, wanted: int, *, in_body: bool) -> None:
        self._last_frame_bytes = self._wanted
        self._wanted, self._in_body, self._filled = wanted, in_body, 0
        if in_body and len(self._body) < wanted:
            self._body = bytearray(wanted)

    def _fill(self, deadline: Deadline) -> None:
        if len(self._body) < self._wanted:
            self._body = bytearray(self._wanted)
        view = memoryview(self._body)[: self._wanted]
        while self._filled < self._wanted:
            room = view[self._filled :]
            if self._ahead_at < self._ahead_end:
                self._filled += self._take_ahead(room)
            elif len(room) >= _AHEAD_BYTES:
                self._filled += self._receive_into(room, deadline)
            else:
                self._ahead_end = self._receive_into(self._ahead, deadline)
                self._ahead_at = 0

    def _take_ahead(self, room: memoryview) -> int:
        taken = self._ahead[self._ahead_at : self._ahead_end][: len(room)]
        room[: len(taken)] = taken
        self._ahead_at += len(taken)
        return len(taken)

    def _receive_into(self, room: memoryview, deadline: Deadline) -> int:
        """Some bytes, at least one; waits for them."""
        while True:
            if self._closed:
                raise peer_closed()
            try:
                count = self._sock.recv_into(room)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise peer_closed(error) from error
            if count == 0:
                raise peer_closed("the peer closed it")
            return count

    def _wait(self, events: int, deadline: Deadline) -> None:
        poller = select.poll()
        poller.register(self._sock, events)
        if not poller.poll(deadline.remaining_ms()):
            raise peer_timeout()


class TcpListener:
    """A listening TCP socket.

    Args:
        host: Address to listen on.
        port: Port; 0 lets the system choose.

    Raises:
        UnavailableError: if the port is in use or may not be opened.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            self._sock = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=_BACKLOG,
                dualstack_ipv6=host == "::",  # every address of this machine
            )
        except OSError as error:
            raise _cannot_listen(host, port, error) from error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    def accept(self, timeout_s: float | None = None) -> TcpTransport:
        """The next connection.

        Raises:
            PeerError: if none came in time, or the listener was closed.
        """
        return TcpTransport(self.accept_socket(timeout_s))

    def accept_socket(self, timeout_s: float | None = None) -> socket.socket:
        """The next connection, for what must be said before frames cross."""
        try:
            self._sock.settimeout(timeout_s)
            sock, _ = self._sock.accept()
        except TimeoutError as error:
            raise peer_timeout() from error
        except OSError as error:
            raise peer_closed(error) from error
        return sock

    def close(self) -> None:
        """Stop listening."""
        # Wakes a thread inside accept; some systems refuse it on a listening socket.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def peer_host(sock: socket.socket) -> str:
    """Whom the other end's places are counted for; empty if it has no address.

    An address without a port; of IPv6 the first 64 bits, for all others are its own.
    """
    try:
        name = sock.getpeername()
    except OSError:
        return ""
    if not isinstance(name, tuple):
        return ""
    host = str(name[0])
    if sock.family == socket.AF_INET6:
        return str(ip_network((host.partition("%")[0], 64), strict=False))
    return host


def connect_socket(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """A connected socket, for what must be said before frames cross.

    Raises:
        PeerError: if nobody answers there.
    """
    try:
        return socket.create_connection((host, port), timeout=timeout_s)
    except (OSError, UnicodeError, OverflowError) as error:
        raise PeerError(
            f"cannot connect to {host}:{port}",
            why=_reason(error),
            code="peer-unreachable",
        ) from error


def _without(parts: list[memoryview], sent: int) -> list[memoryview]:
    left = []
    for part in parts:
        if sent < len(part):
            left.append(part[sent:])
        sent = max(0, sent - len(part))
    return left


def _cannot_listen(host: str, port: int, error: OSError) -> UnavailableError:
    in_use = error.errno == errno.EADDRINUSE
    return UnavailableError(
        f"cannot listen on {host}:{port}",
        why="the port is in use" if in_use else _reason(error),
        fix="" if in_use else "Check the address and this user's privileges",
        code="port-in-use" if in_use else "cannot-listen",
    )


def _reason(error: OSError | UnicodeError | OverflowError) -> str:
    if isinstance(error, UnicodeError):
        return "not a host name"
    if isinstance(error, OverflowError):
        return "not a port"
    return error.strerror or type(error).__name__
