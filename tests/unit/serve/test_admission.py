"""The server's one port: who is let in, and how many."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.errors import PeerError, SealiftError
from sealift.serve.admission import SHORT_FRAME_BYTES, Admission, FirstFrame
from sealift.serve.client import COME_AGAIN_S, connect
from sealift.serve.scheduler import ServerMetrics
from sealift.session.frames import raise_abort, unpack
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.train.job.settings import ServingTable
from tests.sim.served import Served, rows


class House:
    """A door with nobody behind it but an echo."""

    def __init__(self, relay: Relay, **limits: int) -> None:
        self.listener = TcpListener()
        self.metrics = ServerMetrics()
        self.gate = threading.Event()
        self.took, self.failed = threading.Event(), threading.Event()
        self.answer, self.lengthens = b"", False
        self.guests: list[TcpTransport] = []
        self.door = Admission(
            self.listener,
            relay,
            self.serve,
            settings=ServingTable(**limits),
            metrics=self.metrics,
        )

    def serve(self, transport: FirstFrame, address: str) -> None:
        assert address == "127.0.0.1"
        first = transport.receive(60)
        transport.send(self.answer or first)
        if not self.answer:
            self.gate.wait(300)
            return
        if self.lengthens:
            transport.lengthen()
        try:
            transport.receive(60)
            self.took.set()
        except SealiftError:
            self.failed.set()

    def knock(self, frame: bytes = b"\1{hello}") -> TcpTransport:
        transport = TcpTransport.dial(*self.listener.address)
        self.guests.append(transport)
        transport.send(frame)
        return transport

    def close(self) -> None:
        self.gate.set()
        self.door.close()
        for each in self.guests:
            each.close()


@contextmanager
def house(**limits: int) -> Iterator[House]:
    with Relay(None) as relay:
        made = House(relay, **limits)
        made.door.open()
        try:
            yield made
        finally:
            made.close()


def test_the_first_frame_says_who_comes() -> None:
    with house() as made:
        client = made.knock()
        assert client.receive(60) == b"\1{hello}"
        with RelayClient.dial(made.listener.address, "broker-lab") as link:
            assert link.name == "broker-lab"


def test_nobody_is_let_in_before_the_model_is_there() -> None:
    with house() as made:
        made.door._open = False
        assert refusal(made.knock()) == "server-loading"


def refusal(client: TcpTransport) -> str:
    with pytest.raises(PeerError) as caught:
        raise_abort(unpack(client.receive(60))[1])
    return caught.value.why


def test_evidence_is_longer_than_what_strangers_may_send() -> None:
    """Frames are short only on their way in, and only until a session stands."""
    with house() as made:
        made.answer = bytes(1 << 20)
        client = made.knock()
        assert len(client.receive(60)) == 1 << 20
        client.send(bytes(SHORT_FRAME_BYTES + 1))
        assert made.failed.wait(300)
        made.lengthens = True
        client = made.knock()
        client.receive(60)
        client.send(bytes(SHORT_FRAME_BYTES + 1))
        assert made.took.wait(300)


def test_so_many_of_one_address_and_no_more() -> None:
    with house(max_sessions_each=2) as made:
        inside = [made.knock() for _ in range(2)]
        for each in inside:
            each.receive(60)
        assert refusal(made.knock()) == "too-many-clients"
        assert made.metrics.numbers()["refused_too_many_clients"] == 1


def test_a_client_hears_by_name_that_the_server_is_full_and_when_to_come_again() -> (
    None
):
    served = Served()
    with house(max_sessions_each=1) as made:
        inside = made.knock()
        inside.receive(60)
        with pytest.raises(PeerError) as caught:
            connect(made.listener.address, served.policy())
        assert caught.value.code == "too-many-clients"
        assert caught.value.retry_s == COME_AGAIN_S


def test_a_patient_client_comes_in_when_another_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served()
    with house(max_sessions_each=1) as made, served.running():
        inside = made.knock()
        inside.receive(60)
        made.door._serve = lambda transport, _: served.serve(transport)
        asked = []

        def leave(seconds: float) -> None:
            asked.append(seconds)
            made.gate.set()

        monkeypatch.setattr("sealift.serve.client.time.sleep", leave)
        policy = served.policy()
        with connect(made.listener.address, policy, patience_s=600.0) as client:
            assert client.predict(rows(1.0))["y"].tolist() == [[2.0, 3.0]]
        assert COME_AGAIN_S in asked


@pytest.mark.long
def test_five_hundred_clients_of_one_address_are_answered_where_that_is_allowed() -> (
    None
):
    limits = {"max_sessions": 500, "max_sessions_each": 500}
    served = Served(settings=ServingTable(max_delay_ms=0.0, **limits))
    with house(**limits) as made, served.running(), ExitStack() as stack:
        made.door._serve = lambda transport, _: served.serve(transport)
        address, policy = made.listener.address, served.policy()
        clients = [
            stack.enter_context(connect(address, policy, timeout_s=300.0))
            for _ in range(500)
        ]
        with ThreadPoolExecutor(50) as threads:
            answers = threads.map(lambda each: each.predict(rows(1.0)), clients)
            assert all(each["y"].tolist() == [[2.0, 3.0]] for each in answers)
        with pytest.raises(PeerError) as caught:
            connect(address, policy)
        assert caught.value.code == "too-many-clients"


def test_a_long_first_frame_is_refused() -> None:
    with house() as made, pytest.raises(PeerError):
        made.knock(bytes(1 << 20)).receive(60)


def test_files_for_all_clients_are_asked_for_or_the_limit_is_named() -> None:
    """In a process of its own, whose limits are changed."""
    script = """
import resource, sys
from sealift.errors import UnavailableError
from sealift.serve.admission import demand_descriptors
from sealift.train.job.settings import ServingTable
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 800))
demand_descriptors(ServingTable(max_sessions=500))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    demand_descriptors(ServingTable(max_sessions=4096))
except UnavailableError as error:
    print(f"{error} [{error.code}]")
"""
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    limits, *refusal = found.splitlines()
    assert limits == "(756, 800)"
    assert refusal[0].startswith("the server cannot keep 4,096 clients: ")
    assert "may open 800 files; it needs 4,352" in found
    assert "Set max_sessions to 544 or less" in found
    assert found.endswith(" [too-few-files]\n")
