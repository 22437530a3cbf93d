from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import pytest

from sealift.attest import Level
from sealift.crypto.aead import Suite
from sealift.crypto.keys import Label
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    SealiftError,
    UsageError,
)
from sealift.ids import Digest
from sealift.session import session as session_module
from sealift.session.frames import MAX_MESSAGE_BYTES, FrameKind, MessageType, pack
from sealift.session.session import Incoming, Session, accept, connect
from tests.sim.attested import Cast, accepting, run_handshake
from tests.sim.faultyline import Fault, FaultyLine
from tests.worlds.memorytransport import MemoryTransport, memory_pair
from tests.worlds.tcppair import tcp_pair

Pair = tuple[Session, Session]


@dataclass(frozen=True)
class Note:
    text: str
    number: int


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def pair(cast: Cast) -> Iterator[Pair]:
    here, there = cast.sessions()
    yield here, there
    here.close()
    there.close()


def test_messages_cross_both_ways(pair: Pair) -> None:
    here, there = pair
    for number in range(3):
        here.send(b"question %d" % number)
        assert there.receive(1) == b"question %d" % number
        there.send(b"answer")
        assert here.receive(1) == b"answer"


def test_a_message_goes_out_now_where_nobody_need_be_waited_for(cast: Cast) -> None:
    here, there = cast.sessions(tcp_pair())
    with closing(here), closing(there):
        assert there.send_now(b"at once")
        assert here.receive(300) == b"at once"
        sent = 0
        while there.send_now(bytes(50_000)):  # nobody reads
            sent += 1
        assert sent
        with there._send_lock:  # as a rekey has it
            refused: list[bool] = []
            thread = threading.Thread(
                target=lambda: refused.append(there.send_now(b""))
            )
            thread.start()
            thread.join(300)
            assert refused == [False]
        for _ in range(sent):  # what was not sent left no gap
            assert here.receive(300) == bytes(50_000)
        there.send(b"the last")
        assert here.receive(300) == b"the last"
        with pytest.raises(UsageError):
            there.send_now(bytes(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(PeerError):
        there.send_now(b"after the end")


def test_a_wish_for_new_keys_is_left_to_who_can_wait(cast: Cast) -> None:
    """``receive_now`` finds it and does nothing; ``receive`` answers it."""
    here, there = cast.sessions(tcp_pair())
    with closing(here), closing(there):
        assert there.receive_now() is None
        assert not there.must_wait
        renewal = threading.Thread(target=here.rekey)
        renewal.start()
        while not there.must_wait and renewal.is_alive():
            assert there.receive_now() is None
        assert (there.must_wait, there.key_epoch) == (True, 0)
        receiving = threading.Thread(target=lambda: there.receive(300))
        receiving.start()
        renewal.join(300)
        here.send(b"under new keys")
        receiving.join(300)
        assert (here.key_epoch, there.key_epoch, there.must_wait) == (1, 1, False)
        here.send(b"at once")
        while (found := there.receive_now()) is None:
            pass
        assert found == b"at once"


def test_records_of_the_codec_cross(pair: Pair) -> None:
    here, there = pair
    here.send_message(Note("hello", 7))
    assert there.receive_message(Note, 1) == Note("hello", 7)
    here.send(b'{"text":"hello"}')
    with pytest.raises(MalformedError):
        there.receive_message(Note, 1)
    here.send(b"the session goes on")
    assert there.receive(1) == b"the session goes on"


def test_messages_have_a_limit(pair: Pair) -> None:
    here, there = pair
    here.send(bytes(MAX_MESSAGE_BYTES))
    assert there.receive(1) == bytes(MAX_MESSAGE_BYTES)
    with pytest.raises(UsageError) as refusal:
        here.send(bytes(MAX_MESSAGE_BYTES + 1))
    assert refusal.value.code == "message-too-long"
    here.send(b"")
    assert there.receive(1) == b""


def test_raw_frames_cross_as_they_are(pair: Pair) -> None:
    here, there = pair
    here.send_raw(b"frame")
    assert there.receive_any(1) == Incoming(raw=True, payload=b"frame")
    here.send(b"message")
    here.send_raw(b"raw")
    assert there.receive_any(1) == Incoming(raw=False, payload=b"message")
    assert there.receive_any(1) == Incoming(raw=True, payload=b"raw")


def test_a_raw_frame_is_no_message(pair: Pair) -> None:
    here, there = pair
    here.send_raw(b"x")
    with pytest.raises(MalformedError) as refusal:
        there.receive(1)
    assert refusal.value.code == "unexpected-frame"
    with pytest.raises(PeerError):  # the session is over
        there.receive(1)


def test_a_timeout_is_not_the_end(pair: Pair) -> None:
    here, there = pair
    with pytest.raises(PeerError) as refusal:
        there.receive(0.01)
    assert refusal.value.code == "peer-timeout"
    here.send(b"late")
    assert there.receive(1) == b"late"


def test_closing_is_told_apart_from_truncation(cast: Cast) -> None:
    here, there = cast.sessions()
    here.send(b"last words")
    here.close()
    assert there.receive(1) == b"last words"
    with pytest.raises(PeerError) as refusal:
        there.receive(1)
    assert refusal.value.code == "session-closed"
    ends = memory_pair()
    here, there = cast.sessions(ends)
    here.send(b"last words")
    ends[0].close()
    assert there.receive(1) == b"last words"
    with pytest.raises(PeerError) as refusal:
        there.receive(1)
    assert refusal.value.code == "session-truncated"


class Stuck:
    """A transport whose peer takes nothing: sending waits until it is closed."""

    max_frame_bytes = 8 << 20

    def __init__(self) -> None:
        self.closed = threading.Event()

    def send(self, frame: object) -> None:
        assert self.closed.wait(300)
        raise PeerError("closed", code="peer-closed")

    def receive(self, timeout_s: float | None = None) -> bytes:
        raise PeerError("closed", code="peer-closed")

    def close(self) -> None:
        self.closed.set()


def test_close_does_not_wait_for_a_stuck_peer(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CLOSE_TIMEOUT_S", 0.05)
    here, _ = run_handshake(cast.initiator(), cast.responder())
    stuck = Stuck()
    session = Session(stuck, here, endpoint=cast.holder, policy=cast.of_accelerator)
    sender = threading.Thread(target=swallow, args=(lambda: session.send(b"x"),))
    sender.start()
    session.close()
    sender.join(300)
    assert not sender.is_alive()
    assert stuck.closed.is_set()


def test_what_was_sent_before_leaving_can_still_be_read(cast: Cast) -> None:
    here, there = cast.sessions()
    here.send(b"result")
    here.close()
    with pytest.raises(PeerError):
        there.send(b"too late")
    assert there.receive(1) == b"result"


def test_nothing_works_after_close(pair: Pair) -> None:
    here, _ = pair
    here.close()
    here.close()
    for use in (lambda: here.send(b""), lambda: here.receive(0), here.rekey):
        with pytest.raises(PeerError) as refusal:
            use()
        assert refusal.value.code == "session-closed"
    with pytest.raises(UsageError):  # the keys are gone
        here.export(Label.VISIT_FRAME)


def test_close_wakes_a_receiver(pair: Pair) -> None:
    here, _ = pair
    codes: list[str] = []

    def wait() -> None:
        with pytest.raises(PeerError) as refusal:
            here.receive(20)
        codes.append(refusal.value.code)

    thread = threading.Thread(target=wait)
    thread.start()
    here.close()
    thread.join(300)
    assert not thread.is_alive()
    assert codes == ["session-closed"]


# Frames of the holder's direction: hello, answer, stream header, first record, second.
FIRST_RECORD = 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("flip", FIRST_RECORD, 40), AuthenticationError),
        (Fault("drop", FIRST_RECORD), SealiftError),
        (Fault("duplicate", FIRST_RECORD), SealiftError),
        (Fault("hold", FIRST_RECORD), SealiftError),
        (Fault("truncate", FIRST_RECORD, 30), SealiftError),
        (Fault("drop", FIRST_RECORD - 1), SealiftError),
        (Fault("flip", FIRST_RECORD - 1, 70), AuthenticationError),
        (Fault("duplicate", FIRST_RECORD - 1), MalformedError),
    ],
)
def test_a_hostile_line_is_noticed(
    cast: Cast, fault: Fault, error: type[SealiftError]
) -> None:
    here, there = cast.sessions(memory_pair(FaultyLine([fault])))
    here.send(b"first, long enough to be cut somewhere")
    here.send(b"second, long enough to be cut somewhere")
    received: list[bytes] = []
    with pytest.raises(error):
        received.extend(iter(lambda: there.receive(0.2), None))
    expected = [b"first, long enough to be cut somewhere"]
    assert received in ([], expected)
    with pytest.raises(PeerError):  # one error ends it
        there.receive(0.2)
    with pytest.raises(PeerError):
        there.send(b"")


def test_a_delay_does_no_harm(cast: Cast) -> None:
    here, there = cast.sessions(
        memory_pair(FaultyLine([Fault("delay", FIRST_RECORD, 0.05)]))
    )
    here.send(b"slow")
    assert there.receive(60) == b"slow"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x63",
        pack(FrameKind.HANDSHAKE, b"{}"),
        pack(FrameKind.HEADER, bytes(120)),
        pack(FrameKind.RECORD, bytes(64)),
        pack(FrameKind.RECORD, b""),
    ],
)
def test_forged_frames_end_the_session(cast: Cast, frame: bytes) -> None:
    ends = memory_pair()
    _, there = cast.sessions(ends)
    ends[0].send(frame)
    with pytest.raises(SealiftError):
        there.receive(1)
    with pytest.raises(PeerError):
        there.receive(1)


def test_a_forged_abort_is_only_a_hint(cast: Cast) -> None:
    ends = memory_pair()
    _, there = cast.sessions(ends)
    ends[0].send(pack(FrameKind.ABORT, b"\x1b[31mhacked\n"))
    with pytest.raises(PeerError) as refusal:
        there.receive(1)
    assert "\x1b" not in str(refusal.value)


def swallow(call: Callable[[], object]) -> None:
    with suppress(SealiftError):
        call()


def test_a_stream_ends_only_where_it_may(pair: Pair) -> None:
    here, there = pair
    here._sending.send(MessageType.APPLICATION, b"", final=True)
    with pytest.raises(MalformedError):
        there.receive(1)


def test_refusals_are_told_to_the_other_end(cast: Cast) -> None:
    here, there = memory_pair()
    cast.holder = replace(cast.holder, agreement=Digest.of(b"other"))
    refusal = run_refused(cast, here, there)
    assert refusal.code == "peer-refused"
    assert "agreement-differs" in str(refusal)


def run_refused(
    cast: Cast, here: MemoryTransport, there: MemoryTransport
) -> SealiftError:
    answering = lambda: swallow(  # noqa: E731
        lambda: accept(there, cast.accelerator, cast.of_holder, 2)
    )
    thread = threading.Thread(target=answering)
    thread.start()
    with pytest.raises(SealiftError) as refusal:
        connect(here, cast.holder, cast.of_accelerator, 2)
    thread.join(300)
    with pytest.raises(PeerError):  # both transports are closed
        here.send(b"")
    with pytest.raises(PeerError):
        there.send(b"")
    return refusal.value


def test_no_evidence_no_session(cast: Cast) -> None:
    cast.of_accelerator = accepting(cast.of_accelerator, Level.TEE)
    refusal = run_refused(cast, *memory_pair())
    assert refusal.code == "development-refused"


def test_a_silent_peer_times_out(cast: Cast) -> None:
    here, _ = memory_pair()
    with pytest.raises(PeerError) as refusal:
        connect(here, cast.holder, cast.of_accelerator, 0.05)
    assert refusal.value.code == "peer-timeout"


def test_the_stream_must_use_the_agreed_suite(cast: Cast) -> None:
    here, there = cast.sessions()
    other = replace(here.established, suite=int(Suite.CHACHA20_POLY1305))
    here._start(other)
    here.send(b"x")
    with pytest.raises(MalformedError) as refusal:
        there.receive(1)
    assert refusal.value.code == "stream-differs"
