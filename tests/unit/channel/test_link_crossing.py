"""The tag of one crossing: what it covers, and what each end of a link says first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.channel.device.host import HostDevice
from sealift.channel.link import announcement as hello
from sealift.channel.link.announcement import (
    LinkKeys,
    TransferAnnouncement,
    TransferKind,
)
from sealift.channel.link.openers import (
    FORWARDED_EXTRA_BYTES,
    LinkOpener,
    bound,
    ends_of,
    fill_frame,
)
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.link.send import LinkSender
from sealift.channel.record.frames import FRAME_EXTRA_BYTES, FrameSealer
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PolicyError,
    StaleError,
    UsageError,
)
from tests.sim.homestream import HomeStream
from tests.sim.linkworld import LinkWorld
from tests.sim.memfdpair import memfd_pair

ANNOUNCED = TransferAnnouncement(TransferKind.HOME, 3, 4 * 64, 64, 5, bytes(120))
RECORD = bytes(range(64)) + b"the record's tag"
FRAME_BYTES = 64 + FORWARDED_EXTRA_BYTES


@pytest.fixture(params=list(Suite), ids=lambda suite: suite.name)
def ends(request):
    key, engine = SecretKey.generate(), HostDevice(threads=1)
    sealer = FrameSealer(key, suite=request.param, context=b"job")
    opener = LinkOpener(key, sealer.header_bytes, engine, context=b"job")
    yield sealer, opener
    engine.close()


def crossing(sealer, index=5):
    frame = memoryview(bytearray(FRAME_BYTES))
    fill_frame(sealer, ANNOUNCED, index, RECORD, frame)
    return frame


def verify(opener, frame, announced=ANNOUNCED, index=5, unit_bytes=64):
    found = ends_of(frame, 64)
    covered = bound(announced, index, unit_bytes, found.tag)
    opener.verify_bound(found.prefix, len(frame), covered, found.crossing)


def test_the_record_crosses_as_it_is_and_its_tag_is_bound(ends):
    sealer, opener = ends
    for index in (5, 6, 7):
        frame = crossing(sealer, index)
        assert frame[16:-16] == RECORD
        assert ends_of(frame, 64).tag == RECORD[-16:]
        verify(opener, frame, index=index)


@pytest.mark.parametrize(
    "change",
    [
        {"announced": replace(ANNOUNCED, number=4)},
        {"announced": replace(ANNOUNCED, first_index=4)},
        {"index": 6},
        {"unit_bytes": 63},
    ],
)
def test_whatever_a_crossing_tag_covers_is_covered(ends, change):
    sealer, opener = ends
    with pytest.raises(AuthenticationError):
        verify(opener, crossing(sealer), **change)


@pytest.mark.parametrize("position", [-32, -17, -16, -1])
def test_both_tags_are_covered(ends, position):
    sealer, opener = ends
    frame = crossing(sealer)
    frame[position] ^= 1
    with pytest.raises(AuthenticationError):
        verify(opener, frame)


def test_the_ciphertext_is_for_the_records_own_tag_to_judge(ends):
    # What the crossing does not cover: the owner's key is needed to judge it.
    sealer, opener = ends
    frame = crossing(sealer)
    frame[20] ^= 1
    verify(opener, frame)


def test_a_crossing_tag_is_taken_once_and_in_its_turn(ends):
    sealer, opener = ends
    first, second = crossing(sealer), crossing(sealer, 6)
    with pytest.raises(AuthenticationError):
        verify(opener, second, index=6)  # its place on the link is the second
    verify(opener, first)
    with pytest.raises(StaleError):
        verify(opener, first)
    verify(opener, second, index=6)


@pytest.mark.parametrize("context", [b"", b"another job"])
def test_another_context_is_another_crossing(context):
    key, engine = SecretKey.generate(), HostDevice(threads=1)
    sealer = FrameSealer(key, context=b"job")
    opener = LinkOpener(key, sealer.header_bytes, engine, context=context)
    with pytest.raises(AuthenticationError):
        verify(opener, crossing(sealer))
    engine.close()


def test_messages_and_crossing_tags_are_not_each_other(ends):
    # The same index, sequence and length: only the associated data differ.
    sealer, opener = ends
    empty = memoryview(bytearray(FRAME_EXTRA_BYTES))
    sealer.seal(b"", empty)
    covered = bound(ANNOUNCED, 5, 64, RECORD[-16:])
    with pytest.raises(AuthenticationError):
        opener.verify_bound(bytes(empty[:16]), len(empty), covered, bytes(empty[16:]))
    assert opener.open_message(empty) == b""
    sealer.bind(covered, empty)
    with pytest.raises(AuthenticationError):
        opener.open_message(empty)
    opener.verify_bound(bytes(empty[:16]), len(empty), covered, bytes(empty[16:]))


@pytest.mark.parametrize("frame_bytes", [0, 16, 47, FRAME_BYTES - 16, FRAME_BYTES + 1])
def test_a_frame_of_another_length_has_no_ends(frame_bytes):
    with pytest.raises(MalformedError) as caught:
        ends_of(memoryview(bytes(frame_bytes)), 64)
    assert caught.value.code == "bad-record-length"


def test_a_record_shorter_than_its_tag_is_not_forwarded():
    stream = HomeStream()
    world = LinkWorld(home_key=stream.home_key)
    stream.records[1] = bytes(15)
    stream.forward(world)
    assert isinstance(world.sender_error, UsageError)
    assert world.sender_error.code == "not-a-record"
    world.close()


def link_of(here, there):
    """Sender and receiver of one link; whichever cannot be made raises."""
    keys = LinkKeys(SecretKey.generate(), SecretKey.generate())
    sender = LinkSender(here, keys, timeout_s=300)
    return sender, LinkReceiver(there, keys, HostDevice(threads=1), timeout_s=300)


class Older:
    """An end of version 1: its header came alone."""

    def __init__(self, transport):
        self._transport = transport

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def send(self, frame):
        self._transport.send(bytes(frame)[8:])


def test_an_older_sender_is_told_apart():
    here, there = memfd_pair()
    with pytest.raises(PolicyError) as caught:
        link_of(Older(here), there)
    assert caught.value.code == "link-version"
    here.close()


def test_an_older_receiver_is_told_apart_before_anything_is_sent_to_it():
    here, there = memfd_pair()
    sender, receiver = link_of(here, Older(there))
    with pytest.raises(PolicyError) as caught:
        sender.send(bytes(100))
    assert caught.value.code == "link-version"
    assert there._incoming.available() == 0
    sender.close()
    receiver.close()


def test_a_version_that_somebody_changed_on_the_way_meets_nobody(monkeypatch):
    # The version is in both streams' associated data, not in the hello alone.
    real = hello.link_context

    def older(mode, context):
        return real(mode, context).replace(b"link 2", b"link 1")

    monkeypatch.setattr("sealift.channel.link.send.link_context", older)
    world = LinkWorld()
    assert isinstance(
        world.cross(lambda: world.sender.send(bytes(9))), AuthenticationError
    )
    world.close()
