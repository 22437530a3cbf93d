"""A modelled link: a relay in this process that lets bytes through by a token bucket.

It stands in where the kernel's shaper may not be used. What it does not model: latency,
loss, headers, and that one processor does the relaying.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

PIECE_BYTES: Final = 16 << 10
LOOPBACK: Final = "127.0.0.1"
Address = tuple[str, int]


class TokenBucket:
    """Bytes per second, shared by whoever takes from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes_per_s = 0.0
        self._free_at = 0.0

    def set_rate(self, bytes_per_s: float) -> None:
        """0 lets everything through."""
        with self._lock:
            self._bytes_per_s, self._free_at = bytes_per_s, 0.0

    def take(self, count: int) -> None:
        """Wait until so many bytes may pass."""
        with self._lock:
            if not self._bytes_per_s:
                return
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + count / self._bytes_per_s
            wait_s = self._free_at - now
        time.sleep(wait_s)


class ModelledLink:
    """Both directions capped, for every connection that goes through."""

    here = LOOPBACK

    def __init__(self) -> None:
        self._buckets = (TokenBucket(), TokenBucket())
        self._listeners: list[socket.socket] = []

    def cap(self, mbit_per_s: float) -> None:
        """Cap both directions; 0 takes the cap away."""
        for bucket in self._buckets:
            bucket.set_rate(mbit_per_s * 1e6 / 8)

    def through(self, address: Address) -> Address:
        """Where to dial to reach ``address`` over the link."""
        listener = socket.create_server((LOOPBACK, 0))
        self._listeners.append(listener)
        _start(self._accept, listener, address)
        host, port = listener.getsockname()
        return str(host), int(port)

    def inside(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """There is no other side to be on."""
        return command

    def close(self) -> None:
        """Take no more connections."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket, address: Address) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(address)
                _start(self._connect, near, far)

    def _connect(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            back = _start(_pump, far, near, self._buckets[1])
            _pump(near, far, self._buckets[0])
            back.join()


def _pump(source: socket.socket, sink: socket.socket, bucket: TokenBucket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            bucket.take(len(piece))
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
