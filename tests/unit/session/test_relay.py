from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sealift.channel.transport.tcp import TcpTransport
from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError, UnavailableError, UsageError
from sealift.events import Event
from sealift.ids import Digest
from sealift.release.agreement.whole import MAX_PARTIES
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import MAX_BACKLOG, MAX_BACKLOG_EACH, RelayClient
from sealift.session.relay.envelope import (
    CIRCUITS,
    MAX_REGISTRATION_BYTES,
    STRANGERS,
    WINDOW_BYTES,
    EnvelopeKind,
    Registry,
    RelayEnvelope,
    fresh_circuit,
    prover,
)
from sealift.session.relay.server import ACCEPT_PAUSE_S, Relay
from sealift.session.relay.switchboard import MAX_OPENED_UNPROVEN
from sealift.session.session import Session
from tests.sim.attested import Cast, both


@pytest.fixture(autouse=True)
def no_orphan_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 300
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left


@pytest.fixture
def events() -> list[Event]:
    return []


AGREEMENT = Digest.of(b"an agreement")
PARTIES = {name: SigningKey.generate() for name in ("hospital-a", "accelerator")}
REGISTRY = Registry(AGREEMENT, {name: key.public_key for name, key in PARTIES.items()})


def dial(relay: Relay, name: str) -> RelayClient:
    """As the party that the registry names."""
    prove = prover(PARTIES[name], AGREEMENT, name)
    return RelayClient.dial(relay.address, name, prove=prove)


@pytest.fixture
def relay(events: list[Event]) -> Iterator[Relay]:
    with Relay.listen(registry=REGISTRY, sink=events.append) as relay:
        yield relay


@pytest.fixture
def links(relay: Relay) -> Iterator[tuple[RelayClient, RelayClient]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(dial(relay, "hospital-a")),
            stack.enter_context(dial(relay, "accelerator")),
        )


def wait_until(condition: object, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def rekey_and_send(session: Session) -> None:
    session.rekey(60)
    session.send(b"renewed")


def send_mebibytes(circuit: Circuit, count: int) -> None:
    for _ in range(count):
        circuit.send(bytes(1 << 20))


def flood(circuit: Circuit) -> None:
    send_mebibytes(circuit, 64)
    circuit.receive(60)


def test_frames_cross_both_ways(links: tuple[RelayClient, RelayClient]) -> None:
    a, b = links
    here = a.open("accelerator")
    there = b.accept(60)
    assert there.peer_name == "hospital-a"
    here.send(b"one")
    here.send(b"")
    there.send(b"back")
    assert [there.receive(60), there.receive(60)] == [b"one", b""]
    assert here.receive(60) == b"back"


def test_sessions_cross_the_relay(links: tuple[RelayClient, RelayClient]) -> None:
    cast = Cast()
    here, there = cast.sessions((links[0].open("accelerator"), links[1].accept(60)))
    here.send(b"hello")
    assert there.receive(60) == b"hello"
    both(lambda: rekey_and_send(here), lambda: there.receive(60))
    here.close()
    with pytest.raises(PeerError) as refusal:
        there.receive(60)
    assert refusal.value.code == "session-closed"


def test_the_orchestrator_is_an_endpoint_too(
    relay: Relay, links: tuple[RelayClient, RelayClient]
) -> None:
    with relay.local_client() as local:
        assert relay.names == {"orchestrator", "hospital-a", "accelerator"}
        here, there = links[0].open("orchestrator"), local.accept(60)
        here.send(b"x")
        assert there.receive(60) == b"x"
        back = local.open("hospital-a")
        back.send(b"y")
        assert links[0].accept(60).receive(60) == b"y"


def test_many_circuits_do_not_mix(links: tuple[RelayClient, RelayClient]) -> None:
    a, b = links
    pairs = [(a.open("accelerator"), b.accept(60)) for _ in range(8)]
    for number, (here, _) in enumerate(pairs):
        here.send(b"%d" % number)
    for number, (_, there) in enumerate(pairs):
        assert there.receive(60) == b"%d" % number


def test_unknown_peer(links: tuple[RelayClient, RelayClient]) -> None:
    with pytest.raises(PeerError) as refusal:
        links[0].open("nobody")
    assert refusal.value.code == "unknown-peer"
    assert "nobody" in str(refusal.value)
    with pytest.raises(PeerError):  # not even itself
        links[0].open("hospital-a")


def test_open_waits_for_a_peer_that_starts_later(
    relay: Relay, links: tuple[RelayClient, RelayClient]
) -> None:
    late: list[RelayClient] = []
    timer = threading.Timer(
        0.1, lambda: late.append(RelayClient.dial(relay.address, "broker"))
    )
    timer.start()
    circuit = links[0].open("broker", wait_s=5)
    timer.join()
    circuit.close()
    late[0].close()


def test_name_taken(
    relay: Relay, links: tuple[RelayClient, RelayClient], events: list[Event]
) -> None:
    with pytest.raises(PeerError) as refusal:
        dial(relay, "accelerator")
    assert refusal.value.code == "name-taken"
    assert "relay.refused" in [event.kind for event in events]
    links[1].close()
    wait_until(lambda: "accelerator" not in relay.names)
    dial(relay, "accelerator").close()


def test_a_name_is_free_as_soon_as_its_link_is_closed(relay: Relay) -> None:
    for _ in range(100):
        link = relay.local_client("fickle")
        link._write(RelayEnvelope(EnvelopeKind.CLOSE, fresh_circuit()).encode())
        link.close()


def test_port_in_use(relay: Relay) -> None:
    with pytest.raises(UnavailableError) as refusal:
        Relay.listen(*relay.address)
    assert "in use" in str(refusal.value)
    assert refusal.value.fix


def test_nobody_listens() -> None:
    with Relay.listen() as relay:
        address = relay.address
    with pytest.raises(PeerError) as refusal:
        RelayClient.dial(address, "hospital-a", timeout_s=0.15)
    assert refusal.value.code == "peer-unreachable"


def test_dial_waits_for_a_relay_that_starts_later() -> None:
    with Relay.listen() as first:
        host, port = first.address
    relays: list[Relay] = []
    timer = threading.Timer(0.1, lambda: relays.append(Relay.listen(host, port)))
    timer.start()
    link = RelayClient.dial((host, port), "hospital-a", timeout_s=300)
    timer.join()
    link.close()
    relays[0].close()


def test_a_dead_peer_ends_its_circuits(
    links: tuple[RelayClient, RelayClient], relay: Relay, events: list[Event]
) -> None:
    here, there = links[0].open("accelerator"), links[1].accept(60)
    there.send(b"last")
    there.send(b"words")
    assert here.receive(60) == b"last"
    links[1].close()
    assert here.receive(60) == b"words"
    with pytest.raises(PeerError) as refusal:
        here.receive(60)
    assert refusal.value.code == "peer-gone"
    with pytest.raises(PeerError):
        here.send(b"x")
    wait_until(lambda: "relay.gone" in [event.kind for event in events])


def test_a_closed_circuit_delivers_what_was_sent(
    links: tuple[RelayClient, RelayClient],
) -> None:
    here, there = links[0].open("accelerator"), links[1].accept(60)
    here.send(b"last words")
    here.close()
    assert there.receive(60) == b"last words"
    with pytest.raises(PeerError) as refusal:
        there.receive(60)
    assert refusal.value.code == "peer-closed"
    again = links[0].open("accelerator")  # the link itself lives
    again.send(b"x")
    assert links[1].accept(60).receive(60) == b"x"


def test_a_dead_relay_ends_everything() -> None:
    relay = Relay.listen()
    link, other = (
        RelayClient.dial(relay.address, "a"),
        RelayClient.dial(relay.address, "b"),
    )
    circuit = link.open("b")
    relay.close()
    for call in (lambda: circuit.receive(60), lambda: link.accept(60)):
        with pytest.raises(PeerError) as refusal:
            call()
        assert refusal.value.code == "relay-gone"
    with pytest.raises(PeerError):
        link.open("b")
    link.close()
    other.close()


def test_accept_times_out(links: tuple[RelayClient, RelayClient]) -> None:
    with pytest.raises(PeerError) as refusal:
        links[0].accept(0.01)
    assert refusal.value.code == "peer-timeout"


def test_bulk_flows_through_a_slow_receiver(
    links: tuple[RelayClient, RelayClient],
) -> None:
    """Twice the window: the sender waits for credit, nothing is lost."""
    here, there = links[0].open("accelerator"), links[1].accept(60)
    block, count = bytes(1 << 20), 2 * WINDOW_BYTES >> 20
    sender = threading.Thread(target=lambda: [here.send(block) for _ in range(count)])
    sender.start()
    time.sleep(0.05)
    assert sender.is_alive()
    assert [len(there.receive(60)) for _ in range(count)] == [len(block)] * count
    sender.join(300)
    assert not sender.is_alive()


def test_a_full_window_times_out(links: tuple[RelayClient, RelayClient]) -> None:
    here, _ = links[0].open("accelerator"), links[1].accept(60)
    here._send_timeout_s = 0.05
    with pytest.raises(PeerError) as refusal:
        send_mebibytes(here, 2 * WINDOW_BYTES >> 20)
    assert refusal.value.code == "peer-timeout"


def test_a_flooding_peer_loses_its_circuit_and_nobody_else_does(
    links: tuple[RelayClient, RelayClient],
) -> None:
    here, there = links[0].open("accelerator"), links[1].accept(60)
    calm, calm_there = links[0].open("accelerator"), links[1].accept(60)
    here._spend = lambda cost: None  # type: ignore[method-assign]  # ignores its credit
    with pytest.raises(PeerError) as refusal:
        flood(here)
    assert refusal.value.code == "flooded"
    calm.send(b"still here")
    assert calm_there.receive(60) == b"still here"
    with pytest.raises(PeerError):
        list(iter(lambda: there.receive(60), None))


def test_circuits_are_counted(links: tuple[RelayClient, RelayClient]) -> None:
    opened = [links[0].open("accelerator") for _ in range(CIRCUITS)]
    with pytest.raises(PeerError) as refusal:
        links[0].open("accelerator")
    assert refusal.value.code == "too-many-circuits"
    opened[0].close()
    links[0].open("accelerator")
    assert 4 * MAX_BACKLOG_EACH < MAX_BACKLOG
    assert STRANGERS * MAX_OPENED_UNPROVEN < MAX_BACKLOG


def test_circuits_of_one_name_leave_room_for_others() -> None:
    """With as many parties as there may be, one may open as many as all places."""
    keys = {name: key.public_key for name, key in PARTIES.items()}
    registry = Registry(AGREEMENT, keys, circuits=4 * MAX_PARTIES)
    with Relay.listen(registry=registry) as relay, ExitStack() as stack:
        flooding = stack.enter_context(dial(relay, "hospital-a"))
        called = stack.enter_context(dial(relay, "accelerator"))
        other = stack.enter_context(RelayClient.dial(relay.address, "hospital-b"))
        opened = [flooding.open("accelerator") for _ in range(registry.circuits)]
        with pytest.raises(PeerError):  # all of them have come, in their order
            opened[-1].receive(60)
        assert other.open("accelerator").peer_name == "accelerator"
        heard = [called.accept(60).peer_name for _ in range(MAX_BACKLOG_EACH + 1)]
    assert heard == ["hospital-a"] * MAX_BACKLOG_EACH + ["hospital-b"]


def test_garbage_ends_the_connection_and_nothing_else(
    relay: Relay, links: tuple[RelayClient, RelayClient]
) -> None:
    transport = TcpTransport.dial(*relay.address)
    transport.send(b"GET / HTTP/1.1")
    assert RelayEnvelope.parse(transport.receive(60)).kind is EnvelopeKind.REFUSED
    with pytest.raises(PeerError):
        transport.receive(60)
    transport.close()
    links[0].open("accelerator").close()


def test_a_connection_that_somebody_read_from_already(
    relay: Relay, links: tuple[RelayClient, RelayClient]
) -> None:
    """Its first frame, and half of the next, are not lost."""
    here, there = socket.socketpair()
    frames = [
        RelayEnvelope(EnvelopeKind.REGISTER, name="late").encode(),
        RelayEnvelope(EnvelopeKind.OPEN, fresh_circuit(), "accelerator").encode(),
    ]
    raw = b"".join(len(each).to_bytes(4, "big") + each for each in frames)
    there.sendall(raw[:-5])
    reader = TcpTransport(here)
    relay.attach(*reader.detach(reader.receive(60)))
    there.sendall(raw[-5:])
    assert links[1].accept(60).peer_name == "late"
    there.close()


def test_an_unregistered_connection_cannot_announce_a_long_frame(relay: Relay) -> None:
    transport = TcpTransport.dial(*relay.address)
    transport._send_all([memoryview((MAX_REGISTRATION_BYTES + 1).to_bytes(4, "big"))])
    with pytest.raises(PeerError) as refusal:
        transport.receive(60)
    assert refusal.value.code == "peer-closed"
    transport.close()


class Exhausted:
    """A listener of a process that has no file descriptor left."""

    def __init__(self) -> None:
        self.asked = 0

    def accept_socket(self, timeout_s: float | None) -> socket.socket:
        self.asked += 1
        raise PeerError("too many open files", code="peer-closed")

    def close(self) -> None:
        pass


def test_a_failing_accept_is_not_repeated_at_full_speed() -> None:
    listener, began_s = Exhausted(), time.monotonic()
    with Relay(listener):  # type: ignore[arg-type]
        wait_until(lambda: listener.asked > 3)
    # The last pause ends with the relay.
    assert listener.asked <= (time.monotonic() - began_s) / ACCEPT_PAUSE_S + 2


def test_a_stranger_cannot_speak_on_a_circuit(
    relay: Relay, links: tuple[RelayClient, RelayClient]
) -> None:
    here, there = links[0].open("accelerator"), links[1].accept(60)
    with RelayClient.dial(relay.address, "stranger") as stranger:
        forged = RelayEnvelope(EnvelopeKind.FRAME, here.id, payload=b"forged")
        stranger._write(forged.encode())
        stranger._write(RelayEnvelope(EnvelopeKind.CLOSE, here.id).encode())
        stranger.open("accelerator").close()  # the relay has seen both by now
    here.send(b"genuine")
    assert there.receive(60) == b"genuine"


def test_frames_have_a_limit(links: tuple[RelayClient, RelayClient]) -> None:
    here = links[0].open("accelerator")
    with pytest.raises(UsageError):
        here.send(bytes(here.max_frame_bytes + 1))
    here.send(bytes(here.max_frame_bytes))
    assert len(links[1].accept(60).receive(60)) == here.max_frame_bytes
