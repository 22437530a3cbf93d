"""Processes that open records for a loader: how one is started, asked, and what it does.

Keys go over an unnamed socket pair that the process inherits: never through a file, an
argument or the environment. Rows come back in a memory file that it inherits as well.
Frames over the pair: a u32 length and bytes. First the assignment (canonical JSON) and, in
a frame of their own, the data keys; then requests, which are extents, each answered by an
empty frame, or by the error that opening raised.
``python -m sealift.data.loader.worker SOCKET MEMORY`` is the process: both numbers are
descriptors that the loader left open for it. Ctrl-C is the loader's business.
Guarantees: a process that is gone is an error that says so; none outlives the loader,
also where the loader was killed.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealift import codec
from sealift.crypto.keys import KEY_BYTES, TOKEN, SecretKey
from sealift.data.loader.opening import Extent, ShardOpener
from sealift.data.loader.windows import WindowArena, map_arena
from sealift.data.schema.card import parse_card
from sealift.data.shards.shard import Shard, ShardRefusedError, leaves_of
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PeerError,
    SealiftError,
    UnavailableError,
    UsageError,
)

MAX_FRAME_BYTES: Final = 1 << 30
_LENGTH: Final = struct.Struct(">I")
_EXTENT: Final = struct.Struct(">IQQQ")
_KINDS: Final[dict[str, type[SealiftError]]] = {
    kind.__name__: kind
    for kind in (
        IntegrityError, MalformedError, ShardRefusedError, UnavailableError, UsageError,
    )
}  # fmt: skip


@dataclass(frozen=True)
class _AssignedShard:
    """A shard, without its key."""

    place: str
    header: bytes
    card: bytes
    options: dict[str, Any]


@dataclass(frozen=True)
class _Assignment:
    """What an opening process is to open."""

    arena_bytes: int
    shards: tuple[_AssignedShard, ...]


@dataclass(frozen=True)
class Failure:
    """An error as it crosses: its class by name, and its words."""

    kind: str
    what: str
    why: str
    fix: str
    code: str
    field: str = ""
    offset: int | None = None


def _send_frame(sock: socket.socket, raw: bytes | bytearray) -> None:
    """Send one frame; raises OSError if nobody is there."""
    sock.sendall(_LENGTH.pack(len(raw)))
    sock.sendall(raw)


def _receive_frame(
    sock: socket.socket, keep_waiting: Callable[[], bool] = lambda: True
) -> bytearray | None:
    """The next frame; None when the other end is closed, or waiting is over.

    Args:
        sock: With a timeout, after which ``keep_waiting`` is asked.
        keep_waiting: Whether to go on.
    """
    head = _receive(sock, _LENGTH.size, keep_waiting)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise MalformedError(f"a frame has {length:,} bytes", code="bad-message")
    return _receive(sock, length, keep_waiting)


def failure_of(error: SealiftError) -> bytes:
    """An error as an answer."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    place, offset = getattr(error, "field", ""), getattr(error, "offset", None)
    return codec.encode(
        Failure(kind, error.what, error.why, error.fix, error.code, place, offset)
    )


def _error_of(answer: bytes) -> SealiftError:
    """The error that an answer tells of.

    Raises:
        MalformedError: if it tells of none.
    """
    failure = codec.decode(Failure, answer)
    words: dict[str, Any] = {
        "why": failure.why,
        "fix": failure.fix,
        "code": failure.code,
    }
    kind = _KINDS.get(failure.kind)
    if kind is None:
        raise MalformedError(
            "the worker reported an error of an unknown kind", code="bad-message"
        )
    if kind is MalformedError:
        return MalformedError(
            failure.what, field=failure.field, offset=failure.offset, **words
        )
    return kind(failure.what, **words)


def _receive(
    sock: socket.socket, length: int, keep_waiting: Callable[[], bool]
) -> bytearray | None:
    raw = bytearray(length)
    view = memoryview(raw)
    while view:
        try:
            count = sock.recv_into(view)
        except TimeoutError:
            if not keep_waiting():
                return None
            continue
        except ConnectionError:
            return None
        if count == 0:
            return None
        view = view[count:]
    return raw


_END_S: Final = 5.0


class SpawnedOpener:
    """An opening process; see ``opening.Opener``.

    Args:
        shards: What it may open; their keys are handed over.
        arena: Memory that it shares, made with ``shared=True``.

    Raises:
        UnavailableError: if it cannot be started.
        UsageError: if storage options are no plain values.
    """

    def __init__(self, shards: Sequence[Shard], arena: WindowArena) -> None:
        assignment = _assignment(shards, arena)
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair()
        try:
            self.process = _start(theirs, arena.descriptor)
        except BaseException:
            self._sock.close()
            raise
        finally:
            theirs.close()
        # Also for an opener that is dropped without close: nobody else would wait for it.
        self._dropped = weakref.finalize(self, _end, self.process, self._sock)
        try:
            self._assign(assignment, shards)
        except BaseException:
            self.close()
            raise

    def open(self, extents: Sequence[Extent]) -> None:
        """See ``Opener``.

        Raises:
            PeerError: code ``opener-gone``, if the process ended.
        """
        try:
            packed = (_EXTENT.pack(e.shard, e.start, e.end, e.at) for e in extents)
            _send_frame(self._sock, b"".join(packed))
            answer = _receive_frame(self._sock)
        except OSError:
            answer = None
        if answer is None:
            raise self._gone()
        if answer:
            raise _error_of(bytes(answer))

    def close(self) -> None:
        """End the process; it scrubs what it holds. Idempotent."""
        with self._lock:
            _end(self.process, self._sock)
            self._dropped.detach()

    def _assign(self, assignment: bytes, shards: Sequence[Shard]) -> None:
        keys = bytearray().join(shard.key.reveal(TOKEN) for shard in shards)
        try:
            _send_frame(self._sock, assignment)
            _send_frame(self._sock, keys)
        except OSError:
            raise self._gone() from None
        finally:
            keys[:] = bytes(len(keys))

    def _gone(self) -> PeerError:
        try:
            status = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            status = 0
        return PeerError(
            f"the worker process {self.process.pid}, which opens records, ended",
            why=_words(status),
            fix="Check the machine's memory; then continue from the loader's state",
            code="opener-gone",
        )


def _end(process: subprocess.Popen[bytes], sock: socket.socket) -> None:
    sock.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(theirs: socket.socket, memory: int) -> subprocess.Popen[bytes]:
    # -P: else the folder that it starts in comes first, and its modules see the keys.
    command = [sys.executable, "-P", "-m", "sealift.data.loader.worker"]
    passed = [theirs.fileno(), memory]
    try:
        return subprocess.Popen(  # noqa: S603 - our own module
            [*command, *map(str, passed)], stdin=subprocess.DEVNULL, pass_fds=passed
        )
    except OSError as error:
        raise UnavailableError(
            "cannot start a worker process to open records",
            why=error,
            fix="Use workers='thread'",
            code="opener-gone",
        ) from error


def _assignment(shards: Sequence[Shard], arena: WindowArena) -> bytes:
    entries = [
        _AssignedShard(
            place=shard.place,
            header=shard.header,
            card=codec.encode(shard.card) if shard.card else b"",
            options=dict(shard.options),
        )
        for shard in shards
    ]
    try:
        return codec.encode(_Assignment(arena.total_bytes, tuple(entries)))
    except MalformedError as error:
        raise UsageError(
            "storage_options cannot be passed to another process",
            why=error.why,
            fix="Use plain values, or workers='thread'",
        ) from None


def _words(status: int) -> str:
    if status >= 0:
        return f"it ended with exit code {status}"
    return f"it was killed by {signal.Signals(-status).name}"


_WATCH_S: Final = 1.0


def main() -> None:
    """Serve one loader."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = os.getppid()
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.settimeout(_WATCH_S)

    def parent_lives() -> bool:
        return os.getppid() == parent

    assigned = _receive_frame(sock, parent_lives)
    keys = _receive_frame(sock, parent_lives)
    if assigned is None or keys is None:
        return
    opener = _opener(bytes(assigned), keys, int(sys.argv[2]))
    try:
        while (request := _receive_frame(sock, parent_lives)) is not None:
            _send_frame(sock, _answer(opener, request))
    except ConnectionError:
        pass
    finally:
        opener.close()


def _answer(opener: ShardOpener, request: bytearray) -> bytes:
    try:
        opener.open([Extent(*numbers) for numbers in _EXTENT.iter_unpack(request)])
    except SealiftError as error:
        return failure_of(error)
    return b""


def _opener(assigned: bytes, keys: bytearray, memory: int) -> ShardOpener:
    assignment = codec.decode(_Assignment, assigned, max_bytes=MAX_FRAME_BYTES)
    arena = memoryview(map_arena(memory, assignment.arena_bytes))
    shards = [
        _shard(entry, keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])
        for index, entry in enumerate(assignment.shards)
    ]
    keys[:] = bytes(len(keys))
    leaves = [leaves_of(shard.card, shard.key) for shard in shards]
    return ShardOpener(shards, leaves, lambda at, length: arena[at : at + length])


def _shard(entry: _AssignedShard, key: bytearray) -> Shard:
    card = parse_card(entry.card, source="the card") if entry.card else None
    secret = SecretKey(key)
    key[:] = bytes(len(key))
    return Shard(entry.place, secret, card, entry.options, entry.header)


if __name__ == "__main__":
    main()
