"""Every transport keeps the same promises."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from sealift.channel.record.layout import PREFIX_BYTES, sealed_bytes
from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.sealer import StreamSealer, regroup
from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, PeerError, UsageError
from tests.sim.memfdpair import memfd_pair
from tests.worlds.memorytransport import memory_pair

KEY = SecretKey.from_bytes(b"k" * 32)
LIMIT_BYTES = 64 << 10


def tcp_pair():
    listener = TcpListener()
    here = TcpTransport.dial(*listener.address)
    there = listener.accept(60)
    listener.close()
    here.max_frame_bytes = there.max_frame_bytes = LIMIT_BYTES
    return here, there


@pytest.fixture(params=["tcp", "memfd", "memory"])
def ends(request, tmp_path):
    makers = {
        "tcp": tcp_pair,
        "memfd": lambda: memfd_pair(slot_bytes=LIMIT_BYTES, num_slots=4),
        "memory": lambda: memory_pair(max_frame_bytes=LIMIT_BYTES),
    }
    here, there = makers[request.param]()
    yield here, there
    here.close()
    there.close()


def code_of(error_type, attempt):
    with pytest.raises(error_type) as caught:
        attempt()
    return caught.value.code


def test_frames_arrive_whole_and_in_order_in_both_directions(ends):
    here, there = ends
    for frame in (b"", b"x", os.urandom(1000)):
        here.send(frame)
        there.send(frame[::-1])
        assert there.receive(60) == frame
        assert here.receive(60) == frame[::-1]


def test_several_frames_may_wait(ends):
    here, there = ends
    frames = [os.urandom(n) for n in (5, 0, 700)]
    for frame in frames:
        here.send(frame)
    assert [there.receive(60) for _ in frames] == frames


def test_any_buffer_can_be_sent(ends):
    here, there = ends
    for frame in (b"bytes", bytearray(b"array"), memoryview(b"long view")[5:]):
        here.send(frame)
        assert there.receive(60) == bytes(frame)


def test_the_longest_frame_passes_and_a_longer_one_is_refused(ends):
    here, there = ends
    frame = os.urandom(LIMIT_BYTES)
    sender = threading.Thread(target=here.send, args=(frame,))
    sender.start()
    assert there.receive(60) == frame
    sender.join()
    attempt = lambda: here.send(bytes(LIMIT_BYTES + 1))  # noqa: E731
    assert code_of(UsageError, attempt) == "frame-too-long"
    here.send(b"the transport lives on")
    assert there.receive(60) == b"the transport lives on"


def test_an_announced_frame_above_the_limit_is_malformed(ends):
    here, there = ends
    there.max_frame_bytes = 100
    here.send(bytes(101))
    assert code_of(MalformedError, lambda: there.receive(60)) == "frame-too-long"


def test_a_timeout_loses_nothing(ends):
    here, there = ends
    assert code_of(PeerError, lambda: there.receive(0.01)) == "peer-timeout"
    here.send(b"late")
    assert there.receive(60) == b"late"


def test_frames_sent_before_the_end_arrive_then_the_end_is_known(ends):
    here, there = ends
    here.send(b"last words")
    here.close()
    assert there.receive(60) == b"last words"
    assert code_of(PeerError, lambda: there.receive(60)) == "peer-closed"
    assert code_of(PeerError, lambda: there.receive(60)) == "peer-closed"


def test_a_closed_end_refuses_and_closes_twice(ends):
    here, _ = ends
    here.close()
    here.close()
    assert code_of(PeerError, lambda: here.send(b"x")) == "peer-closed"
    assert code_of(PeerError, lambda: here.receive(0.1)) == "peer-closed"


def test_closing_wakes_a_thread_that_waits(ends):
    here, _ = ends
    errors = []

    def wait():
        try:
            here.receive(30)
        except PeerError as error:
            errors.append(error.code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    here.close()
    waiting.join(300)
    assert errors == ["peer-closed"]


def test_lent_memory_carries_frames_too(ends):
    here, there = ends
    for frame in (b"one", b"", os.urandom(500)):
        here.reserve(len(frame))[:] = frame
        here.commit()
        assert bytes(there.borrow(5)) == frame
        there.give_back()


def test_who_is_told_that_there_is_room_need_not_wait(ends):
    """However little the other end takes; and once it took all, there is room again."""
    here, there = ends
    frame, sent = os.urandom(here.max_frame_bytes), 0
    while here.has_room(len(frame)) and sent < 1000:
        started = threading.Thread(target=here.send, args=(frame,), daemon=True)
        started.start()
        started.join(60)
        assert not started.is_alive(), sent
        sent += 1
    assert sent < 1000
    for _ in range(sent):
        assert there.receive(60) == frame
    room = here.has_room(len(frame))
    while sent and not room:  # the system, or credit, takes a moment
        room = here.has_room(len(frame))
    assert room == bool(sent)


def test_a_reservation_is_committed_before_the_next(ends):
    here, _ = ends
    here.reserve(1)
    with pytest.raises(UsageError):
        here.reserve(1)
    here.commit()
    with pytest.raises(UsageError):
        here.commit()


def test_a_sealed_stream_passes(ends):
    here, there = ends
    plaintext, got = os.urandom(300_000), bytearray()

    def send():
        sealer = StreamSealer(KEY, total_bytes=len(plaintext), record_bytes=32 << 10)
        here.send(sealer.header_bytes)
        for record in regroup([plaintext], 32 << 10):
            room = here.reserve(PREFIX_BYTES + sealed_bytes(len(record)))
            sealer.seal_frame_into(record, room)
            here.commit()
        here.send(sealer.trailer())

    sender = threading.Thread(target=send)
    sender.start()
    opener = StreamOpener(KEY, there.receive(300))
    while not opener.finished:
        got += opener.open_frame(there.borrow(300))
        there.give_back()
    opener.finish(there.receive(300))
    sender.join()
    assert bytes(got) == plaintext


def test_sealed_messages_pass(ends):
    here, there = ends
    sealer = StreamSealer(KEY, total_bytes=None, record_bytes=1024)
    here.send(sealer.header_bytes)
    opener = StreamOpener(KEY, there.receive(60))
    for message in (b"", b"hello", os.urandom(1024)):
        here.send(sealer.seal_frame(message))
        assert opener.open_frame(there.receive(60)) == message


def frames_until_the_end(transport):
    with contextlib.suppress(PeerError):
        while True:
            yield transport.receive(60)


def test_after_half_a_frame_a_tcp_connection_is_over():
    """Else the next frame would be read as the rest of the one before."""
    listener = TcpListener()
    here = TcpTransport.dial(*listener.address)
    there = listener.accept(60)
    listener.close()
    here._send_timeout_s = 0.05
    longest = bytes(here.max_frame_bytes)
    codes = set()
    while "peer-timeout" not in codes:  # until the buffers between are full
        try:
            here.send(longest)
        except PeerError as error:
            codes.add(error.code)
    assert code_of(PeerError, lambda: here.send(b"small")) == "peer-closed"
    assert {len(frame) for frame in frames_until_the_end(there)} <= {len(longest)}
    here.close()
    there.close()


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
def test_what_is_no_host_name_cannot_be_dialed(host):
    code = code_of(PeerError, lambda: TcpTransport.dial(host, 1))
    assert code == "peer-unreachable"


def test_a_silent_peer_is_asked_whether_it_is_there() -> None:
    """A machine that is cut off sends nothing more, not even an end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with contextlib.closing(TcpTransport(sock)):
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            limits = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, pause, times = (
                sock.getsockopt(socket.IPPROTO_TCP, each) for each in limits
            )
            assert idle + pause * times <= 30
