from __future__ import annotations

import threading

import pytest

from sealift.errors import PeerError
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.envelope import (
    FRAME_COST_BYTES,
    WINDOW_BYTES,
    EnvelopeKind,
    RelayEnvelope,
    fresh_circuit,
)


@pytest.fixture
def written() -> list[RelayEnvelope]:
    return []


@pytest.fixture
def circuit(written: list[RelayEnvelope]) -> Circuit:
    return Circuit(
        fresh_circuit(),
        "peer",
        write=lambda frame: written.append(RelayEnvelope.parse(frame)),
        max_frame_bytes=1 << 20,
        send_timeout_s=0.05,
    )


def kinds(written: list[RelayEnvelope]) -> list[EnvelopeKind]:
    return [envelope.kind for envelope in written]


def test_credit_goes_back_in_steps(
    circuit: Circuit, written: list[RelayEnvelope]
) -> None:
    frame = bytes(WINDOW_BYTES // 8)
    for _ in range(2):
        circuit.deliver(frame)
        circuit.receive(0)
    (envelope,) = written
    assert envelope.credit_bytes == 2 * (len(frame) + FRAME_COST_BYTES)


def test_small_exchanges_cost_no_credit(
    circuit: Circuit, written: list[RelayEnvelope]
) -> None:
    for _ in range(100):
        circuit.deliver(b"small")
        circuit.receive(0)
    assert not written


@pytest.mark.parametrize("frame_bytes", [0, 1, 1 << 16])
def test_the_queue_is_bounded(
    circuit: Circuit, written: list[RelayEnvelope], frame_bytes: int
) -> None:
    """Whatever the relay lets through: frames beyond the window end the circuit."""
    cost = frame_bytes + FRAME_COST_BYTES
    for _ in range(-(-WINDOW_BYTES // cost)):
        circuit.deliver(bytes(frame_bytes))
    assert not written
    circuit.deliver(bytes(frame_bytes))
    assert kinds(written) == [EnvelopeKind.CLOSE]
    with pytest.raises(PeerError) as refusal:
        circuit.receive(0)
    assert refusal.value.code == "flooded"


def test_sending_waits_for_credit(
    circuit: Circuit, written: list[RelayEnvelope]
) -> None:
    for _ in range(-(-WINDOW_BYTES // ((1 << 20) + FRAME_COST_BYTES))):
        circuit.send(bytes(1 << 20))
    with pytest.raises(PeerError) as refusal:
        circuit.send(b"x")
    assert refusal.value.code == "peer-timeout"
    circuit.give_credit(1 << 20)
    circuit.send(b"x")
    assert written[-1].payload == b"x"


def test_credit_never_exceeds_the_window(circuit: Circuit) -> None:
    circuit.give_credit(1 << 30)
    sent = iter(lambda: circuit.send(bytes(1 << 20)), "never")
    with pytest.raises(PeerError):
        list(zip(range(8), sent, strict=False))


@pytest.mark.parametrize("reason", ["peer-gone", "relay-gone", "something else"])
def test_the_end_wakes_everybody(circuit: Circuit, reason: str) -> None:
    codes: list[str] = []

    def wait() -> None:
        with pytest.raises(PeerError) as refusal:
            circuit.receive(20)
        codes.append(refusal.value.code)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    circuit.end(reason)
    for thread in threads:
        thread.join(300)
    assert codes == [reason if "-" in reason else "peer"] * 3


def test_close_is_told_once(circuit: Circuit, written: list[RelayEnvelope]) -> None:
    circuit.close()
    circuit.close()
    circuit.deliver(b"late")
    assert kinds(written) == [EnvelopeKind.CLOSE]
    with pytest.raises(PeerError):
        circuit.receive(0)


def test_a_frame_is_not_lost_with_the_credit_for_it() -> None:
    def write(frame: bytes) -> None:
        raise PeerError("nobody takes anything", code="peer-timeout")

    circuit = Circuit(fresh_circuit(), "peer", write=write, max_frame_bytes=1 << 20)
    frame = bytes(WINDOW_BYTES // 2)
    circuit.deliver(frame)
    assert circuit.receive(0) == frame
