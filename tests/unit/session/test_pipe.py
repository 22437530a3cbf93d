"""Bulk both ways, over every carrier, with real sockets and real shared memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.channel.record.frames import FrameSealer
from sealift.crypto.aead import Suite
from sealift.errors import MalformedError, PeerError, SealiftError, UsageError
from sealift.session import pipe as pipe_module
from sealift.session.handshake import Initiator
from sealift.session.pipe import RECORD_BYTES, Pipe
from tests.sim.attested import both, run_handshake
from tests.sim.forking import in_a_child
from tests.sim.memfdpair import memfd_pair
from tests.sim.pipes import CAST, KINDS, Pipes, carriers, hang_up, line, pipes, tcp_pair

SIZES = (0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 9 * RECORD_BYTES + 5)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    hang_up()


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest) -> Iterator[Pipes]:
    with carriers(request.param) as over:
        yield pipes(over)
        hang_up()


def cross(sender: Pipe, receiver: Pipe, message: bytes) -> bytes:
    found = bytearray(len(message))
    both(lambda: sender.send(message), lambda: receiver.receive_into(found))
    return bytes(found)


def code_of(kind: type[SealiftError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return caught.value.code


def test_messages_of_any_size_cross_both_ways(ends: Pipes) -> None:
    here, there = ends
    for size in SIZES:
        message = os.urandom(size)
        assert cross(here, there, message) == message
        assert cross(there, here, message[::-1]) == message[::-1]


def test_both_ways_at_once_and_each_end_hears_what_the_other_verified(
    ends: Pipes,
) -> None:
    messages = [os.urandom(25 << 20), os.urandom(25 << 20)]

    def end(number: int) -> bytes:
        pipe, found = ends[number], bytearray(25 << 20)
        with pipe:
            both(
                lambda: pipe.send(messages[number]),
                lambda: pipe.receive_into(found),
            )
        return bytes(found)

    assert both(lambda: end(0), lambda: end(1)) == (messages[1], messages[0])
    assert code_of(PeerError, lambda: ends[0].send(b"more")) == "session-closed"
    ends[0].close()  # again, and nothing is said


def test_a_buffer_may_be_reused_as_soon_as_it_was_sent(ends: Pipes) -> None:
    here, there = ends
    buffer, rounds = bytearray(3 * RECORD_BYTES), 4

    def send() -> None:
        for number in range(rounds):
            buffer[:] = bytes([number]) * len(buffer)
            here.send(buffer)
            buffer[:] = bytes([255]) * len(buffer)

    def receive() -> list[set[int]]:
        found = bytearray(len(buffer))
        return [there.receive_into(found) or set(found) for _ in range(rounds)]

    assert both(send, receive)[1] == [{number} for number in range(rounds)]


def test_any_contiguous_buffer_is_sent_and_only_what_can_be_written_is_filled() -> None:
    here, there = pipes(memfd_pair())
    here.send(memoryview(bytes(range(8))).cast("Q"))
    found = memoryview(bytearray(8)).cast("Q")
    there.receive_into(found)
    assert found.tobytes() == bytes(range(8))
    with pytest.raises(UsageError, match="writable"):
        there.receive_into(memoryview(bytes(8)))
    here.send(b"and it goes on")
    there.receive_into(bytearray(14))


def test_a_second_thread_in_one_direction_is_refused_and_the_first_goes_on() -> None:
    here, there = pipes(memfd_pair(num_slots=2))
    message, found = os.urandom(5 * RECORD_BYTES), bytearray(5 * RECORD_BYTES)
    sending = threading.Thread(target=here.send, args=(message,))
    sending.start()
    while not here._send_lock.locked():
        time.sleep(0.001)
    assert code_of(UsageError, lambda: here.send(b"me too")) == "pipe-in-use"
    assert code_of(UsageError, here.close) == "pipe-in-use"
    there.receive_into(found)
    sending.join()
    assert found == message


def test_a_peer_that_falls_silent_ends_the_pipe_and_nothing_is_left() -> None:
    here, there = pipes(tcp_pair(), timeout_s=0.2)
    there._seal(b"x" * RECORD_BYTES, 0, 2 * RECORD_BYTES)  # and not the other half
    found = bytearray(b"?" * 2 * RECORD_BYTES)
    assert code_of(PeerError, lambda: here.receive_into(found)) == "peer-timeout"
    assert found == bytes(len(found))
    assert code_of(PeerError, lambda: here.send(b"still?")) == "peer-timeout"


def test_half_a_frame_and_then_nothing_is_silence() -> None:
    mine, theirs = tcp_pair()
    here, _ = pipes((mine, theirs), timeout_s=0.2)
    theirs._sock.send((1000).to_bytes(4, "big") + bytes(10))
    assert code_of(PeerError, lambda: here.receive_into(bytearray(9))) == "peer-timeout"


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_takes_nothing_ends_the_pipe(kind: str) -> None:
    with carriers(kind) as over:
        over[0]._send_timeout_s = 3600.0  # the pipe says how long
        here, _ = pipes(over, timeout_s=0.2)
        call = lambda: here.send(bytes(64 << 20))  # noqa: E731 - more than anything holds
        assert code_of(PeerError, call) == "peer-timeout"
        call = lambda: here.receive_into(bytearray(1))  # noqa: E731
        assert code_of(PeerError, call) == "peer-timeout"
        hang_up()


def test_a_peer_that_goes_wakes_whoever_waits_for_it(ends: Pipes) -> None:
    here, there = ends
    found = bytearray(b"?" * 10)
    there._seal(b"x" * 5, 0, 10)
    going = threading.Timer(0.05, there.abort)
    going.start()
    with pytest.raises(PeerError):
        here.receive_into(found)
    assert found == bytes(10)
    going.join()


def test_abort_wakes_the_other_thread_of_this_end(ends: Pipes) -> None:
    here, _ = ends
    ending = threading.Timer(0.05, here.abort)
    ending.start()
    call = lambda: here.receive_into(bytearray(1))  # noqa: E731
    assert code_of(PeerError, call) == "session-closed"
    ending.join()


def test_a_peer_that_closed_is_told_apart_from_one_that_is_gone() -> None:
    here, there = pipes(memfd_pair())
    closing = threading.Thread(target=lambda: code_of(PeerError, there.close))
    closing.start()
    call = lambda: here.receive_into(bytearray(4))  # noqa: E731
    assert code_of(PeerError, call) == "session-closed"
    closing.join()


def test_an_end_that_closes_before_it_received_everything_is_reported() -> None:
    here, there = pipes(memfd_pair(), timeout_s=60.0)
    here.send(b"this is never received")
    told: list[str] = []
    closing = threading.Thread(
        target=lambda: told.append(code_of(PeerError, there.close))
    )
    closing.start()
    assert code_of(PeerError, here.close) == "session-truncated"
    closing.join()
    assert told == ["session-truncated"]


def test_an_error_in_the_block_ends_the_pipe_without_a_word() -> None:
    here, there = pipes(memfd_pair())
    with pytest.raises(ZeroDivisionError), here:
        raise ZeroDivisionError
    with pytest.raises(PeerError):
        there.receive_into(bytearray(1))


def test_a_forked_child_is_refused_and_its_parent_goes_on() -> None:
    here, there = pipes(tcp_pair())
    assert in_a_child(lambda: here.send(b"twice"))() == b"forked-stream"
    assert in_a_child(lambda: here.receive_into(bytearray(1)))() == b"forked-stream"
    assert in_a_child(here.close)() == b"done"
    assert cross(here, there, b"once") == b"once"
    assert cross(there, here, b"and back") == b"and back"


def test_keys_are_wiped_with_the_first_error() -> None:
    here, _ = pipes(memfd_pair(), timeout_s=0.05)
    sealer = here._sealer
    with pytest.raises(PeerError):
        here.receive_into(bytearray(1))
    with pytest.raises(UsageError, match="wiped"):
        sealer.seal(b"", memoryview(bytearray(32)))


def test_the_suite_is_the_one_of_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FrameSealer.__init__

    def other(self: FrameSealer, *args: object, **kw: object) -> None:
        kw["suite"] = Suite.CHACHA20_POLY1305
        real(self, *args, **kw)  # type: ignore[arg-type]

    sessions, over = CAST.sessions(), memfd_pair()
    assert sessions[0].established.suite == Suite.AES_256_GCM
    monkeypatch.setattr(pipe_module.FrameSealer, "__init__", other)
    assert code_of(MalformedError, lambda: pipes(over, sessions)) == "stream-differs"


def test_whatever_the_session_agreed_on_is_used() -> None:
    chacha = (Suite.CHACHA20_POLY1305,)
    opening = Initiator(CAST.holder, CAST.of_accelerator, suites=chacha)
    ended: Any = [
        SimpleNamespace(established=each, export=each.export)
        for each in run_handshake(opening, CAST.responder())
    ]
    here, there = pipes(memfd_pair(), ended)
    assert here._opener.header.suite is Suite.CHACHA20_POLY1305
    assert cross(here, there, b"message") == b"message"


def test_something_that_is_no_pipe_is_refused_and_hung_up_on() -> None:
    session, _ = CAST.sessions()
    over, stranger = line()
    stranger.send(b"GET / HTTP/1.1")
    with pytest.raises(MalformedError, match="does not use a pipe"):
        Pipe(session, over, b"test")
    assert stranger.receive(1).startswith(b"SEALPIP\x01")
    with pytest.raises(PeerError):
        stranger.receive(1)
