"""Strangers at the relay: few places, no party's name, and no memory but their own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from sealift.channel.transport.tcp import TcpTransport
from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError, SealiftError
from sealift.events import Event
from sealift.ids import Digest
from sealift.session.relay import server as relay_module
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import (
    WINDOW_BYTES,
    EnvelopeKind,
    Registry,
    RelayEnvelope,
    fresh_circuit,
    prover,
)
from sealift.session.relay.server import Account, Relay, RelayConnection

AGREEMENT = Digest.of(b"an agreement")
NORTH, SOUTH = SigningKey.generate(), SigningKey.generate()
NAMES = {
    "holder-north": NORTH.public_key,
    "broker-north": NORTH.public_key,
    "holder-south": SOUTH.public_key,
}
REGISTRY = Registry(AGREEMENT, NAMES)
CHUNK = bytes(1 << 20)
# Each of two senders was read once more when the account was all but full.
ADDRESS_IS_FULL = relay_module.ADDRESS_BYTES + 2 * len(CHUNK) + 9999


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay.listen(registry=REGISTRY) as relay:
        yield relay


def dial(relay: Relay, name: str, key: SigningKey = NORTH) -> RelayClient:
    return RelayClient.dial(relay.address, name, prove=prover(key, AGREEMENT, name))


def stranger(relay: Relay, name: str) -> TcpTransport:
    """Registers, and from then on does what it wants."""
    transport = TcpTransport.dial(*relay.address)
    transport.send(RelayEnvelope(EnvelopeKind.REGISTER, name=name).encode())
    answer = RelayEnvelope.parse(transport.receive(60))
    if answer.kind is not EnvelopeKind.REGISTERED:
        transport.close()
        raise PeerError(answer.reason, code=answer.reason)
    return transport


def wait_until(condition: object, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def waiting_bytes(relay: Relay) -> int:
    return sum(line.outbox_bytes for line in list(relay._peers.values()))


def refused(relay: Relay, name: str, **named: object) -> str:
    with pytest.raises(SealiftError) as caught:
        RelayClient.dial(relay.address, name, **named)  # type: ignore[arg-type]
    return caught.value.code


def test_two_roles_of_one_party_register(relay: Relay) -> None:
    with dial(relay, "holder-north") as holder, dial(relay, "broker-north") as broker:
        holder.open("broker-north").send(b"x")
        circuit = broker.accept(60)
        assert (circuit.peer_name, circuit.receive(60)) == ("holder-north", b"x")


@pytest.mark.parametrize(
    ("key", "agreement", "signed"),
    [
        (SOUTH, AGREEMENT, "holder-north"),
        (NORTH, Digest.of(b"another agreement"), "holder-north"),
        (NORTH, AGREEMENT, "broker-north"),
    ],
    ids=["another party", "another agreement", "another name"],
)
def test_a_partys_name_takes_its_key(
    relay: Relay, key: SigningKey, agreement: Digest, signed: str
) -> None:
    assert refused(relay, "holder-north") == "name-unproven"
    prove = prover(key, agreement, signed)
    assert refused(relay, "holder-north", prove=prove) == "name-unproven"
    dial(relay, "holder-north").close()


def test_a_proof_counts_once(relay: Relay) -> None:
    """The challenge is another one for each connection."""
    seen: list[bytes] = []
    prove = prover(NORTH, AGREEMENT, "holder-north")

    def overheard(challenge: bytes) -> bytes:
        seen.append(prove(challenge))
        return seen[0]

    name = "holder-north"
    RelayClient.dial(relay.address, name, prove=overheard).close()
    wait_until(lambda: name not in relay.names)
    assert refused(relay, name, prove=overheard) == "name-unproven"


def test_mutant_that_verifies_nothing_lets_a_stranger_in(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "verify", lambda *_: None)
    prove = prover(SigningKey.generate(), AGREEMENT, "holder-north")
    RelayClient.dial(relay.address, "holder-north", prove=prove).close()


def test_nothing_but_a_challenge_is_signed() -> None:
    with pytest.raises(SealiftError):
        prover(NORTH, AGREEMENT, "holder-north")(bytes(33))


def test_strangers_have_few_places_and_none_of_a_party(relay: Relay) -> None:
    taken = [
        stranger(relay, f"x-{number}") for number in range(REGISTRY.strangers_each)
    ]
    with pytest.raises(PeerError) as caught:
        stranger(relay, "one-more")
    assert caught.value.code == "relay-full"
    dial(relay, "holder-north").close()
    for each in taken:
        each.close()
    wait_until(lambda: not relay.names)
    stranger(relay, "one-more").close()


def test_all_addresses_together_have_few_places() -> None:
    registry = Registry(AGREEMENT, NAMES, strangers=2, strangers_each=9)
    with Relay.listen(registry=registry) as relay:
        taken = [stranger(relay, "a"), stranger(relay, "b")]
        assert refused(relay, "c") == "relay-full"
        with dial(relay, "holder-north"):
            assert relay.names == {"a", "b", "holder-north"}
        for each in taken:
            each.close()


def test_silent_connections_crowd_each_other_out(relay: Relay) -> None:
    """Counted at accept; parties come in however many there are."""
    silent = []
    for _ in range(4 * relay_module.MAX_UNREGISTERED_EACH):
        silent.append(socket.create_connection(relay.address))
        assert len(relay._unregistered) <= relay_module.MAX_UNREGISTERED_EACH
    with dial(relay, "holder-north"):
        wait_until(lambda: len(relay._peers) <= relay_module.MAX_UNREGISTERED_EACH + 1)
    for each in silent:
        each.close()


def test_whoever_finds_no_place_is_told_so_and_so_is_the_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the limit's name, at both ends: also who is closed as soon as it was accepted."""
    told: list[Event] = []
    with Relay.listen(registry=REGISTRY, sink=told.append) as relay:
        most = relay_module.MAX_UNREGISTERED_EACH
        silent = [TcpTransport.dial(*relay.address) for _ in range(most + 1)]
        answer = RelayEnvelope.parse(silent[0].receive(60))
        assert (answer.kind, answer.reason) == (EnvelopeKind.REFUSED, "relay-full")
        # From now on nobody may be crowded out: as if many had been just now.
        monkeypatch.setattr(relay_module, "MAX_UNREGISTERED", 0)
        late = TcpTransport.dial(*relay.address)
        answer = RelayEnvelope.parse(late.receive(60))
        assert (answer.kind, answer.reason) == (EnvelopeKind.REFUSED, "relay-full")
        for each in (*silent, late):
            each.close()
    refused = [e.fields for e in told if e.kind == "relay.refused"]
    assert {each["reason"] for each in refused} == {"relay-full"}
    assert sum(int(str(each["connections"])) for each in refused) == 2


def test_strangers_without_end_are_counted_in_few_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "FULL_EVENT_S", 1e9)
    told: list[Event] = []
    with Relay.listen(registry=REGISTRY, sink=told.append) as relay:
        flood = [TcpTransport.dial(*relay.address) for _ in range(40)]
        for each in flood[: -relay_module.MAX_UNREGISTERED_EACH]:
            each.receive(60)  # it was turned away
    for each in flood:
        each.close()
    counts = [e.fields["connections"] for e in told if e.kind == "relay.refused"]
    assert counts == [1, 39 - relay_module.MAX_UNREGISTERED_EACH]


def test_a_place_that_becomes_free_is_taken_by_who_waits_for_it(relay: Relay) -> None:
    taken = [stranger(relay, f"x-{number}") for number in range(4)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(RelayClient.dial, relay.address, "one-more", 60.0)
        for each in taken:
            each.close()
        waiting.result(60).close()


def test_mutant_that_keeps_all_silent_ones(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Relay, "_make_room", lambda *_: True)
    many = 2 * relay_module.MAX_UNREGISTERED_EACH
    silent = [socket.create_connection(relay.address) for _ in range(many)]
    wait_until(lambda: len(relay._peers) == many)
    for each in silent:
        each.close()


@contextmanager
def one_silent(*, challenged: bool) -> Iterator[tuple[Relay, TcpTransport]]:
    with Relay.listen(registry=REGISTRY) as relay:
        transport = TcpTransport.dial(*relay.address)
        if challenged:
            hello = RelayEnvelope(EnvelopeKind.REGISTER, name="holder-north")
            transport.send(hello.encode())
            answer = RelayEnvelope.parse(transport.receive(60))
            assert answer.kind is EnvelopeKind.CHALLENGE
        with closing(transport):
            yield relay, transport


@pytest.mark.parametrize("challenged", [False, True])
def test_who_does_not_register_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, challenged: bool
) -> None:
    monkeypatch.setattr(relay_module, "REGISTER_TIMEOUT_S", 0.2)
    with one_silent(challenged=challenged) as (relay, transport):
        with pytest.raises(PeerError) as caught:
            transport.receive(20)
        assert caught.value.code == "peer-closed"
        assert not relay._peers


def test_who_registered_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control of the above: the time is that of registration, not of silence."""
    monkeypatch.setattr(relay_module, "REGISTER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(relay_module, "_LOOK_S", 0.05)
    with Relay.listen(registry=REGISTRY) as relay, dial(relay, "holder-north") as link:
        with pytest.raises(PeerError, match="in time"):
            link.accept(1.0)
        assert relay.names == {"holder-north"}


def test_a_garbled_proof_ends_the_connection(relay: Relay) -> None:
    for kind in (EnvelopeKind.REGISTER, EnvelopeKind.FRAME, EnvelopeKind.PROVE):
        transport = TcpTransport.dial(*relay.address)
        transport.send(
            RelayEnvelope(EnvelopeKind.REGISTER, name="holder-north").encode()
        )
        transport.receive(60)
        transport.send(
            RelayEnvelope(kind, name="holder-north", payload=bytes(9)).encode()
        )
        assert RelayEnvelope.parse(transport.receive(60)).kind is EnvelopeKind.REFUSED
        transport.close()
    dial(relay, "holder-north").close()


def flood(relay: Relay, stack: ExitStack, target: str) -> list[threading.Thread]:
    """Two strangers, many circuits, the window of each."""
    threads = []
    for number in range(2):
        sender = stranger(relay, f"src-{number}")
        stack.callback(sender.close)

        def pour(sender: TcpTransport = sender) -> None:
            with suppress(SealiftError):
                for _ in range(8):
                    circuit = fresh_circuit()
                    sender.send(
                        RelayEnvelope(EnvelopeKind.OPEN, circuit, target).encode()
                    )
                    for _ in range(WINDOW_BYTES // len(CHUNK)):
                        frame = RelayEnvelope(
                            EnvelopeKind.FRAME, circuit, payload=CHUNK
                        )
                        sender.send(frame.encode())

        threads.append(threading.Thread(target=pour, daemon=True))
        threads[-1].start()
    return threads


@contextmanager
def slow_victim(relay: Relay) -> Iterator[TcpTransport]:
    """A party that takes nothing for a while."""
    transport = TcpTransport.dial(*relay.address)
    transport.send(RelayEnvelope(EnvelopeKind.REGISTER, name="holder-north").encode())
    challenge = bytes(RelayEnvelope.parse(transport.receive(60)).payload)
    proof = prover(NORTH, AGREEMENT, "holder-north")(challenge)
    transport.send(RelayEnvelope(EnvelopeKind.PROVE, payload=proof).encode())
    transport.receive(60)
    with closing(transport):
        yield transport


def test_what_waits_counts_against_its_senders(relay: Relay) -> None:
    """64 MiB for a victim that is slow: it keeps its place, and memory is bounded."""
    with ExitStack() as stack, slow_victim(relay) as victim:
        threads = flood(relay, stack, "holder-north")
        wait_until(lambda: len(relay._held) == 2)
        assert waiting_bytes(relay) < ADDRESS_IS_FULL
        with dial(relay, "holder-south", SOUTH) as other:  # nobody else is held
            other.open("holder-north", 60).send(b"still here")
        assert "holder-north" in relay.names
        while victim.receive(10)[-10:] != b"still here":
            pass
        stack.close()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()


def test_who_was_held_goes_on_where_it_was(relay: Relay) -> None:
    """Nothing of an honest sender is lost by waiting."""
    with ExitStack() as stack, slow_victim(relay) as victim:
        threads = flood(relay, stack, "holder-north")
        wait_until(lambda: len(relay._held) == 2)
        got = 0
        while got < 64:
            got += RelayEnvelope.parse(victim.receive(20)).kind is EnvelopeKind.FRAME
        for thread in threads:
            thread.join(300)
        wait_until(lambda: not relay._held)


def test_mutant_without_accounts_keeps_it_all(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Account, "is_full", False)
    with ExitStack() as stack, slow_victim(relay):
        flood(relay, stack, "holder-north")
        wait_until(lambda: waiting_bytes(relay) > 4 * relay_module.ADDRESS_BYTES)


def test_leaving_and_coming_back_empties_no_account(relay: Relay) -> None:
    with ExitStack() as stack, slow_victim(relay):
        flood(relay, stack, "holder-north")
        wait_until(lambda: len(relay._held) == 2)
        for peer in list(relay._peers.values()):
            if relay._board.name_of(peer.number).startswith("src-"):
                peer._sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: "src-0" not in relay.names and "src-1" not in relay.names)
        flood(relay, stack, "holder-north")
        wait_until(lambda: len(relay._held) == 2)
        assert waiting_bytes(relay) < ADDRESS_IS_FULL


def test_opening_and_closing_counts_as_well(relay: Relay) -> None:
    """Frames without a payload take memory, too."""
    with slow_victim(relay):
        sender = stranger(relay, "src")

        def pour() -> None:
            with suppress(SealiftError):
                while True:
                    circuit = fresh_circuit()
                    opening = RelayEnvelope(EnvelopeKind.OPEN, circuit, "holder-north")
                    sender.send(opening.encode())
                    sender.send(RelayEnvelope(EnvelopeKind.CLOSE, circuit).encode())

        thread = threading.Thread(target=pour, daemon=True)
        thread.start()
        wait_until(lambda: relay._held)
        assert waiting_bytes(relay) <= relay_module.ADDRESS_BYTES
        sender.close()
        thread.join(300)


def test_who_takes_nothing_for_long_is_dropped(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "DEFAULT_SEND_TIMEOUT_S", 0.3)
    with ExitStack() as stack, slow_victim(relay):
        flood(relay, stack, "holder-north")
        wait_until(lambda: "holder-north" not in relay.names)
        wait_until(lambda: not relay._held)


def test_the_accelerators_name_is_of_whom_its_evidence_speaks(relay: Relay) -> None:
    """A stranger that came first keeps it until the orchestrator vouches for another."""
    squatter = stranger(relay, "accelerator")
    with (
        relay.local_client() as desk,
        RelayClient.dial(relay.address, "accelerator") as genuine,
    ):
        genuine.open("orchestrator", 60)
        relay.vouch(desk.accept(60).id)
        with dial(relay, "holder-north") as holder:
            holder.open("accelerator", 60).send(b"cargo")
            assert genuine.accept(60).receive(60) == b"cargo"
        assert refused(relay, "accelerator") == "name-taken"
    wait_until(lambda: "accelerator" not in relay.names)
    squatter.close()


def test_nobody_vouches_for_what_is_gone_or_a_partys(relay: Relay) -> None:
    relay.vouch(fresh_circuit())
    with relay.local_client() as desk, stranger_link(relay) as link:
        link.open("orchestrator", 60)
        circuit = desk.accept(60)
        with relay.local_client("accelerator"):
            relay.vouch(circuit.id)
            assert refused(relay, "accelerator") == "name-taken"


def stranger_link(relay: Relay) -> RelayClient:
    return RelayClient.dial(relay.address, "accelerator")


def test_charges_are_given_back_whatever_happens() -> None:
    account = Account(1 << 20)
    here, there = socket.socketpair()
    line = RelayConnection(1, here, b"", address=None, accounts=())
    for size in (0, 1, 70_000, 500_000):
        line.put(bytes(size), (account,))
    line.flush()
    assert account.bytes > 0
    there.recv(1 << 16)
    line.flush()
    line.close()
    there.close()
    assert account.bytes == 0
