"""What is said over the guest's port: strict, bounded, and past any noise before it."""

from __future__ import annotations

import io

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sealift.attest.tpm.agent import (
    AGENT,
    MAX_REQUEST_BYTES,
    AgentReply,
    AnswerChallenge,
    Collect,
    Describe,
    Enrol,
    Keep,
    Measure,
    decode_reply,
    encode_reply,
    read_frame,
)
from sealift.errors import MalformedError, PeerError
from sealift.ids import Digest
from tests.guest.agent import (
    GUEST,
    PREAMBLE,
    Misbehave,
    Request,
    ShutDown,
    Start,
    skip_to_preamble,
)

REQUESTS: list[Request] = [
    Start((b"a certificate",)),
    Collect(bytes(32), None),
    Collect(bytes(32), Digest(bytes(32))),
    Enrol(),
    AnswerChallenge(b"blob", b"seed"),
    Keep(b"signed"),
    Measure("module", b"content"),
    Misbehave("exec"),
    Describe(),
    ShutDown(),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_requests_arrive(request_: Request) -> None:
    read = io.BytesIO(GUEST.encode(request_)).read
    assert GUEST.decode(read_frame(read, MAX_REQUEST_BYTES)) == request_


def test_replies_arrive() -> None:
    reply = AgentReply(b"content", "", "")
    assert decode_reply(read_frame(io.BytesIO(encode_reply(reply)).read, 100)) == reply


def test_too_much_is_refused_on_both_sides() -> None:
    with pytest.raises(MalformedError):
        GUEST.encode(Keep(bytes(MAX_REQUEST_BYTES)))
    with pytest.raises(MalformedError):
        read_frame(io.BytesIO(b"\xff\xff\xff\xff").read, MAX_REQUEST_BYTES)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"request":{},"verb":"format"}',
        b'{"request":{},"verb":["start"]}',
        b'{"request":{"act":"fly"},"verb":"misbehave"}',
        b'{"request":{},"verb":"enrol","x":1}',
    ],
)
def test_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        GUEST.decode(raw)


@pytest.mark.parametrize("request_", [Start(()), Misbehave("exec"), ShutDown()])
def test_an_agents_port_takes_nothing_of_a_rehearsal(request_: Request) -> None:
    read = io.BytesIO(GUEST.encode(request_)).read
    with pytest.raises(MalformedError):
        AGENT.decode(read_frame(read, MAX_REQUEST_BYTES))


@given(st.binary(max_size=200))
def test_only_malformed_errors_leave(raw: bytes) -> None:
    for decode in (GUEST.decode, AGENT.decode, decode_reply):
        try:
            decode(raw)
        except MalformedError:
            continue


@given(st.binary(max_size=300))
def test_noise_before_the_preamble_is_skipped(noise: bytes) -> None:
    before = noise + PREAMBLE[: len(PREAMBLE) // 2]
    assume(PREAMBLE not in before + PREAMBLE[:-1])
    said = io.BytesIO(before + PREAMBLE + b"next")
    skip_to_preamble(said.read)
    assert said.read() == b"next"


def test_a_port_that_closes_is_a_peer_that_left() -> None:
    with pytest.raises(PeerError):
        skip_to_preamble(io.BytesIO(PREAMBLE[:-1]).read)
    with pytest.raises(PeerError):
        read_frame(io.BytesIO(b"\0\0\0\x09short").read, 100)
