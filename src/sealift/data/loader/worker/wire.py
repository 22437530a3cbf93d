"""What a loader and its opening processes say to each other.

Frames over an unnamed socket pair: a u32 length and bytes. First the assignment
(canonical JSON) and, in a frame of their own, the data keys; then requests, which are
extents, each answered by an empty frame, or by the error that opening raised.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealift import codec
from sealift.data.loader.opening import Extent
from sealift.data.shards.shard import ShardRefusedError
from sealift.errors import (
    IntegrityError,
    MalformedError,
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
class AssignedShard:
    """A shard, without its key."""

    place: str
    header: bytes
    card: bytes
    options: dict[str, Any]


@dataclass(frozen=True)
class Assignment:
    """What an opening process is to open."""

    arena_bytes: int
    shards: tuple[AssignedShard, ...]


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


def send_frame(sock: socket.socket, raw: bytes | bytearray) -> None:
    """Send one frame; raises OSError if nobody is there."""
    sock.sendall(_LENGTH.pack(len(raw)))
    sock.sendall(raw)


def receive_frame(
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
        raise MalformedError(f"a frame of {length} bytes", code="bad-message")
    return _receive(sock, length, keep_waiting)


def pack_extents(extents: Sequence[Extent]) -> bytes:
    """The bytes of a request."""
    return b"".join(_EXTENT.pack(e.shard, e.start, e.end, e.at) for e in extents)


def unpack_extents(raw: bytearray) -> list[Extent]:
    """The extents of a request."""
    return [Extent(*numbers) for numbers in _EXTENT.iter_unpack(raw)]


def failure_of(error: SealiftError) -> bytes:
    """An error as an answer."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    place, offset = getattr(error, "field", ""), getattr(error, "offset", None)
    return codec.encode(
        Failure(kind, error.what, error.why, error.fix, error.code, place, offset)
    )


def error_of(answer: bytes) -> SealiftError:
    """The error that an answer tells of.

    Raises:
        MalformedError: if it tells of none.
    """
    failure = codec.decode(Failure, answer)
    words = {"why": failure.why, "fix": failure.fix, "code": failure.code}
    kind = _KINDS.get(failure.kind)
    if kind is None:
        raise MalformedError("an error of no known kind", code="bad-message")
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
