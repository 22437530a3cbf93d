"""A running broker's watches outlive a moment without descriptors, or end the broker."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sealift.crypto.sign import SigningKey
from sealift.events import Event
from sealift.ids import Role
from sealift.release.agreement import KeyLease
from sealift.release.agreement.statements import save_statement, sign_statement
from sealift.release.broker.server import Broker
from sealift.session.endpoint import Endpoint
from sealift.session.relay.server import Relay
from sealift.travel import broker as broker_service
from sealift.travel.broker import BrokerService
from sealift.travel.holder import watches as watcher
from tests.sim.owners import NOW_S, BrokerBox, make_broker
from tests.worlds.consortium import make_consortium

WAIT_S = 300.0


class Running:
    """Ada's broker at work behind a relay; what it says, and how it ended."""

    def __init__(self, folder: Path) -> None:
        self.consortium = make_consortium(("ada", "bern"))
        self.beside = folder / "beside"
        self.beside.mkdir()
        self.box: BrokerBox = make_broker(self.consortium, "ada", folder, self.beside)
        self.events: list[Event] = []
        self.ended: list[BaseException] = []

    @property
    def broker(self) -> Broker:
        return self.box.broker

    @contextmanager
    def serving(self) -> Iterator[None]:
        endpoint = Endpoint(
            role=Role.BROKER,
            name="ada",
            agreement=self.consortium.agreement.digest,
            identity=self.consortium.identities["ada"],
        )
        with Relay.listen() as relay, relay.local_client("broker-ada") as link:
            served = BrokerService(
                link,
                endpoint,
                self.consortium.verified(),
                broker=self.broker,
                sink=self.events.append,
            )

            def serve() -> None:
                try:
                    served.serve()
                except BaseException as error:
                    self.ended.append(error)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield
            finally:
                link.close()
                thread.join(WAIT_S)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(broker_service, "STATEMENTS_S", 0.02)
    monkeypatch.setattr(watcher, "RETRY_S", 0.02)
    made = Running(tmp_path)
    yield made
    made.box.close()


def becomes(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """What a stranger's connections can bring about."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_veto_after_a_flood_is_obeyed(running: Running) -> None:
    """The flood is over, a veto comes, and nobody asks for anything: leases end."""
    instance = SigningKey.generate().public_key
    leases = running.broker.leases
    terms = KeyLease(lease_s=3600.0, heartbeat_s=3600.0)
    leases.grant(instance, terms, time.monotonic(), "host")
    with running.serving():
        with no_descriptors():
            assert becomes(lambda: "watch.failing" in running.kinds())
        assert becomes(lambda: "watch.mended" in running.kinds())
        bern = running.consortium.identities["bern"]
        veto = sign_statement("veto", running.consortium.agreement, bern, NOW_S)
        save_statement(veto, running.beside)
        assert becomes(lambda: not leases.open())
    assert leases.status(instance, time.monotonic()).rule == "agreement-vetoed"
    assert running.kinds().count("watch.failing") == 1


def test_a_watch_that_breaks_ends_the_broker(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours: no keys go out unwatched."""
    bug = ZeroDivisionError("a bug")

    def look() -> float:
        raise bug

    monkeypatch.setattr(running.broker.leases, "look", look)
    with running.serving():
        assert becomes(lambda: bool(running.ended))
    assert running.ended == [bug]
