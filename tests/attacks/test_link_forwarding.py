"""Records that their owner sealed at home, forwarded by somebody else (rules C6, H3)."""

from __future__ import annotations

import os

from sealift.channel.device.host import HostDevice
from sealift.channel.link.openers import ends_of
from sealift.channel.link.receive import OnHost
from sealift.channel.record.layout import PREFIX_BYTES
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import SLOT_HEAD_BYTES
from sealift.crypto.keys import SecretKey
from tests.sim.homestream import HomeStream
from tests.sim.linkworld import RECORD_BYTES, LinkWorld
from tests.sim.twicereading import TwiceReadingBackend

PLAINTEXT = os.urandom(3 * RECORD_BYTES)


class Forwarder:
    """Whoever forwards a record changes it after its tag was verified."""

    def __init__(self):
        self.key = SecretKey.generate()
        engine = HostDevice(
            threads=1, make_cipher=TwiceReadingBackend(self.write).cipher
        )
        self.world = LinkWorld(engine=engine, home_key=lambda header: self.key)

    def write(self):
        transport = self.world.sender.transport
        place = transport._outgoing.place
        for slot in range(place.num_slots):
            at = place.start + slot * place.stride + SLOT_HEAD_BYTES + 100
            transport.memory[at] ^= 0xFF

    def forward(self):
        sealer = StreamSealer(
            self.key, total_bytes=RECORD_BYTES, record_bytes=RECORD_BYTES
        )
        records = [sealer.seal(PLAINTEXT[:RECORD_BYTES])]
        found = self.world.cross(
            lambda: self.world.sender.forward(
                sealer.header_bytes, records, RECORD_BYTES
            )
        )
        content = self.world.content()[:RECORD_BYTES]
        self.world.close()
        return found, content


def test_whoever_forwards_a_record_cannot_change_it_while_it_is_opened():
    found, content = Forwarder().forward()
    assert found.total_bytes == RECORD_BYTES
    assert content == PLAINTEXT[:RECORD_BYTES]


def where_it_lies(self, opener, arriving, timeout_s):
    """The mutant: opens forwarded records in the memory that their forwarder writes."""
    for start, length in arriving.units():
        at, frame_bytes = self._transport.next_range(timeout_s)
        ends = ends_of(self._transport.memory[at : at + frame_bytes], length)
        key, place = opener.admit(ends, at + PREFIX_BYTES, start, length)
        self._engine.open(key, self._shared, arriving.into, (place,)).wait()
        self._transport.skip(1)


def test_opened_where_it_lies_it_would_be_another(monkeypatch):
    monkeypatch.setattr(OnHost, "_copied_first", where_it_lies)
    found, content = Forwarder().forward()
    assert found.total_bytes == RECORD_BYTES
    assert content != PLAINTEXT[:RECORD_BYTES]


def replaced(world, stream, other):
    """Every record in the ring becomes the other's; its prefix and crossing tag stay.

    Before them lie the hello and the announcement.
    """
    transport = world.sender.transport
    place = transport._outgoing.place
    for number, record in enumerate(other.records):
        at = place.start + (2 + number) % place.num_slots * place.stride
        at += SLOT_HEAD_BYTES + PREFIX_BYTES
        transport.memory[at : at + len(record)] = record


class Racing(HostDevice):
    """Whoever can write the ring has his turn after each copy of a frame."""

    write = None

    def upload(self, host, to, offset=0):
        done = super().upload(host, to, offset)
        self.write()
        return done


def raced():
    stream = HomeStream(num_records=1)
    twin, device = stream.twin(), Racing(threads=1)
    world = LinkWorld(engine=device, home_key=stream.home_key)
    device.write = lambda: replaced(world, stream, twin)
    found = stream.forward(world)
    content = world.content()[:RECORD_BYTES]
    world.close()
    assert found.total_bytes == RECORD_BYTES
    return content == stream.plaintext, content == twin.plaintext


def test_the_tag_that_is_checked_is_the_one_that_was_copied():
    assert raced() == (True, False)


def checked_before_it_is_copied(self, opener, arriving, timeout_s):
    """The mutant: looks at the ring, then opens what is there by then under its tag."""
    transport, engine = self._transport, self._engine
    private = engine.allocate(transport.max_frame_bytes)
    for start, length in arriving.units():
        at, frame_bytes = transport.next_range(timeout_s)
        frame = transport.memory[at : at + frame_bytes]
        key, place = opener.admit(ends_of(frame, length), PREFIX_BYTES, start, length)
        engine.write()
        engine.upload(frame, private).wait()
        transport.skip(1)
        untold = place._replace(tag=b"")
        engine.open(key, private, arriving.into, (untold,)).wait()


def test_checked_before_it_is_copied_it_would_be_another(monkeypatch):
    monkeypatch.setattr(OnHost, "_copied_first", checked_before_it_is_copied)
    assert raced() == (False, True)
