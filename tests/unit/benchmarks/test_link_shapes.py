"""The weaker ways of a link, which only the measurement knows; what they are worth nothing for.

What is done to them on the way: tests/attacks/test_link_tampering.py.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.link.shapes import REENCRYPTS, Reencrypter, Shape
from sealift.channel.device.host import HostDevice
from tests.sim.apart import Apart
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

pytestmark = pytest.mark.long

SENT = [shape for shape in Shape if shape not in REENCRYPTS]


@pytest.mark.parametrize("engine", [HostDevice, Apart], ids=["in-place", "staged"])
@pytest.mark.parametrize("shape", SENT)
@pytest.mark.parametrize("nbytes", [1, RECORD_BYTES, RECORD_BYTES + 1, 13 * 4096 + 7])
def test_transfers_of_any_length_arrive_whole(engine, shape, nbytes):
    world = LinkWorld(shape, engine=engine())
    for number in range(3):
        plaintext = os.urandom(nbytes)
        found = world.cross(lambda sent=plaintext: world.sender.send(sent))
        assert (found.number, found.total_bytes) == (number, nbytes)
        assert world.content()[:nbytes] == plaintext
    assert sum(length for _, length in world.seen) == 3 * nbytes
    world.close()


@pytest.mark.parametrize("chunk", [True, False])
def test_the_vendors_shape_arrives_too(chunk):
    mode = Shape.REENCRYPT_CHUNK if chunk else Shape.REENCRYPT
    world, plaintext = LinkWorld(mode), os.urandom(3 * RECORD_BYTES)
    unit = RECORD_BYTES if chunk else len(plaintext)
    host = Reencrypter(world.sender, plaintext)
    assert world.cross(host.send).total_bytes == len(plaintext)
    assert world.content()[: len(plaintext)] == plaintext
    # The weakness: the host has seen it.
    assert bytes(host.clear[:32]) == plaintext[-unit:][:32]
    host.close()
    assert not any(host.clear)
    world.close()
