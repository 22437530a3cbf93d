"""Packets: lengths, limits, padding, and what is no packet."""

from __future__ import annotations

import struct
import tracemalloc
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.errors import MalformedError, PeerError
from sealift.ids import Buffer
from sealift.serve.protocol import (
    Cancel,
    InferenceAnswer,
    InferenceRequest,
    receive_packet,
    send_packet,
)
from sealift.session.frames import MAX_MESSAGE_BYTES
from tests.sim.examples import examples


class Line:
    """Messages as they were sent."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()

    def send(self, message: Buffer) -> None:
        assert len(message) <= MAX_MESSAGE_BYTES
        self.messages.append(bytes(message))

    def receive(self, timeout_s: float | None = None) -> bytes:
        if not self.messages:
            raise PeerError("nothing came", code="peer-timeout")
        return self.messages.popleft()


ASK = InferenceRequest(id=3, work="predict", rows=2)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4096, (1 << 20) - 90, 1 << 20, (5 << 20) + 7])
def test_what_was_sent_arrives(length: int, pad: bool) -> None:
    line, payload = Line(), bytes(range(256)) * (length // 256 + 1)
    send_packet(line, ASK, payload[:length], pad=pad)
    packet = receive_packet(line, 1.0, max_payload=lambda _: 8 << 20)
    assert packet.header == ASK
    assert bytes(packet.payload) == payload[:length]
    assert not line.messages


def test_padding_hides_lengths_but_for_their_power_of_two() -> None:
    def crossing(length: int) -> int:
        line = Line()
        send_packet(line, ASK, bytes(length), pad=True)
        return sum(map(len, line.messages))

    assert crossing(0) == crossing(1) == crossing(3000)
    assert crossing(5000) == crossing(8000) != crossing(9000)


def test_too_long_a_payload_is_refused_by_its_head() -> None:
    line = Line()
    send_packet(line, ASK, bytes(2000))
    with pytest.raises(MalformedError) as caught:
        receive_packet(line, 1.0, max_payload=lambda _: 1999)
    assert caught.value.code == "request-too-large"


def test_half_a_packet_is_not_waited_for_again() -> None:
    line = Line()
    send_packet(line, ASK, bytes(3 << 20))
    line.messages.pop()
    with pytest.raises(PeerError) as caught:
        receive_packet(line, 1.0, max_payload=lambda _: 8 << 20)
    assert caught.value.code == "peer-stalled"


def test_every_header_comes_back() -> None:
    for header in (ASK, Cancel(1), InferenceAnswer(id=1, number=0, rows=0, final=True)):
        line = Line()
        send_packet(line, header)
        assert receive_packet(line, 1.0, max_payload=lambda _: 0).header == header


@examples(60)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_noise_is_refused(messages: list[bytes]) -> None:
    line = Line()
    line.messages.extend(messages)
    with pytest.raises((MalformedError, PeerError)):
        receive_packet(line, 1.0, max_payload=lambda _: 1000)


@examples(60)
@given(st.integers(0, 80), st.integers(1, 255))
def test_a_changed_byte_changes_the_packet_or_is_refused(at: int, bits: int) -> None:
    """Not that it could happen: the session seals it. But nothing else may leave."""
    line = Line()
    send_packet(line, ASK, b"payload")
    raw = bytearray(line.messages.pop())
    raw[at % len(raw)] ^= bits
    line.messages.append(bytes(raw))
    try:
        receive_packet(line, 1.0, max_payload=lambda _: 1000)
    except (MalformedError, PeerError):
        return


def test_an_announced_length_costs_no_memory() -> None:
    """A stranger says how much will come, and sends nothing of it."""
    line = Line()
    send_packet(line, ASK)
    head = line.messages.popleft()[20:]
    announced = 1 << 28
    line.messages.append(struct.pack(">IQQ", len(head), announced, 0) + head)
    tracemalloc.start()
    with pytest.raises(PeerError):
        receive_packet(line, 1.0, max_payload=lambda _: announced)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
