"""Unix sockets between processes of one user on one machine.

The socket has a random name in the abstract namespace (unix(7)): there is no file, so
nothing is left behind by a process that was killed, and a peer cannot be sent to a
socket of somebody else. Both ends check the other's user id (peer credentials) before a
byte crosses. That keeps other users out, not other processes of this user: who of them
is there is the caller's to prove.

Unix sockets at a path, between two processes that were told of it.

Whoever listens makes the file, for its own user alone unless it is told another one; it
removes the file again, and one that a killed process left. Both ends check the user at
the other end (peer credentials) before a byte crosses, and can say which process is there:
the number is the kernel's, so a process in between has another.
Other users may be able to write the folder: nothing here changes a file that somebody put
where the socket was (no symbolic link is followed). What listens is recognised without a
connection to it, which it would take for the one that it waits for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import select
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sealift.channel.transport.transport import Deadline, peer_closed, peer_timeout
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
                fix="You need not do anything: the rows are sent through the relay",
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
        return _checked(sock)

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
    return _checked(sock)


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
            "the other end of the socket belongs to another user",
            why=f"user id {uid}, expected {expected_uid}",
            code="wrong-peer-user",
        )


def _address(name: str) -> bytes:
    return b"\0" + name[1:].encode()


_INT: Final = struct.Struct("i")
_PEER_PIDFD: Final = 77  # SO_PEERPIDFD, for which Python has no name
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
        self._made: tuple[int, int] | None = None
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before `bind`, so that the file is made with it.
            os.fchmod(self._sock.fileno(), 0o600)
            self._made = _bind(self._sock, path)
            if peer_uid not in (None, os.geteuid()):
                _open_to_others(path, self._made)
            self._sock.listen(1)
        except OSError as error:
            self.close()
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
                raise peer_closed(error) from error

    def close(self) -> None:
        """Stop listening; the file goes, if it is still ours. Idempotent."""
        with contextlib.suppress(OSError):
            # While the socket is open no other file has its number.
            if self._made is not None and _identity(self._path) == self._made:
                self._path.unlink()
        self._made = None
        self._sock.close()


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
    """The process that connected, or listened: its number here.

    0 if it is not here, or gone: its number is another one's then, or may be.
    """
    if _peer_is_gone(sock):
        return 0
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])


def _peer_is_gone(sock: socket.socket) -> bool:
    """Whether that process ended, as far as this kernel can tell (Linux 6.5)."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD, _INT.size)
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    (descriptor,) = _INT.unpack(raw)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(0))  # readable once the process ended
    finally:
        os.close(descriptor)


def _bind(sock: socket.socket, path: Path) -> tuple[int, int]:
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        with _alone_in(path.parent):
            if not _left_behind(path):
                raise
            path.unlink()
            sock.bind(os.fspath(path))
    return _identity(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Nobody else replaces a socket here meanwhile; whoever comes second is refused."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _left_behind(path: Path) -> bool:
    """Whether it is the socket of a process that is gone.

    Asked by a socket of another kind: one that is in use refuses that, and does not hear
    of it, also where it does not listen yet.
    """
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def _open_to_others(path: Path, made: tuple[int, int]) -> None:
    """Let other users connect to the socket that was made, and touch no other file."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        ours = (status.st_dev, status.st_ino) == made and status.st_uid == os.geteuid()
        if not (ours and stat.S_ISSOCK(status.st_mode)):
            raise FileExistsError(errno.EADDRINUSE, "somebody replaced the socket")
        # `fchmod` takes no such descriptor; by this name the file is the one that is open.
        Path(f"/proc/self/fd/{descriptor}").chmod(0o666)
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _checked(sock: socket.socket, peer_uid: int | None = None) -> socket.socket:
    try:
        check_peer_user(sock, peer_uid)
    except BaseException:
        sock.close()
        raise
    return sock


def _cannot_listen(path: Path, error: OSError) -> UnavailableError:
    in_use = error.errno in (errno.EADDRINUSE, errno.EAGAIN)
    return UnavailableError(
        f"cannot listen at {path}",
        why="a file exists there" if in_use else error,
        fix="Choose another path, in a folder that only you can write to",
        code="cannot-listen",
    )


def _nobody(path: Path, error: OSError) -> PeerError:
    return PeerError(
        f"nobody listens at {path}",
        why=error,
        fix="Start the device's process with the same path",
        code="peer-unreachable",
    )
