"""Evidence by an agent behind a socket: strict, in step, and nothing else passes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sealift import codec
from sealift.attest.evidence import ContinuingAttester, Evidence, MeasuringAttester
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.agent import (
    AGENT,
    MAX_REQUEST_BYTES,
    AgentAttester,
    AgentReply,
    AgentRequest,
    Collect,
    Describe,
    Description,
    Enrol,
    Measure,
    encode_reply,
    read_frame,
)
from sealift.errors import MalformedError, SealiftError, UnavailableError

BOUND = bytes(32)
EVENT = RuntimeEvent("code-bundle", bytes(32))
ABOUT = Description(
    kind="tpm", media_type="application/x", events=(EVENT,), enrolments=()
)


class Agent:
    """Answers as ``reply_to`` says, and remembers what it was asked."""

    def __init__(self, place: Path) -> None:
        self.place = f"unix:{place}"
        self.asked: list[AgentRequest] = []
        self.reply_to: Callable[[AgentRequest], bytes] = self.honest
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen(1)
        threading.Thread(target=self._serve, daemon=True).start()

    def honest(self, request: AgentRequest) -> bytes:
        content = codec.encode(ABOUT) if isinstance(request, Describe) else b"body"
        return encode_reply(AgentReply(content))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, SealiftError):
            line, _ = self._listener.accept()
            with line:
                while True:
                    raw = read_frame(line.recv, MAX_REQUEST_BYTES)
                    self.asked.append(AGENT.decode(raw))
                    line.sendall(self.reply_to(self.asked[-1]))


@pytest.fixture
def attester(agent: Agent) -> Iterator[AgentAttester]:
    opened = AgentAttester(agent.place)
    yield opened
    opened.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    started = Agent(tmp_path / "a")
    yield started
    started.close()


def test_it_asks_for_what_an_attester_does(
    agent: Agent, attester: AgentAttester
) -> None:
    assert isinstance(attester, ContinuingAttester)
    assert isinstance(attester, MeasuringAttester)
    first = attester.collect(BOUND)
    assert first == Evidence("tpm", "application/x", b"body")
    attester.continue_from(first, BOUND)
    attester.measure(EVENT)
    assert attester.events == (EVENT,)
    assert attester.enrolments() == ()
    assert agent.asked == [
        Describe(),
        Collect(BOUND, None),
        Collect(BOUND, first.digest),
        Measure(EVENT.kind, EVENT.content),
        Describe(),
        Describe(),
    ]


def test_what_the_agent_could_not_do_is_said(
    agent: Agent, attester: AgentAttester
) -> None:
    agent.reply_to = lambda request: encode_reply(
        AgentReply(error="no", code="tpm-refused")
    )
    with pytest.raises(UnavailableError) as caught:
        attester.enrolment_request()
    assert caught.value.code == "tpm-refused"
    assert agent.asked[-1] == Enrol()


def test_without_an_agent_there_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        AgentAttester(f"unix:{tmp_path / 'nobody'}")
    assert caught.value.code == "agent-gone"


def test_an_agent_that_leaves_is_not_asked_again(
    agent: Agent, attester: AgentAttester
) -> None:
    """An answer that comes late must not be taken for the next one."""
    agent.reply_to = lambda request: b"\0\0"
    agent.close()
    threading.Timer(0.05, attester._socket.shutdown, [socket.SHUT_RD]).start()
    for _ in range(2):
        with pytest.raises(UnavailableError) as caught:
            attester.collect(BOUND)
        assert caught.value.code == "agent-gone"


@pytest.mark.parametrize(
    "raw", [b"\0\0\0\2{}", b"\xff\xff\xff\xff", encode_reply(AgentReply(b"{}"))]
)
def test_nonsense_is_refused(agent: Agent, raw: bytes) -> None:
    agent.reply_to = lambda request: raw
    with pytest.raises(MalformedError):
        AgentAttester(agent.place)


def test_a_frame_too_large_leaves_no_rest_to_take_for_an_answer(
    agent: Agent, attester: AgentAttester
) -> None:
    rest = encode_reply(AgentReply(b"an answer to nothing"))
    agent.reply_to = lambda request: b"\xff" * 4 + rest
    with pytest.raises(MalformedError):
        attester.collect(BOUND)
    with pytest.raises(UnavailableError) as refusal:
        attester.collect(BOUND)
    assert refusal.value.code == "agent-gone"
