"""What a holder dials: its own settings name it, and an accelerator learns of nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sealift.channel.transport.tcp import TcpListener
from sealift.crypto.keys import SecretKey
from sealift.errors import PeerError
from sealift.session import direct
from sealift.session import directhost as direct_host
from sealift.session.direct import DirectOffer, PathDialler
from tests.sim.directpaths import PLACE, PORTS, directly, finder_of, listening, paths_of
from tests.sim.hands import WAIT_S
from tests.sim.visit_world import VisitWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with listening(tmp_path) as world:
        yield world


def test_where_nobody_answers_the_relay_is_left(world: VisitWorld) -> None:
    assert world.direct_host is not None
    world.direct_host.close()
    finder = finder_of(("memfd", "tcp"))
    for why in ("tcp: cannot connect", "tcp: nobody answered earlier"):
        assert world.visit("ada", directly(finder=finder)).verified
        path, told = paths_of(world)[-1]
        assert path == "relay"
        assert told.startswith(why)


@pytest.mark.parametrize("told", ["127.0.0.1:{}", "localhost:{}"])
def test_no_address_is_dialled_but_those_of_ones_own_settings(
    world: VisitWorld, told: str
) -> None:
    """Else an accelerator could look for what listens around the holder's machine."""
    with closing(TcpListener()) as inner:  # of somebody else, in the holder's network
        port = inner.address[1]
        assert world.direct_host is not None
        world.direct_host._addresses["tcp"] = told.format(port)
        finder = PathDialler(local=False, places=[PLACE.format(PORTS[0])])
        assert world.visit("ada", directly(finder=finder)).verified
        assert paths_of(world)[-1][0] == "relay"
        with pytest.raises(PeerError):
            inner.accept_socket(0.2)
        finder = PathDialler(local=False, places=[told.format(port)])  # control
        came = threading.Thread(target=lambda: inner.accept_socket(30).close())
        came.start()
        assert world.visit("ada", directly(finder=finder)).verified
        assert paths_of(world)[-1][0] == "relay"
        came.join()


def test_what_is_not_named_is_not_remembered(world: VisitWorld) -> None:
    """An accelerator may offer as many addresses as it likes."""
    finder = PathDialler(places=["127.0.0.1:9"])
    for number in range(100):
        offers = (
            DirectOffer("memfd", f"@sealift-{number:032x}", bytes(16)),
            DirectOffer("tcp", f"127.0.0.1:{number}", bytes(16)),
        )
        assert finder.take(offers, SecretKey(bytes(32)), 200).name == "relay"
    assert finder._silent == {"127.0.0.1:9"}


@pytest.mark.parametrize("mutant", [False, True])
def test_the_holder_gives_no_frame_to_whoever_listens(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, mutant: bool
) -> None:
    """Somebody took the accelerator's address: the cargo goes through the relay."""
    assert world.direct_host is not None
    stranger, got = TcpListener(), list[bytes]()
    world.direct_host._addresses["tcp"] = "{}:{}".format(*stranger.address)
    PORTS[:] = [stranger.address[1]]
    if mutant:
        monkeypatch.setattr(direct, "verify_equal", lambda *_: None)
        world.lease_s = 0.5  # nothing comes by the relay then

    def listen() -> None:
        sock = stranger.accept_socket(WAIT_S)
        sock.sendall(direct.MAGIC + bytes(32))
        sock.recv(80)
        sock.sendall(bytes(32))
        sock.settimeout(1.0)
        try:
            got.append(sock.recv(4))
        except OSError:
            got.append(b"")
        sock.close()

    thread = threading.Thread(target=listen)
    thread.start()
    outcome = world.visit("ada", directly(["tcp"]))
    thread.join(WAIT_S)
    stranger.close()
    assert outcome.verified is not mutant
    assert bool(got[0]) is mutant


def silent(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def is_greeted(port: int, source: str) -> bool:
    """Whether somebody of another address finds a place to prove itself."""
    with socket.create_connection(
        ("127.0.0.1", port), timeout=WAIT_S, source_address=(source, 0)
    ) as other:
        try:
            return other.recv(len(direct.MAGIC)) == direct.MAGIC
        except ConnectionResetError:
            return False


@pytest.mark.parametrize("mutant", [False, True])
def test_silent_strangers_of_one_address_leave_places(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, mutant: bool
) -> None:
    """Counted when they come, before a byte of theirs."""
    monkeypatch.setattr(direct, "PROOF_S", 30.0)
    if mutant:
        monkeypatch.setattr(direct_host, "MAX_UNPROVEN_EACH", direct_host.MAX_UNPROVEN)
    taken = silent(PORTS[0], direct_host.MAX_UNPROVEN)
    assert is_greeted(PORTS[0], "127.0.0.2") is not mutant
    for each in taken:
        each.close()


def test_their_places_come_back(world: VisitWorld) -> None:
    for _ in range(3):
        taken = silent(PORTS[0], direct_host.MAX_UNPROVEN)
        for each in taken:
            each.close()
    end = time.monotonic() + WAIT_S
    while world.direct_host is not None and world.direct_host._unproven:
        assert time.monotonic() < end, "places are not given back"
        time.sleep(0.01)
    assert is_greeted(PORTS[0], "127.0.0.1")
