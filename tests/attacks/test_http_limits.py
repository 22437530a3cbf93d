"""Hostile clients of the HTTP rim: too much, too slow, half open, nonsense.

Each with its control: the same server without that limit lets it through.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sealift.service import app as rim
from sealift.service.limits import Limits
from tests.sim.kbs_world import KbsWorld, kbs_world, problem

WIDE = Limits(per_address=1e6, in_all=1e6)


@contextmanager
def limited(folder: Path, **limits: float) -> Iterator[KbsWorld]:
    folder.mkdir(exist_ok=True)
    with kbs_world(folder, limits=replace(WIDE, **limits)) as world:  # type: ignore[arg-type]
        yield world


@contextmanager
def connected(world: KbsWorld) -> Iterator[socket.socket]:
    with socket.create_connection(world.address, timeout=10) as connection:
        yield connection


def ended(connection: socket.socket) -> bool:
    """Whether the server ends it; waits for that."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def status(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


def test_body_announced_too_large(tmp_path: Path) -> None:
    with limited(tmp_path) as world, connected(world) as connection:
        connection.sendall(
            b"POST /kbs/v0/attest HTTP/1.1\r\nhost: x\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        assert status(connection.recv(4096)) == 413
        assert ended(connection)


def test_body_sent_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, without a word about its length."""

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 1024

    with limited(tmp_path) as world:
        post = world.client().http.post
        assert problem(post("/kbs/v0/auth", content=chunks()))[:2] == (
            413,
            "LimitReached",
        )

        async def read_all(request: object, limit: int) -> bytes:
            return bytes(await request.body())  # type: ignore[attr-defined]

        monkeypatch.setattr(rim, "_read_body", read_all)
        assert problem(post("/kbs/v0/auth", content=chunks()))[0] == 401


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "٣"])
def test_length_that_is_none(tmp_path: Path, length: str) -> None:
    with limited(tmp_path) as world, connected(world) as connection:
        head = (
            f"POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert status(connection.recv(4096)) in (400, 413)


def test_slow_body(tmp_path: Path) -> None:
    head = b"POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    slow = limited(tmp_path, body_s=0.2, head_s=60)  # no other clock ends it
    with slow as world, connected(world) as connection:
        connection.sendall(head)
        assert status(connection.recv(4096)) == 408
        assert ended(connection)


def test_head_that_never_comes(tmp_path: Path) -> None:
    with limited(tmp_path, head_s=0.2) as world, ExitStack() as stack:
        silent, dripping = (stack.enter_context(connected(world)) for _ in range(2))
        dripping.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
        assert ended(silent)
        assert ended(dripping)
        assert world.client().get("/healthz").status_code == 200


def test_control_without_the_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn alone waits for ever."""
    from sealift.service.connection import TimedProtocol

    monkeypatch.setattr(TimedProtocol, "_expect_head", lambda self: None)
    with limited(tmp_path, head_s=0.2) as world, connected(world) as connection:
        connection.settimeout(1.0)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
        assert not ended(connection)


def test_one_byte_at_a_time_does_not_buy_time(tmp_path: Path) -> None:
    with limited(tmp_path, head_s=0.3) as world, connected(world) as connection:
        connection.settimeout(0.01)
        for byte in b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 500:
            try:
                connection.sendall(bytes([byte]))
                if not connection.recv(10):
                    return
            except TimeoutError:
                time.sleep(0.01)
            except ConnectionError:
                return
        pytest.fail("it was let go on")


def test_connection_is_kept_for_the_next_request(tmp_path: Path) -> None:
    """Control: the timer ends no connection that is used."""
    with limited(tmp_path, head_s=1.0) as world:
        http = world.client().http
        for _ in range(3):
            assert http.get("/healthz").status_code == 200
            time.sleep(0.5)


def test_connections_per_address(tmp_path: Path) -> None:
    with limited(tmp_path, connections_per_address=3) as world, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(world))
        with pytest.raises(httpx.TransportError):
            world.client().get("/healthz")
        stack.close()
        for _ in range(100):  # the server notices when it does
            try:
                assert world.client().get("/healthz").status_code == 200
                return
            except httpx.TransportError:
                time.sleep(0.05)
        pytest.fail("closed connections still count")


def test_connections_in_all(tmp_path: Path) -> None:
    with limited(tmp_path, connections=2) as world, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connected(world))
        with pytest.raises(httpx.TransportError):
            world.client().get("/healthz")


def test_rate_of_one_address(tmp_path: Path) -> None:
    with limited(tmp_path, per_address=0.01, burst_s=300) as world:
        http = world.client().http
        found = [http.get("/healthz") for _ in range(5)]
        assert [each.status_code for each in found] == [200, 200, 200, 429, 429]
        assert problem(found[-1])[1:] == ("LimitReached", "http-rate")
        assert found[-1].headers["retry-after"] == "1"
        forwarded = {"x-forwarded-for": "203.0.113.9"}
        assert http.get("/healthz", headers=forwarded).status_code == 429


def test_too_much_at_once(tmp_path: Path) -> None:
    """A client that holds the only place with a slow body."""
    with limited(tmp_path, at_once=1) as world, connected(world) as connection:
        connection.sendall(
            b"POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
        )
        http = world.client().http
        for _ in range(100):
            answer = http.get("/healthz")
            if answer.status_code == 503:
                break
            time.sleep(0.02)
        assert problem(answer)[2] == "http-busy"
        connection.sendall(b"}       ")
        assert status(connection.recv(4096)) == 401
        assert http.get("/healthz").status_code == 200


def test_head_too_large(tmp_path: Path) -> None:
    with limited(tmp_path) as world:
        answer = world.client().http.get("/healthz", headers={"x": "y" * 40_000})
        assert problem(answer) == (431, "LimitReached", "http-head")
    with limited(tmp_path / "2") as world, connected(world) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 200_000)
        assert ended(connection)


NONSENSE = (
    b"\x16\x03\x01\x02\x00",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n" * 50,
    b"GET /kbs/v0/../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://elsewhere/ HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
)


@pytest.mark.parametrize("raw", NONSENSE)
def test_nonsense(tmp_path: Path, raw: bytes) -> None:
    with limited(tmp_path, head_s=0.5) as world:
        with connected(world) as connection:
            connection.sendall(raw)
            answer = connection.recv(4096)
            assert not answer or 400 <= status(answer) < 500
        assert world.client().get("/readyz").status_code == 200


def test_tls_only_where_it_is_asked_for(tmp_path: Path) -> None:
    with limited(tmp_path, head_s=0.5) as world:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with connected(world) as raw, pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(raw)
