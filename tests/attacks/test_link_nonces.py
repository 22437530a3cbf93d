"""No nonce twice under one key: across discards, forks, restarts and restored state."""

from __future__ import annotations

import copy
import os
import threading

import pytest

from sealift.channel.link.announcement import LinkKeys, LinkMode
from sealift.channel.link.send import AheadFeeder, LinkSender, SealAhead
from sealift.channel.record.frames import FRAME_EXTRA_BYTES, FrameSealer
from sealift.channel.record.record import StreamOptions
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.aead import Aead
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError, PeerError, UsageError
from tests.sim.forking import in_a_child
from tests.sim.homestream import HomeStream
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

AHEAD = LinkMode.SEAL_AHEAD
BATCHES = [os.urandom(2 * RECORD_BYTES + n) for n in (0, 1, 0, 7)]


class Recording:
    """Notes every key and nonce that something was sealed under."""

    def __init__(self):
        self.used = []

    def cipher(self, suite, key):
        inner, used, name = Aead(suite, key), self.used, key.reveal(TOKEN)

        class Noting:
            def seal_into(self, nonce, plaintext, associated_data, out):
                used.append((name, nonce))
                return inner.seal_into(nonce, plaintext, associated_data, out)

        return Noting()


def seal_some(sealer, count=3):
    for _ in range(count):
        sealer.seal(bytes(64), memoryview(bytearray(64 + FRAME_EXTRA_BYTES)))


def repeats(used):
    return len(used) - len(set(used))


def test_what_is_sealed_again_after_a_discard_has_new_nonces():
    backend = Recording()
    sealer = FrameSealer(SecretKey.generate(), options=StreamOptions(backend.cipher))
    seal_some(sealer)
    sealer.rewind(1)
    seal_some(sealer)
    assert len(backend.used) == 6
    assert repeats(backend.used) == 0


def test_a_sealer_that_rewinds_its_sequence_too_is_caught():
    # The mutant: what rewinding both counters would do.
    backend = Recording()
    sealer = FrameSealer(SecretKey.generate(), options=StreamOptions(backend.cipher))
    seal_some(sealer)
    sealer.rewind(1)
    sealer._sequence = 1
    seal_some(sealer)
    assert repeats(backend.used) == 2


def test_a_restart_never_goes_on_where_it_was():
    # The base key is stored (a checkpoint, a session export); the stream's key is not.
    backend, base = Recording(), SecretKey.generate()
    for _ in range(3):
        seal_some(FrameSealer(base, options=StreamOptions(backend.cipher)))
    assert repeats(backend.used) == 0
    fixed = StreamOptions(backend.cipher, random_bytes=bytes)
    for _ in range(2):  # the control: without fresh randomness it would
        seal_some(FrameSealer(base, options=fixed))
    assert repeats(backend.used) == 3


def nonces_of_live_and_forwarded_transfers():
    backend, stream = Recording(), HomeStream()
    world = LinkWorld(home_key=stream.home_key)
    world.sender.sealer._keys._make_cipher = backend.cipher
    for _ in range(2):
        world.cross(lambda: world.sender.send(bytes(2 * RECORD_BYTES)))
        stream.forward(world, last=3)
    world.close()
    return backend.used


def test_live_and_forwarded_transfers_share_no_nonce():
    used = nonces_of_live_and_forwarded_transfers()
    assert len(used) == 2 * (1 + 2) + 2 * (1 + 3)
    assert repeats(used) == 0


def test_a_crossing_tag_that_spends_no_sequence_is_caught(monkeypatch):
    real = FrameSealer.bind

    def repeating(self, bound, frame):
        sequence = self._sequence
        real(self, bound, frame)
        self._sequence = sequence

    monkeypatch.setattr(FrameSealer, "bind", repeating)
    assert repeats(nonces_of_live_and_forwarded_transfers()) > 0


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy])
def test_a_sealer_cannot_be_copied_or_saved(attempt):
    # Copying and saving ask for the same (``__reduce_ex__``).
    with pytest.raises(UsageError, match="copied or saved"):
        attempt(FrameSealer(SecretKey.generate()))


def test_in_a_forked_child_nothing_is_sealed():
    world = LinkWorld()
    world.cross(lambda: world.sender.send(bytes(100)))
    assert in_a_child(lambda: seal_some(world.sender.sealer, 1))() == b"forked-stream"
    # The parent goes on.
    assert world.cross(lambda: world.sender.send(bytes(100))).number == 1
    world.close()


def sealed_ahead():
    """A link over which one transfer went, and a batch that waits."""
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    assert world.cross(lambda: ahead.send(ahead.seal(BATCHES[1]))).number == 0
    return world, ahead, ahead.seal(BATCHES[0])


def test_a_forked_child_sends_nothing_that_its_parent_sealed_ahead():
    world, ahead, batch = sealed_ahead()
    held = threading.Thread(target=ahead._lock.acquire)  # by a thread the child lacks
    held.start()
    held.join()
    sent = world.sender.transport._outgoing.position
    stream = HomeStream()
    for call in (
        lambda: ahead.send(batch),
        lambda: ahead.seal(BATCHES[1]),
        lambda: world.sender.send(BATCHES[1]),
        lambda: world.sender.forward(stream.header, stream.records, 4 * RECORD_BYTES),
    ):
        assert in_a_child(call)() == b"forked-stream"
    assert in_a_child(ahead.discard)() == b"done"
    ahead._lock = threading.RLock()
    word = world.sender.transport._outgoing
    assert word._words[word._my_word] == sent
    # The parent goes on, with the very batch.
    assert world.cross(lambda: ahead.send(batch)).number == 1
    assert world.content()[: len(BATCHES[0])] == BATCHES[0]
    world.close()


def test_a_child_that_is_not_refused_would_send_it(monkeypatch):
    # The mutant: keys are gone in the child, and what they sealed is not.
    monkeypatch.setattr(LinkSender, "check_process", lambda self: None)
    world, ahead, batch = sealed_ahead()
    told = in_a_child(lambda: ahead.send(batch))
    assert world.receiver.receive(world.memory).number == 1
    assert world.content()[: len(BATCHES[0])] == BATCHES[0]
    assert told() == b"forked-stream"  # afterwards, by the keys for the verdict
    world.close()


def test_a_forked_child_takes_nothing_from_its_parent():
    """Neither a transfer nor the connection, also where a thread held a lock."""
    world = LinkWorld()
    held = world.receiver._transport._receive_lock
    held.acquire()
    receiving = in_a_child(lambda: world.receiver.receive(world.memory))
    assert receiving() == b"forked-stream"
    assert in_a_child(world.receiver.close)() == b"done"
    assert in_a_child(world.sender.close)() == b"done"
    held.release()
    # The parent goes on.
    assert world.cross(lambda: world.sender.send(bytes(100))).number == 0
    world.close()


def test_a_child_that_closes_as_its_parent_does_would_end_the_link(monkeypatch):
    monkeypatch.setattr(MemfdTransport, "forked", False)  # the mutant
    world = LinkWorld()
    assert in_a_child(world.sender.close)() == b"done"
    with pytest.raises(PeerError):
        world.sender.send(bytes(100))
    world.close()


def test_a_forked_child_does_not_wait_for_a_feeder_that_it_lacks():
    world = LinkWorld(AHEAD)
    feeder = AheadFeeder(SealAhead(world.sender), BATCHES)
    world.cross(feeder.send_next)
    assert in_a_child(feeder.send_next)() == b"forked-stream"
    assert in_a_child(feeder.close)() == b"done"
    world.cross(feeder.send_next)
    assert world.content()[: len(BATCHES[1])] == BATCHES[1]
    feeder.close()
    world.close()


def test_batches_sealed_ahead_arrive_in_order():
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    waiting = [ahead.seal(batch) for batch in BATCHES[:2]]
    for sealed, batch in zip(waiting, BATCHES, strict=False):
        assert not world.cross(lambda sealed=sealed: ahead.send(sealed)).number > 1
        assert world.content()[: len(batch)] == batch
    world.close()


def test_a_batch_that_is_not_wanted_is_overwritten_and_the_next_arrives():
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    unwanted = [ahead.seal(batch) for batch in BATCHES[:2]]
    assert ahead.discard() == 2
    assert not any(any(batch.memory) for batch in unwanted)
    wanted = ahead.seal(BATCHES[3])
    assert world.cross(lambda: ahead.send(wanted)).number == 0
    assert world.content()[: len(BATCHES[3])] == BATCHES[3]
    world.close()


def test_a_sealed_batch_leaves_once_and_in_turn():
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    first, second = (ahead.seal(batch) for batch in BATCHES[:2])
    with pytest.raises(UsageError) as caught:
        ahead.seal(BATCHES[2])
    assert caught.value.code == "too-far-ahead"
    world.cross(lambda: ahead.send(first))
    for batch, code in ((first, "batch-spent"),):
        with pytest.raises(UsageError) as caught:
            ahead.send(batch)
        assert caught.value.code == code
    assert second.spent is False
    world.close()


def test_out_of_turn_is_refused():
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    ahead.seal(BATCHES[0])
    second = ahead.seal(BATCHES[1])
    with pytest.raises(UsageError) as caught:
        ahead.send(second)
    assert caught.value.code == "out-of-turn"
    world.close()


def test_what_was_sealed_ahead_and_discarded_does_not_open_when_replayed():
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    ahead.seal(BATCHES[0])
    stolen = [bytes(frame) for frame in ahead._waiting[0].frames]
    ahead.discard()
    world.cross(lambda: ahead.send(ahead.seal(BATCHES[1])))

    def replay():
        for frame in stolen:
            world.sender.transport.send(frame)

    assert isinstance(world.cross(replay), AuthenticationError)
    world.close()


def test_a_thread_seals_ahead_of_what_is_sent():
    world = LinkWorld(AHEAD)
    feeder = AheadFeeder(SealAhead(world.sender), BATCHES)
    for batch in BATCHES:
        world.cross(feeder.send_next)
        assert world.content()[: len(batch)] == batch
    assert feeder.send_next() is False
    feeder.close()
    world.close()


def test_an_error_of_the_source_is_told_in_its_turn():
    def source():
        yield BATCHES[0]
        raise ValueError("unreadable shard")

    world = LinkWorld(AHEAD)
    feeder = AheadFeeder(SealAhead(world.sender), source())
    world.cross(feeder.send_next)
    with pytest.raises(ValueError, match="unreadable"):
        feeder.send_next()
    feeder.close()
    world.close()


def test_other_modes_seal_nothing_ahead():
    world = LinkWorld()
    with pytest.raises(UsageError):
        SealAhead(world.sender)
    assert isinstance(world.sender, LinkSender)
    assert isinstance(world.keys, LinkKeys)
    world.close()
