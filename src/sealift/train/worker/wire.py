"""Messages over the two descriptors of a worker and its zygote.

A worker may neither send nor receive on sockets, only read and write, so its messages
are a length and bytes on a stream. The zygote gets descriptors along with an order.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

from sealift.errors import MalformedError, PeerError

LENGTH_BYTES: Final = 4
MAX_CONTROL_BYTES: Final = 4096
MAX_DESCRIPTORS: Final = 200
TIMED_OUT: Final = "worker-timeout"
GONE: Final = "worker-gone"
Left = Callable[[], float]


def write_framed(descriptor: int, raw: bytes, left_s: Left | None = None) -> None:
    """Write one message.

    Args:
        descriptor: Of a stream; one that does not block, if there is a limit.
        raw: The message.
        left_s: Seconds left for all of it; None to wait for ever.

    Raises:
        PeerError: code ``worker-gone`` or ``worker-timeout``.
    """
    left = memoryview(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
    while left:
        _await(descriptor, select.POLLOUT, left_s)
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            continue
        except OSError:
            raise _gone() from None


def read_framed(
    descriptor: int, *, max_bytes: int, left_s: Left | None = None
) -> bytes:
    """Read one message.

    Args:
        descriptor: Of a stream.
        max_bytes: Longest message that is read at all.
        left_s: Seconds left for all of it, however slowly it comes; None to wait for
            ever.

    Raises:
        PeerError: code ``worker-gone`` or ``worker-timeout``.
        MalformedError: if it would be longer.
    """
    length = int.from_bytes(_read(descriptor, LENGTH_BYTES, left_s), "big")
    if length > max_bytes:
        raise MalformedError(f"a message of {length} bytes", code="bad-message")
    return _read(descriptor, length, left_s)


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


def _read(descriptor: int, length: int, left_s: Left | None) -> bytes:
    found = bytearray()
    while len(found) < length:
        _await(descriptor, select.POLLIN, left_s)
        try:
            piece = os.read(descriptor, min(length - len(found), 1 << 16))
        except BlockingIOError:
            continue
        except OSError:
            piece = b""
        if not piece:
            raise _gone()
        found += piece
    return bytes(found)


def _await(descriptor: int, event: int, left_s: Left | None) -> None:
    """Wait until something can be read or written, while there is time left at all."""
    if left_s is None:
        return
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(descriptor, event)
    seconds = left_s()
    if seconds <= 0 or not poll.poll(seconds * 1000):
        raise PeerError("the recipe's process takes too long", code=TIMED_OUT)


def _gone() -> PeerError:
    return PeerError("the recipe's process is gone", code=GONE)
