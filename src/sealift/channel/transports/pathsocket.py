"""Unix sockets at a path, between two processes that were told of it.

Whoever listens makes the file, for its own user alone unless it is told another one; it
removes the file again, and one that a killed process left. Both ends check the user at
the other end (peer credentials) before a byte crosses, and can say which process is there:
the number is the kernel's, so a process in between has another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Final

from sealift.channel.transports.localsocket import check_peer_user
from sealift.channel.transports.transport import Deadline, peer_closed, peer_timeout
from sealift.errors import PeerError, RefusedError, UnavailableError

_CREDENTIALS: Final = struct.Struct("3i")
_PAUSE_S: Final = 0.05
# EACCES: the file is there, and its permissions come next.
_NOBODY_YET: Final = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.EACCES)


class PathListener:
    """Listens at a path.

    Args:
        path: Where; at most about 100 bytes long.
        peer_uid: User that may come; this one's by default.

    Raises:
        UnavailableError: if somebody listens there, or nobody can.
    """

    def __init__(self, path: Path, *, peer_uid: int | None = None) -> None:
        self._path = path
        self._peer_uid = peer_uid
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._made = _bind(self._sock, path)
            # Nobody can connect before `listen`, so the permissions come in time.
            others = peer_uid not in (None, os.geteuid())
            path.chmod(0o666 if others else 0o600)
            self._sock.listen(1)
        except OSError as error:
            self._sock.close()
            raise _cannot_listen(path, error) from error

    def accept(self, timeout_s: float | None) -> socket.socket:
        """The next connection of the user that may come; others are sent away.

        Raises:
            PeerError: if nobody came in time.
            RefusedError: code ``wrong-peer-user``, if only others did.
        """
        deadline, refused = Deadline(timeout_s), None
        while True:
            try:
                self._sock.settimeout(deadline.remaining_s())
                sock, _ = self._sock.accept()
                return _checked(sock, self._peer_uid)
            except RefusedError as error:
                refused = error
            except (TimeoutError, BlockingIOError) as error:
                raise refused or peer_timeout() from error
            except OSError as error:
                raise peer_closed(error.strerror or "") from error

    def close(self) -> None:
        """Stop listening; the file goes, if it is still ours. Idempotent."""
        self._sock.close()
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._made:
                self._path.unlink()


def dial_path(
    path: Path, timeout_s: float, *, peer_uid: int | None = None
) -> socket.socket:
    """Connect to whoever listens at ``path``; wait until somebody does.

    Raises:
        PeerError: code ``peer-unreachable``, if nobody did in time.
        RefusedError: code ``wrong-peer-user``.
    """
    deadline = Deadline(timeout_s)
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(deadline.remaining_s() or 0, _PAUSE_S))
            sock.connect(os.fspath(path))
            break
        except OSError as error:
            sock.close()
            over = not deadline.remaining_s() or error.errno not in _NOBODY_YET
            if over:
                raise _nobody(path, error) from error
            time.sleep(_PAUSE_S)
    return _checked(sock, peer_uid)


def peer_process(sock: socket.socket) -> int:
    """The process that connected, or listened: its number here; 0 if it is not here."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])


def _bind(sock: socket.socket, path: Path) -> tuple[int, int]:
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not _left_behind(path):
            raise
        path.unlink()
        sock.bind(os.fspath(path))
    return _identity(path)


def _left_behind(path: Path) -> bool:
    """Whether it is the socket of a process that is gone."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _checked(sock: socket.socket, peer_uid: int | None) -> socket.socket:
    try:
        check_peer_user(sock, peer_uid)
    except BaseException:
        sock.close()
        raise
    return sock


def _cannot_listen(path: Path, error: OSError) -> UnavailableError:
    in_use = error.errno == errno.EADDRINUSE
    return UnavailableError(
        f"cannot listen at {path}",
        why="something is there" if in_use else error.strerror or str(error),
        fix="Choose another path, in a folder of your own",
        code="cannot-listen",
    )


def _nobody(path: Path, error: OSError) -> PeerError:
    return PeerError(
        f"nobody listens at {path}",
        why=error.strerror or str(error),
        fix="Start the process of the device, with the same path",
        code="peer-unreachable",
    )
