"""A little HTTPS proxy on loopback, which tunnels, refuses, or answers itself."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

FAR = ("relay.example", 7410)  # a name that this proxy alone resolves
ALERT = bytes.fromhex("15030100020246")  # TLS: fatal, protocol version
PAGE = b"<html><body>Blocked by policy</body></html>"
OPEN = b"HTTP/1.1 200 Connection established\r\n"


def status(line: str) -> bytes:
    return f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode()


@dataclass
class LittleProxy:
    """What it does, and what it was asked.

    Attributes:
        target: Where tunnels lead, whatever was asked for.
        answer: To CONNECT; a tunnel follows if it begins with OPEN.
        instead: What is sent in place of the target's first bytes.
        password: USER:PASSWORD that is demanded.
        own: Where it listens.
        requests: The headers that came.
    """

    target: tuple[str, int] | None = None
    answer: bytes = OPEN + b"\r\n"
    instead: bytes = b""
    password: str = ""
    own: tuple[str, int] = ("127.0.0.1", 0)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(self.own)
        self.place = f"{self.own[0]}:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def environment(self, credentials: str = "") -> dict[str, str]:
        at = f"{credentials}@" if credentials else ""
        return {"HTTPS_PROXY": f"http://{at}{self.place}", "NO_PROXY": ""}

    def close(self) -> None:
        _end(self._listener)
        self._acceptor.join()  # it may have one that it was just given
        for each in self._open:
            _end(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._open.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request and (more := sock.recv(4096)):
                request += more
            self.requests.append(request.decode())
            sock.sendall(self._answer())
            if not self._answer().startswith(OPEN):
                sock.shutdown(socket.SHUT_RDWR)
            elif self.instead:
                sock.recv(4096)
                sock.sendall(self.instead)
            elif self.target is not None:
                self._tunnel(sock)

    def _answer(self) -> bytes:
        if self.password:
            given = base64.b64encode(self.password.encode()).decode()
            if f"Proxy-Authorization: Basic {given}\r\n" not in self.requests[-1]:
                return status("407 Proxy Authentication Required")
        return self.answer

    def _tunnel(self, near: socket.socket) -> None:
        assert self.target is not None
        try:
            far = socket.create_connection(self.target)
        except OSError:
            near.shutdown(socket.SHUT_RDWR)
            return
        self._open.append(far)
        threading.Thread(target=_carry, args=(far, near), daemon=True).start()
        _carry(near, far)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(65536):
            target.sendall(some)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def little_proxy(
    target: tuple[str, int] | None = None,
    *,
    answer: bytes = OPEN + b"\r\n",
    instead: bytes = b"",
    password: str = "",
) -> Iterator[LittleProxy]:
    """One that runs until the block ends."""
    proxy = LittleProxy(target, answer, instead, password)
    try:
        yield proxy
    finally:
        proxy.close()
