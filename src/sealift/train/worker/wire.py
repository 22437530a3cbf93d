"""Messages over the two descriptors of a worker and its zygote.

A worker may neither send nor receive on sockets, only read and write, so its messages
are a length and bytes on a stream. The zygote gets descriptors along with an order.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from typing import Final

from sealift.errors import MalformedError, PeerError

LENGTH_BYTES: Final = 4
MAX_CONTROL_BYTES: Final = 4096
MAX_DESCRIPTORS: Final = 200
TIMED_OUT: Final = "worker-timeout"
GONE: Final = "worker-gone"


def write_framed(descriptor: int, raw: bytes) -> None:
    """Write one message.

    Raises:
        PeerError: code ``worker-gone``.
    """
    left = memoryview(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        raise _gone() from None


def read_framed(descriptor: int, *, max_bytes: int, wait: float | None = None) -> bytes:
    """Read one message.

    Args:
        descriptor: Of a stream.
        max_bytes: Longest message that is read at all.
        wait: Seconds within which each piece must come; None to wait for ever.

    Raises:
        PeerError: code ``worker-gone`` or ``worker-timeout``.
        MalformedError: if it would be longer.
    """
    length = int.from_bytes(_read(descriptor, LENGTH_BYTES, wait), "big")
    if length > max_bytes:
        raise MalformedError(f"a message of {length} bytes", code="bad-message")
    return _read(descriptor, length, wait)


def send_with(control: socket.socket, raw: bytes, descriptors: Sequence[int]) -> None:
    """Send one packet and descriptors along with it.

    Raises:
        PeerError: code ``worker-gone``.
    """
    try:
        socket.send_fds(control, [raw], list(descriptors))
    except OSError:
        raise _gone() from None


def receive_with(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors; empty when the other end is closed."""
    try:
        raw, found, _flags, _address = socket.recv_fds(
            control, MAX_CONTROL_BYTES, MAX_DESCRIPTORS
        )
    except OSError:
        return b"", []
    return raw, found


def _read(descriptor: int, length: int, wait: float | None) -> bytes:
    found = bytearray()
    while len(found) < length:
        if wait is not None and not _is_ready(descriptor, wait):
            raise PeerError("the recipe's process says nothing", code=TIMED_OUT)
        try:
            piece = os.read(descriptor, min(length - len(found), 1 << 16))
        except OSError:
            piece = b""
        if not piece:
            raise _gone()
        found += piece
    return bytes(found)


def _is_ready(descriptor: int, wait: float) -> bool:
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait * 1000))


def _gone() -> PeerError:
    return PeerError("the recipe's process is gone", code=GONE)
