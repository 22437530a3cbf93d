"""`python -m sealift.data.loader.worker SOCKET MEMORY`: open records until the pipe closes.

Both numbers are descriptors that the loader left open for this process. It ends when
the loader closes its end, or is gone; Ctrl-C is the loader's business.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from typing import Final

from sealift import codec
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.data.loader.opening import ShardOpener
from sealift.data.loader.windows import map_arena
from sealift.data.loader.worker.process import (
    MAX_FRAME_BYTES,
    AssignedShard,
    Assignment,
    failure_of,
    receive_frame,
    send_frame,
    unpack_extents,
)
from sealift.data.schema.card import parse_card
from sealift.data.shards.shard import Shard, leaves_of
from sealift.errors import SealiftError

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

    assigned = receive_frame(sock, parent_lives)
    keys = receive_frame(sock, parent_lives)
    if assigned is None or keys is None:
        return
    opener = _opener(bytes(assigned), keys, int(sys.argv[2]))
    try:
        while (request := receive_frame(sock, parent_lives)) is not None:
            send_frame(sock, _answer(opener, request))
    except ConnectionError:
        pass
    finally:
        opener.close()


def _answer(opener: ShardOpener, request: bytearray) -> bytes:
    try:
        opener.open(unpack_extents(request))
    except SealiftError as error:
        return failure_of(error)
    return b""


def _opener(assigned: bytes, keys: bytearray, memory: int) -> ShardOpener:
    assignment = codec.decode(Assignment, assigned, max_bytes=MAX_FRAME_BYTES)
    arena = memoryview(map_arena(memory, assignment.arena_bytes))
    shards = [
        _shard(entry, keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])
        for index, entry in enumerate(assignment.shards)
    ]
    keys[:] = bytes(len(keys))
    leaves = [leaves_of(shard.card, shard.key) for shard in shards]
    return ShardOpener(shards, leaves, lambda at, length: arena[at : at + length])


def _shard(entry: AssignedShard, key: bytearray) -> Shard:
    card = parse_card(entry.card, source="the card") if entry.card else None
    secret = SecretKey(key)
    key[:] = bytes(len(key))
    return Shard(entry.place, secret, card, entry.options, entry.header)


if __name__ == "__main__":
    main()
