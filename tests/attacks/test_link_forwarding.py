"""Records that their owner sealed at home, forwarded by somebody else (rules C6, H3)."""

from __future__ import annotations

import os

from sealift.channel.hostdevice import HostDevice
from sealift.channel.link import receive as linkreceive
from sealift.channel.link.opening import InPlace
from sealift.channel.sealer import StreamSealer
from sealift.channel.transports.ring import SLOT_HEAD_BYTES
from sealift.crypto.keys import SecretKey
from tests.sim.linkworld import RECORD_BYTES, LinkWorld
from tests.sim.twicereading import TwiceReadingBackend

PLAINTEXT = os.urandom(3 * RECORD_BYTES)


class Forwarder:
    """Whoever forwards a record changes it after its tag was verified."""

    def __init__(self):
        self.key = SecretKey.generate()
        engine = HostDevice(threads=1, backend=TwiceReadingBackend(self.write))
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


def test_opened_where_it_lies_it_would_be_another(monkeypatch):
    # The mutant: as if the forwarder had sealed it.
    def in_place(transport, engine, own):
        assert isinstance(own, InPlace)
        return own

    monkeypatch.setattr(linkreceive, "forwarded_opening", in_place)
    found, content = Forwarder().forward()
    assert found.total_bytes == RECORD_BYTES
    assert content != PLAINTEXT[:RECORD_BYTES]
