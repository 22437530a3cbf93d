"""Unix sockets between processes of one user on one machine.

The socket has a random name in the abstract namespace (unix(7)): there is no file, so
nothing is left behind by a process that was killed, and a peer cannot be sent to a
socket of somebody else. Both ends check the other's user id (peer credentials) before a
byte crosses. That keeps other users out, not other processes of this user: who of them
is there is the caller's to prove.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct
from typing import Final

from sealift.channel.transport.transport import peer_closed, peer_timeout
from sealift.errors import MalformedError, PeerError, RefusedError, UnavailableError

_BACKLOG: Final = 16
_NAME: Final = re.compile(r"@sealift-[0-9a-f]{32}")  # "@" stands for the NUL byte
_CREDENTIALS: Final = struct.Struct("3i")


class LocalListener:
    """A listening Unix socket under a name that nobody can guess.

    Raises:
        UnavailableError: if this system has none.
    """

    def __init__(self) -> None:
        self.name = f"@sealift-{secrets.token_hex(16)}"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.bind(_address(self.name))
            self._sock.listen(_BACKLOG)
        except OSError as error:
            self._sock.close()
            raise UnavailableError(
                "cannot listen on a local socket",
                why=error,
                fix="Nothing need be done: cargo goes through the relay",
                code="cannot-listen",
            ) from error

    def accept(self) -> socket.socket:
        """The next connection of this user.

        Raises:
            PeerError: if the listener was closed.
            RefusedError: code ``wrong-peer-user``.
        """
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            raise peer_closed(error) from error
        return _of_this_user(sock)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        with contextlib.suppress(OSError):  # wakes a thread inside accept
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def dial_local(name: str, timeout_s: float) -> socket.socket:
    """Connect to a local listener of this user.

    Raises:
        MalformedError: if it is not the name of one.
        PeerError: if nobody listens there; on another machine nobody does.
        RefusedError: code ``wrong-peer-user``.
    """
    if not _NAME.fullmatch(name):
        raise MalformedError("not the name of a local socket", field="address")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(_address(name))
    except TimeoutError as error:
        sock.close()
        raise peer_timeout() from error
    except OSError as error:
        sock.close()
        raise PeerError(
            "no such local socket", why=error, code="peer-unreachable"
        ) from error
    return _of_this_user(sock)


def check_peer_user(sock: socket.socket, expected_uid: int | None = None) -> None:
    """Who listens, or dialled, must run as this user.

    Raises:
        RefusedError: code ``wrong-peer-user``.
    """
    if expected_uid is None:
        expected_uid = os.geteuid()
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != expected_uid:
        raise RefusedError(
            "another user is at the other end of the socket",
            why=f"user id {uid}, expected {expected_uid}",
            code="wrong-peer-user",
        )


def _address(name: str) -> bytes:
    return b"\0" + name[1:].encode()


def _of_this_user(sock: socket.socket) -> socket.socket:
    try:
        check_peer_user(sock)
    except RefusedError:
        sock.close()
        raise
    return sock
