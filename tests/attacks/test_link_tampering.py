"""The link under attack: whatever is done to what crosses, nothing wrong is taken.

Flips, drops, repetitions, exchanges, cuts, splices and replays, in every mode of the
product and every sealed shape of the measurement; where nothing is sealed (``plain``) the
same attacks succeed, which is the control.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.link.shapes import (
    ALL,
    REENCRYPTS,
    Reencrypter,
    Shape,
    has_records,
)
from sealift.channel.link.announcement import LinkKeys, LinkMode
from sealift.channel.link.send import SealAhead
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, PeerError
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

SEALED = [mode for mode in ALL if mode != Shape.PLAIN]
WITH_RECORDS = [mode for mode in SEALED if has_records(mode)]
PLAINTEXT = os.urandom(5 * RECORD_BYTES + 100)  # an announcement and six records
NOTHING = bytes(16 * 4096)


def send_in(world, plaintext=PLAINTEXT):
    """What the owner does in the world's mode."""
    sender = world.sender
    if world.mode in REENCRYPTS:
        return Reencrypter(sender, plaintext).send
    if world.mode == LinkMode.SEAL_AHEAD:
        ahead = SealAhead(sender)
        return lambda: ahead.send(ahead.seal(plaintext))
    return lambda: sender.send(plaintext)


def attacked(mode, attacker, **options):
    world = LinkWorld(mode, attacker=attacker, **options)
    found = world.cross(send_in(world))
    content = world.content()
    world.close()
    return found, content


def flip(number, position):
    def attacker(count, frame):
        if count != number:
            return [frame]
        spoiled = bytearray(frame)
        spoiled[position % len(frame)] ^= 1
        return [bytes(spoiled)]

    return attacker


def is_refused(found, content, *, silent=False):
    """Refused without detail; where a record is missing, waiting for it may end first."""
    kinds = (AuthenticationError, PeerError) if silent else AuthenticationError
    return isinstance(found, kinds) and content == NOTHING


@pytest.mark.parametrize("mode", ALL)
def test_untouched_it_arrives(mode):
    # The control for all of the below.
    found, content = attacked(mode, lambda count, frame: [frame])
    assert found.total_bytes == len(PLAINTEXT)
    assert content[: len(PLAINTEXT)] == PLAINTEXT


@pytest.mark.parametrize("position", [0, 5, 15, 16, 40, -1])
@pytest.mark.parametrize("mode", SEALED)
def test_a_flipped_bit_in_the_announcement_or_a_record(mode, position):
    last = 6 if has_records(mode) else 1
    for number in {0, 1, last}:
        assert is_refused(*attacked(mode, flip(number, position))), number


def test_in_plain_mode_the_same_flip_is_taken():
    found, content = attacked(Shape.PLAIN, flip(1, 40))
    assert found.total_bytes == len(PLAINTEXT)
    assert content[: len(PLAINTEXT)] != PLAINTEXT


def drop(count, frame):
    return [] if count == 3 else [frame]


def duplicate(count, frame):
    return [frame, frame] if count == 3 else [frame]


def cut(count, frame):
    return [frame[:-1]] if count == 3 else [frame]


def cut_to_nothing(count, frame):
    return [frame[:7]] if count == 3 else [frame]


def lengthen(count, frame):
    return [frame + b"x"] if count == 3 else [frame]


def swap():
    held = []

    def attacker(count, frame):
        if count == 2:
            held.append(frame)
            return []
        return [frame, held.pop()] if count == 3 else [frame]

    return attacker


def repeat_the_first():
    held = []

    def attacker(count, frame):
        if count == 1:
            held.append(frame)
        return [held[0]] if count == 4 else [frame]

    return attacker


@pytest.mark.parametrize("mode", WITH_RECORDS)
@pytest.mark.parametrize(
    "attack", [drop, duplicate, cut, cut_to_nothing, lengthen, swap, repeat_the_first]
)
def test_records_that_are_not_exactly_the_next(mode, attack):
    attacker = attack() if attack in (swap, repeat_the_first) else attack
    timeout_s = 0.2 if attack is drop else 5
    found = attacked(mode, attacker, timeout_s=timeout_s)
    assert is_refused(*found, silent=attack is drop)


@pytest.mark.parametrize("attack", [swap, repeat_the_first])
def test_in_plain_mode_exchanged_records_are_taken(attack):
    _, content = attacked(Shape.PLAIN, attack())
    assert content[: len(PLAINTEXT)] not in (PLAINTEXT, bytes(len(PLAINTEXT)))


@pytest.mark.parametrize("mode", SEALED)
def test_a_sender_that_vanishes_leaves_nothing(mode):
    world = LinkWorld(mode)

    def attacker(count, frame):
        if count == 1:
            world.sender.transport.close()
            raise OSError("killed")
        return [frame]

    world.sender.transport.attacker = attacker
    found = world.cross(send_in(world))
    assert isinstance(found, PeerError)
    assert found.exit_code == 4
    assert world.content() == NOTHING
    world.close()


def recorded(mode, keys):
    """Every frame of a transfer that went well."""
    frames = []

    def attacker(count, frame):
        frames.append(frame)
        return [frame]

    attacked(mode, attacker, keys=keys)
    return frames


@pytest.mark.parametrize("mode", WITH_RECORDS)
@pytest.mark.parametrize("number", [0, 1, 6])
def test_a_record_of_another_link_under_the_same_keys(mode, number):
    # A restarted link: same base keys, so an old recording is a replay over epochs.
    keys = LinkKeys(SecretKey.generate(), SecretKey.generate())
    old = recorded(mode, keys)

    def attacker(count, frame):
        return [old[count] if count == number else frame]

    assert is_refused(*attacked(mode, attacker, keys=keys))


@pytest.mark.parametrize("mode", SEALED)
def test_a_whole_transfer_replayed_on_the_same_link(mode):
    frames = []
    world = LinkWorld(mode, num_slots=32)
    world.sender.transport.attacker = lambda count, frame: (
        frames.append(frame) or [frame]
    )
    send = send_in(world)
    assert world.cross(send).number == 0
    transport = world.sender.transport
    transport.attacker = None

    def replay():
        for frame in frames:
            transport.send(frame)

    assert isinstance(world.cross(replay), AuthenticationError)
    assert world.content() == NOTHING
    world.close()


@pytest.mark.parametrize("mode", [Shape.DIRECT_PARALLEL, LinkMode.SEAL_AHEAD])
def test_ends_that_disagree_about_the_mode_do_not_meet(mode):
    world = LinkWorld(LinkMode.DIRECT_OVERLAP, receiver_mode=mode)
    assert isinstance(world.cross(send_in(world)), AuthenticationError)
    world.close()


def test_another_key_is_refused_before_any_record():
    first, second = (SecretKey.generate() for _ in range(2))
    back = SecretKey.generate()
    with pytest.raises(AuthenticationError):
        LinkWorld(keys=LinkKeys(first, back), receiver_keys=LinkKeys(second, back))


def test_a_verdict_that_the_device_did_not_give_is_refused():
    world = LinkWorld()
    forged = world.receiver._answers

    class Lying:
        header_bytes = forged.header_bytes

        def seal_frame(self, answer):
            sealed = bytearray(forged.seal_frame(answer))
            sealed[-1] ^= 1
            return bytes(sealed)

        def close(self):
            forged.close()

    world.receiver._answers = Lying()
    world.cross(send_in(world))
    assert isinstance(world.sender_error, AuthenticationError)
    world.close()
