"""HTTP beside a role: what strangers cannot do there, and what its process cannot do."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from sealift.cli import health as command
from sealift.cli.main import build_parser
from sealift.errors import SealiftError
from sealift.health import server
from sealift.health.server import (
    BriefProtocol,
    configure,
    give_up_access,
    listen,
    make_application,
    require_own_folder,
)
from sealift.health.status import FILE, PARTIAL, Status, write_status
from sealift.train.sandbox import landlock

AT_S = 1_800_000_000.0
STATUS = Status(role="broker", at_s=AT_S, gauges={})
Address = tuple[str, int]


@contextmanager
def serving(folder: Path, *, most: int = 8, lasts_s: float = 60.0) -> Iterator[Address]:
    """A server in a thread, with limits of its own."""
    write_status(folder, STATUS)
    limits = {"most": most, "lasts_s": lasts_s}
    protocol = type("Limited", (BriefProtocol,), limits)
    application = make_application(folder, lambda: AT_S)
    made = uvicorn.Server(configure(application, protocol))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=made.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[:2]
        finally:
            made.should_exit = True
            thread.join()


def landlock_version() -> int:
    """As the kernel says it; the product is not asked."""
    return max(0, ctypes.CDLL(None).syscall(444, None, 0, 1))


def get(address: Address, path: str = "/healthz", **more: object) -> httpx.Response:
    url = f"http://{address[0]}:{address[1]}{path}"
    return httpx.get(url, timeout=300, **more)  # type: ignore[arg-type]


@contextmanager
def connected(address: Address) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=300) as connection:
        yield connection


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_it_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        found = get(address)
        assert (found.status_code, found.text) == (200, "ok\n")
        assert "server" not in found.headers
        assert found.headers["connection"] == "close"
        metrics = get(address, "/metrics")
        assert metrics.headers["content-type"].startswith("application/openmetrics")
        assert get(address, "/status.json").status_code == 404


def test_connections_are_counted_when_they_come(tmp_path: Path) -> None:
    # What is too many ends at once; nothing ends because its time is over.
    with serving(tmp_path, most=3, lasts_s=3600) as address, ExitStack() as stack:
        first = [stack.enter_context(connected(address)) for _ in range(3)]
        one_too_many = stack.enter_context(connected(address))
        assert ended(one_too_many)
        first[0].close()
        while True:  # the server notices when it does
            try:
                assert get(address).status_code == 200
                return
            except httpx.TransportError:
                continue


def test_control_without_the_count_silent_connections_stay(tmp_path: Path) -> None:
    with serving(tmp_path, most=1000) as address, ExitStack() as stack:
        mine = [stack.enter_context(connected(address)) for _ in range(20)]
        assert get(address).status_code == 200
        mine[0].settimeout(0.2)
        assert not ended(mine[0])


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost:"])
def test_a_head_that_does_not_come_ends_its_connection(
    tmp_path: Path, sent: bytes
) -> None:
    with serving(tmp_path, lasts_s=0.2) as address, connected(address) as connection:
        connection.sendall(sent)
        assert ended(connection)


def test_control_without_the_time_it_stays(tmp_path: Path) -> None:
    with serving(tmp_path) as address, connected(address) as connection:
        connection.settimeout(0.5)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
        assert not ended(connection)


NONSENSE = (
    b"\x16\x03\x01\x02\x00",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://elsewhere/ HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 200_000,
    b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
)


@pytest.mark.parametrize("raw", NONSENSE)
def test_nonsense_is_refused_and_the_next_is_served(tmp_path: Path, raw: bytes) -> None:
    with serving(tmp_path, lasts_s=1.0) as address:
        with connected(address) as connection:
            try:
                connection.sendall(raw)
                said = connection.recv(4096)
            except ConnectionError:
                said = b""
            assert not said or 400 <= int(said.split()[1]) < 500
        assert get(address).status_code == 200


# what its process may do

ATTEMPTS = """
import json, pathlib, socket, sys
from sealift.health.server import give_up_access, listen, make_application, configure
from sealift.health.status import read_status
folder, secret = map(pathlib.Path, sys.argv[1:3])
listening = listen("127.0.0.1", 0)
configure(make_application(folder, lambda: 0.0)).load()
if sys.argv[3] == "give up":
    give_up_access(folder)
def tried(what):
    try:
        what()
    except Exception as error:
        return type(error).__name__
    return ""
print(json.dumps({
    "status": tried(lambda: read_status(folder)),
    "secret": tried(lambda: secret.read_bytes()),
    "dial": tried(lambda: socket.create_connection(listening.getsockname())),
    "write": tried(lambda: (folder / "status.json").write_bytes(b"")),
    "keys": [name for name in sys.modules if name.split(".")[0] == "cryptography"
             or name.startswith(("sealift.crypto", "sealift.attest", "sealift.session"))],
}))
"""


def attempts(folder: Path, how: str) -> dict[str, object]:
    status = folder / "status"
    status.mkdir(exist_ok=True)
    write_status(status, STATUS)
    secret = folder / "vault.db"
    secret.write_bytes(b"secret")
    command = [sys.executable, "-c", ATTEMPTS, str(status), str(secret), how]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout))


@pytest.mark.distributed
@pytest.mark.skipif(not landlock_version(), reason="this machine lacks Landlock")
def test_it_can_read_the_status_and_nothing_else(tmp_path: Path) -> None:
    found = attempts(tmp_path, "give up")
    assert found["status"] == ""
    assert found["secret"] == "PermissionError"
    assert found["write"] == "PermissionError"
    dials = landlock_version() < 4  # from which on it knows connections
    assert found["dial"] == ("" if dials else "PermissionError")


@pytest.mark.distributed
def test_control_without_giving_up_it_could(tmp_path: Path) -> None:
    found = attempts(tmp_path, "keep")
    assert (found["secret"], found["dial"]) == ("", "")


@pytest.mark.distributed
def test_it_loads_nothing_that_opens_a_key(tmp_path: Path) -> None:
    assert attempts(tmp_path, "keep")["keys"] == []


def test_unconfined_it_must_be_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    owner = tmp_path.stat().st_uid
    for user in (owner, 0):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(SealiftError) as caught:
            give_up_access(tmp_path)
        assert caught.value.code == "health-unconfined"
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    give_up_access(tmp_path)  # control


def test_a_folder_with_more_in_it_is_refused(tmp_path: Path) -> None:
    for name in (FILE, PARTIAL):
        (tmp_path / name).write_text("")
    require_own_folder(tmp_path)
    (tmp_path / "vault.db").write_text("")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SealiftError) as caught:
            require_own_folder(folder)
        assert caught.value.code == "status-folder"


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["health", str(tmp_path), "--port", "0"]
    args = build_parser(words).parse_args(words)
    served: list[Path] = []
    monkeypatch.setattr(command, "serve", lambda folder, *rest: served.append(folder))
    assert args.run(args) == 0
    assert served == [tmp_path]
    assert "health on 127.0.0.1:" in capsys.readouterr().err


def test_an_address_that_is_not_ours() -> None:
    for host, port in (("192.0.2.1", 1), ("no host", 1)):
        with pytest.raises(SealiftError) as caught:
            listen(host, port)
        assert caught.value.code == "cannot-listen"


def test_server_lasts_and_most_are_bounded() -> None:
    assert 0 < server.CONNECTION_S <= 60
    assert 0 < server.MAX_CONNECTIONS <= 256
