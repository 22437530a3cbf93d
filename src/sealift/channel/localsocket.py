"""Unix sockets between processes of one user on one machine.

The socket lies in a folder that only this user may enter, and both ends check the
other's user id (peer credentials) before a byte crosses. That keeps other users out, not
other processes of this user: who of them is there is the caller's to prove.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
from pathlib import Path
from typing import Final

from sealift.channel.transport import peer_closed, peer_timeout
from sealift.errors import PeerError, RefusedError, UnavailableError

_BACKLOG: Final = 16
_CREDENTIALS: Final = struct.Struct("3i")


class LocalListener:
    """A listening Unix socket in a private folder of its own.

    Raises:
        UnavailableError: if there is no place for it.
    """

    def __init__(self) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="sealift-"))  # mode 0700
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.path = str(self._folder / "cargo")
            self._sock.bind(self.path)
            self._sock.listen(_BACKLOG)
        except OSError as error:
            raise UnavailableError(
                "cannot listen on a local socket",
                why=error.strerror or str(error),
                fix="Let TMPDIR be a folder with a short name that can be written",
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
            raise peer_closed(error.strerror or "") from error
        return _of_this_user(sock)

    def close(self) -> None:
        """Stop listening and remove the folder. Idempotent."""
        with contextlib.suppress(OSError):  # wakes a thread inside accept
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def dial_local(path: str, timeout_s: float) -> socket.socket:
    """Connect to a local listener of this user.

    Raises:
        PeerError: if nobody listens there; on another machine nobody does.
        RefusedError: code ``wrong-peer-user``.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(path)
    except TimeoutError as error:
        sock.close()
        raise peer_timeout() from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        sock.close()
        why = getattr(error, "strerror", None) or "not the path of a socket"
        raise PeerError(
            "no such local socket", why=why, code="peer-unreachable"
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


def _of_this_user(sock: socket.socket) -> socket.socket:
    try:
        check_peer_user(sock)
    except RefusedError:
        sock.close()
        raise
    return sock
