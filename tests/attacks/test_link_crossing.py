"""Forwarded records are fresh for one crossing: no replay, no splice (rule C6, K16 to K19).

Each attack is tried on a device that skips the check of the crossing, too: it takes what
was replayed, or opens what was refused unopened.
"""

from __future__ import annotations

import struct

import pytest

from sealift.channel.device.host import HostDevice
from sealift.channel.link import receive as opening
from sealift.channel.link.announcement import LinkKeys
from sealift.channel.link.openers import FrameEnds, LinkOpener
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError
from tests.sim.apart import Apart
from tests.sim.homestream import HomeStream, skipping
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

ENGINES = {"copied": HostDevice, "staged": Apart}
FRAME_BYTES = 16 + RECORD_BYTES + 16 + 16


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]()


@pytest.fixture(params=[False, True], ids=["checks", "skips-the-check"])
def skips(request, monkeypatch):
    """Whether the device is the mutant."""
    if request.param:
        monkeypatch.setattr(LinkOpener, "verify_bound", skipping)
    return request.param


def judge(world, found, content, *, taken):
    """Refused, with nothing left; or, by the mutant, taken as if nothing were wrong."""
    if taken:
        assert found.total_bytes == len(content)
        assert world.content()[: len(content)] == content
    else:
        assert isinstance(found, AuthenticationError)
        assert not any(world.content())
    world.close()


def recorded(world, stream):
    """The frames of one forwarded transfer: announcement, records."""
    frames = []

    def attacker(count, frame):
        frames.append(frame)
        return [frame]

    world.sender.transport.attacker = attacker
    assert stream.forward(world).total_bytes == len(stream.plaintext)
    world.sender.transport.attacker = None
    world.sender.transport.count = 0
    return frames


def putting(old, number, *, renumbered):
    """Frame ``number`` of an earlier crossing in the place of this one's."""

    def attacker(count, frame):
        if count != number:
            return [frame]
        prefix = frame[:16] if renumbered else old[number][:16]
        return [prefix + old[number][16:]]

    return attacker


def test_untouched_they_arrive_again_and_again(engine, skips):
    # The control of all that follows, and of the mutant.
    stream = HomeStream()
    world = LinkWorld(engine=engine, home_key=stream.home_key)
    for _ in range(3):
        assert stream.forward(world).total_bytes == len(stream.plaintext)
        assert world.content()[: len(stream.plaintext)] == stream.plaintext
    world.close()


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("number", [1, 4])
def test_a_record_of_an_earlier_transfer(engine, skips, number, renumbered):
    stream = HomeStream()
    world = LinkWorld(engine=engine, home_key=stream.home_key)
    old = recorded(world, stream)
    world.memory.scrub()
    attacker = putting(old, number, renumbered=renumbered)
    world.sender.transport.attacker = attacker
    judge(world, stream.forward(world), stream.plaintext, taken=skips)


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("same_keys", [False, True])
def test_a_record_of_another_link(engine, skips, same_keys, renumbered):
    # Of the same home stream, at the same place; a restarted link has the same base keys.
    stream = HomeStream()
    keys = LinkKeys(SecretKey.generate(), SecretKey.generate())
    other = LinkWorld(keys=keys if same_keys else None, home_key=stream.home_key)
    old = recorded(other, stream)
    other.close()
    attacker = putting(old, 2, renumbered=renumbered)
    world = LinkWorld(
        engine=engine, keys=keys, home_key=stream.home_key, attacker=attacker
    )
    judge(world, stream.forward(world), stream.plaintext, taken=skips)


@pytest.mark.parametrize("number", [0, 1])
def test_a_part_announced_elsewhere(engine, skips, number):
    # Another part of the same stream: the announcement's place is in every tag's.
    stream = HomeStream()
    world = LinkWorld(engine=engine, home_key=stream.home_key)
    old = recorded(world, stream)
    world.memory.scrub()

    def attacker(count, frame):
        return [frame if count == 0 else frame[:16] + old[2 + count][16:]]

    world.sender.transport.attacker = attacker
    found = stream.forward(world, first=2)
    judge(world, found, stream.plaintext[2 * RECORD_BYTES :], taken=skips)


def test_the_same_place_of_a_stream_sealed_twice_under_one_header(engine, skips):
    # Whoever has the owner's key, and not the link's, puts other content in its place.
    stream = HomeStream()
    twin = stream.twin()

    def attacker(count, frame):
        if count != 2:
            return [frame]
        return [frame[:16] + twin.records[1] + frame[-16:]]

    world = LinkWorld(engine=engine, home_key=stream.home_key, attacker=attacker)
    end = RECORD_BYTES
    mixed = stream.plaintext[:end] + twin.plaintext[end : 2 * end]
    mixed += stream.plaintext[2 * end :]
    judge(world, stream.forward(world), mixed, taken=skips)


@pytest.mark.parametrize("position", [0, 3, 7, 8, 15, -16, -1])
def test_a_flipped_bit_in_the_crossing_tag_or_the_prefix(engine, skips, position):
    stream = HomeStream()

    def attacker(count, frame):
        spoiled = bytearray(frame)
        if count == 2:
            spoiled[position] ^= 1
        return [bytes(spoiled)]

    world = LinkWorld(engine=engine, home_key=stream.home_key, attacker=attacker)
    judge(world, stream.forward(world), stream.plaintext, taken=skips)


def version_1(frame, unit_bytes):
    """The mutant's: frames without a crossing tag are frames."""
    if len(frame) == unit_bytes + 32:
        return FrameEnds(bytes(frame[:16]), bytes(frame[-16:]), b"")
    return FrameEnds(bytes(frame[:16]), bytes(frame[-32:-16]), bytes(frame[-16:]))


def test_a_frame_without_its_crossing_tag(engine, skips, monkeypatch):
    if skips:
        monkeypatch.setattr(opening, "ends_of", version_1)
    stream = HomeStream()

    def attacker(count, frame):
        return [frame[:-16] if count == 2 else frame]

    world = LinkWorld(engine=engine, home_key=stream.home_key, attacker=attacker)
    judge(world, stream.forward(world), stream.plaintext, taken=skips)


@pytest.mark.parametrize("left", [0, 1, 16, 31, 47, FRAME_BYTES - 1, FRAME_BYTES + 1])
def test_a_frame_that_was_cut_or_is_longer(engine, left):
    stream = HomeStream()

    def attacker(count, frame):
        return [(frame + b"x")[:left] if count == 2 else frame]

    world = LinkWorld(engine=engine, home_key=stream.home_key, attacker=attacker)
    judge(world, stream.forward(world), stream.plaintext, taken=False)


class Counting(HostDevice):
    """How many records it was asked to open."""

    num_opened = 0

    def open(self, key, sealed, plain, places, *, after=()):
        self.num_opened += len(places)
        return super().open(key, sealed, plain, places, after=after)


def repeat(frames, stream):
    return [frames[0], frames[1], frames[1], frames[3], frames[4]]


def swap(frames, stream):
    return [frames[0], frames[1], frames[3], frames[2], frames[4]]


def late(frames, stream):
    return [frames[0], frames[1], *frames[3:], frames[2]]


def of_another_header(frames, stream):
    other = stream.again().records[1]
    return [*frames[:2], frames[2][:16] + other + frames[2][-16:], *frames[3:]]


@pytest.mark.parametrize("attack", [repeat, swap, late, of_another_header])
def test_what_is_not_the_next_is_refused_unopened(skips, attack):
    # The owner's tag refuses these as well: the check of the crossing comes before it.
    stream, held = HomeStream(), []
    device = Counting(threads=1)

    def attacker(count, frame):
        held.append(frame)
        return attack(held, stream) if count == 4 else []

    world = LinkWorld(engine=device, home_key=stream.home_key, attacker=attacker)
    judge(world, stream.forward(world), stream.plaintext, taken=False)
    assert device.num_opened == (2 if skips else 1)


def test_a_whole_forwarded_transfer_replayed(engine):
    stream = HomeStream()
    world = LinkWorld(engine=engine, home_key=stream.home_key)
    frames = recorded(world, stream)

    def replay():
        for frame in frames:
            world.sender.transport.send(frame)

    judge(world, world.cross(replay), stream.plaintext, taken=False)


def test_sequences_are_dense_over_live_and_forwarded_transfers(engine):
    stream, sequences = HomeStream(), []
    live = bytes(range(256)) * 32  # two records

    def attacker(count, frame):
        sequences.append(struct.unpack_from(">Q", frame, 8)[0])
        return [frame]

    world = LinkWorld(engine=engine, home_key=stream.home_key, attacker=attacker)
    for _ in range(2):
        assert world.cross(lambda: world.sender.send(live)).total_bytes == len(live)
        assert world.content()[: len(live)] == live
        assert stream.forward(world, last=3).total_bytes == 3 * RECORD_BYTES
        assert world.content()[: len(live)] == stream.plaintext[: len(live)]
    assert sequences == list(range(2 * (1 + 2) + 2 * (1 + 3)))
    world.close()


def test_a_forwarded_record_does_not_pass_for_a_live_one(engine):
    stream = HomeStream()
    live = stream.plaintext[: 2 * RECORD_BYTES]
    world = LinkWorld(engine=engine, home_key=stream.home_key)
    old = recorded(world, stream)
    world.sender.transport.attacker = putting(old, 1, renumbered=True)
    found = world.cross(lambda: world.sender.send(live))
    judge(world, found, live, taken=False)
