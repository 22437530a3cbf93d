"""A link with a cap: two network namespaces and a real shaper, or a modelled one.

Real: the holder's processes live in a network namespace of their own, joined to this one
by a veth pair with a token bucket filter (tc-tbf) in each direction. That needs root and
iproute2. Else ``unlimited`` tells why, and the link is modelled: a relay in this process
lets bytes through by a token bucket. What that does not model: latency, loss, headers, and
that one processor does the relaying.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

LATENCY: Final = "400ms"  # how long a packet may wait in the shaper
MIN_BURST_BYTES: Final = 32 << 10
PIECE_BYTES: Final = 16 << 10
LOOPBACK: Final = "127.0.0.1"
Address = tuple[str, int]


class Link:
    """What lies between holder and accelerator; this one is no limit.

    Attributes:
        here: The address at this process's end.
    """

    here = LOOPBACK

    def cap(self, mbit_per_s: float) -> None:
        """Cap both directions; 0 takes the cap away."""

    def inside(self) -> tuple[str, ...]:
        """What runs a command at the far end; nothing where there is no other side."""
        return ()

    def through(self, address: Address) -> Address:
        """Where to dial from the far end to reach an address here."""
        return address

    def close(self) -> None:
        """Take it away."""


@contextmanager
def capped_link(why_not: str) -> Iterator[Link]:
    """A link with a real shaper, or a modelled one if there is a reason against it."""
    link = ModelledLink() if why_not else ShapedLink()
    try:
        if isinstance(link, ShapedLink):
            link.open()
        yield link
    finally:
        link.close()


def unlimited() -> str:
    """Why no link can be shaped here; empty if one can."""
    if os.geteuid() != 0:
        return "it takes root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (iproute2)"
    try:
        _run("ip", "netns", "list")
        probe = ShapedLink()
        try:
            probe.open()
            probe.cap(100)
        finally:
            probe.close()
    except (OSError, subprocess.CalledProcessError):
        return "the kernel refuses network namespaces, veth pairs or tbf"
    return ""


class ShapedLink(Link):
    """A veth pair; this process is at one end, ``inside`` commands at the other."""

    def __init__(self) -> None:
        tag = secrets.token_hex(3)
        self._space, self._here, self._there = f"sl-{tag}", f"sl{tag}a", f"sl{tag}b"
        net = 1 + secrets.randbelow(250)
        self.here, self._far = f"10.213.{net}.1", f"10.213.{net}.2"

    def open(self) -> None:
        """Make namespace and pair, without a cap."""
        _run("ip", "netns", "add", self._space)
        pair = (self._here, "type", "veth", "peer", "name", self._there)
        _run("ip", "link", "add", *pair)
        _run("ip", "link", "set", self._there, "netns", self._space)
        _run("ip", "addr", "add", f"{self.here}/30", "dev", self._here)
        _run("ip", "link", "set", self._here, "up")
        far = ("ip", "-n", self._space)
        _run(*far, "addr", "add", f"{self._far}/30", "dev", self._there)
        _run(*far, "link", "set", self._there, "up")
        _run(*far, "link", "set", "lo", "up")

    def cap(self, mbit_per_s: float) -> None:
        """Cap both directions; 0 takes the cap away."""
        for where, device in (((), self._here), (("-n", self._space), self._there)):
            if not mbit_per_s:
                with suppress(subprocess.CalledProcessError):  # there was none
                    _run("tc", *where, "qdisc", "del", "dev", device, "root")
                continue
            burst = max(MIN_BURST_BYTES, int(mbit_per_s * 1e6 / 8 / 200))
            shaper = ("tbf", "rate", f"{mbit_per_s}mbit", "burst", str(burst))
            place = ("qdisc", "replace", "dev", device, "root")
            _run("tc", *where, *place, *shaper, "latency", LATENCY)

    def inside(self) -> tuple[str, ...]:
        """What runs a command in that namespace."""
        return ("ip", "netns", "exec", self._space)

    def close(self) -> None:
        """Remove pair and namespace."""
        for command in (("link", "del", self._here), ("netns", "del", self._space)):
            with suppress(subprocess.CalledProcessError):
                _run("ip", *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)  # noqa: S603 - fixed commands


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


class ModelledLink(Link):
    """Both directions capped, for every connection that goes through."""

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
