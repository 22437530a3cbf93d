"""Start a process that opens records, hand it keys through a pipe, end it.

Keys go over an unnamed socket pair that the process inherits: never through a file, an
argument or the environment. Rows come back in a memory file that it inherits as well.
Guarantees: a process that is gone is an error that says so; none outlives the loader,
also where the loader was killed.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

from sealift import codec
from sealift.crypto.keys import TOKEN
from sealift.data.loader.arena import WindowArena
from sealift.data.loader.opening import Extent
from sealift.data.loader.worker.wire import (
    AssignedShard,
    Assignment,
    error_of,
    pack_extents,
    receive_frame,
    send_frame,
)
from sealift.data.shards.shard import Shard
from sealift.errors import MalformedError, PeerError, UnavailableError, UsageError

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
            send_frame(self._sock, pack_extents(extents))
            answer = receive_frame(self._sock)
        except OSError:
            answer = None
        if answer is None:
            raise self._gone()
        if answer:
            raise error_of(bytes(answer))

    def close(self) -> None:
        """End the process; it scrubs what it holds. Idempotent."""
        with self._lock:
            self._sock.close()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _assign(self, assignment: bytes, shards: Sequence[Shard]) -> None:
        keys = bytearray().join(shard.key.reveal(TOKEN) for shard in shards)
        try:
            send_frame(self._sock, assignment)
            send_frame(self._sock, keys)
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
            f"the process {self.process.pid} that opens records is gone",
            why=_words(status),
            fix="Look at the machine's memory; then go on from the loader's state",
            code="opener-gone",
        )


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
            "cannot start a process that opens records",
            why=error.strerror or str(error),
            fix="Use workers='thread'",
            code="opener-gone",
        ) from error


def _assignment(shards: Sequence[Shard], arena: WindowArena) -> bytes:
    entries = [
        AssignedShard(
            place=shard.place,
            header=shard.header,
            card=codec.encode(shard.card) if shard.card else b"",
            options=dict(shard.options),
        )
        for shard in shards
    ]
    try:
        return codec.encode(Assignment(arena.total_bytes, tuple(entries)))
    except MalformedError as error:
        raise UsageError(
            "storage_options cannot be handed to another process",
            why=error.why,
            fix="Use plain values, or workers='thread'",
        ) from None


def _words(status: int) -> str:
    if status >= 0:
        return f"it ended with exit code {status}"
    return f"it was killed by {signal.Signals(-status).name}"
