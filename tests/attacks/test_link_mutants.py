"""What the link's tests would miss if they proved nothing: broken links, caught."""

from __future__ import annotations

import os

import pytest

from benchmarks.link.shapes import Shape
from sealift.channel.device.host import HostDevice, HostMemory
from sealift.channel.link.announcement import LinkMode
from sealift.crypto.aead import Aead
from sealift.errors import AuthenticationError
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

PLAINTEXT = os.urandom(3 * RECORD_BYTES)
MODES = [Shape.DIRECT_PARALLEL, LinkMode.DIRECT_OVERLAP]


class Trusting:
    """An engine's cipher that computes the plaintext and does not look at the tag."""

    def __init__(self, suite, key):
        self._aead = Aead(suite, key)

    def seal_into(self, nonce, plaintext, associated_data, out):
        return self._aead.seal_into(nonce, plaintext, associated_data, out)

    def open_into(self, nonce, ciphertext, associated_data, out):
        length = len(ciphertext) - 16
        stream = self._aead.seal(nonce, bytes(length), associated_data)[:length]
        numbers = (int.from_bytes(part) for part in (stream, ciphertext[:length]))
        first, second = numbers
        out[:length] = (first ^ second).to_bytes(length)
        return length


def flip_in_the_second_record(count, frame):
    if count == 2:
        spoiled = bytearray(frame)
        spoiled[100] ^= 1
        return [bytes(spoiled)]
    return [frame]


def found_after_flip(mode, engine):
    world = LinkWorld(mode, engine=engine, attacker=flip_in_the_second_record)
    found = world.cross(lambda: world.sender.send(PLAINTEXT))
    content = world.content()
    world.close()
    return found, content


@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_checks_no_tag_takes_the_flip(mode):
    found, content = found_after_flip(mode, HostDevice(make_cipher=Trusting))
    assert found.total_bytes == len(PLAINTEXT)
    assert content[: len(PLAINTEXT)] not in (PLAINTEXT, bytes(len(PLAINTEXT)))


class Unscrubbed(HostDevice):
    """Leaves what was opened before the failure."""

    def allocate(self, nbytes):
        memory = super().allocate(nbytes)
        kept = HostMemory(memory.view, lambda: None)
        kept.scrub = lambda: None
        return kept

    def _run(self, step, places, after, undo=None):
        return super()._run(step, places, after)


@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_does_not_scrub_leaves_the_first_record(mode):
    found, content = found_after_flip(mode, Unscrubbed())
    assert isinstance(found, AuthenticationError)
    assert content[:RECORD_BYTES] == PLAINTEXT[:RECORD_BYTES]


@pytest.mark.parametrize("mode", MODES)
def test_the_same_flip_on_the_real_device(mode):
    found, content = found_after_flip(mode, HostDevice())
    assert isinstance(found, AuthenticationError)
    assert not any(content)
