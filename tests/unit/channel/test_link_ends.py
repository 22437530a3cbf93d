"""How a link begins, ends and is shared by threads."""

from __future__ import annotations

import os
import threading

import pytest

from sealift.channel.device.host import HostDevice
from sealift.channel.link import openers
from sealift.channel.link.announcement import (
    LinkKeys,
    LinkMode,
    TransferAnnouncement,
    TransferKind,
)
from sealift.channel.link.openers import HomeOpener, LinkOpener
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.link.send import AheadFeeder, LinkSender, SealAhead
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from tests.sim.apart import Apart
from tests.sim.homestream import HomeStream
from tests.sim.linkworld import RECORD_BYTES, LinkWorld
from tests.sim.memfdpair import memfd_pair

AHEAD = LinkMode.SEAL_AHEAD
WAIT_S = 300.0


def at_once(*calls):
    """Run every call in a thread of its own, begun together; what each raised."""
    start, found = threading.Barrier(len(calls)), [None] * len(calls)

    def run(number, call):
        start.wait()
        try:
            call()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    return found


def senders(world, kind):
    plaintext = os.urandom(2 * RECORD_BYTES)
    if kind == "forward":
        key = SecretKey.generate()
        sealer = StreamSealer(
            key, total_bytes=len(plaintext), record_bytes=RECORD_BYTES
        )
        records = [
            sealer.seal(plaintext[at : at + RECORD_BYTES]) for at in (0, RECORD_BYTES)
        ]
        found = world.receiver._home_key or {}.__getitem__
        world.receiver._home_key = lambda header: (
            key if header == sealer.header_bytes else found(header)
        )
        return lambda: world.sender.forward(
            sealer.header_bytes, records, len(plaintext)
        )
    return lambda: world.sender.send(plaintext)


@pytest.mark.parametrize("kind", ["send", "forward"])
def test_threads_that_send_over_one_link_take_turns(kind):
    world, count = LinkWorld(), 3
    # All of them have planned before the first one sends.
    world.sender.life.__enter__()
    receiving = threading.Thread(
        target=lambda: [world.receiver.receive(world.memory) for _ in range(count)]
    )
    receiving.start()
    calls = [senders(world, kind) for _ in range(count)]
    released = threading.Timer(0.1, lambda: world.sender.life.__exit__(None))
    released.start()
    assert at_once(*calls) == [None] * count
    receiving.join()
    assert world.sender.num_sent == count
    world.close()


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError, SystemExit])
def test_whatever_a_source_raises_is_told_in_its_turn(kind):
    def source():
        yield b"x"
        raise kind("why")

    world = LinkWorld(AHEAD)
    feeder = AheadFeeder(SealAhead(world.sender), source())
    world.cross(feeder.send_next)
    found = []

    def asking():
        try:
            feeder.send_next()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=asking, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert [type(error) for error in found] == [kind]
    feeder.close()
    world.close()


def test_a_feeder_that_was_closed_sends_nothing_and_keeps_nobody_waiting():
    world = LinkWorld(AHEAD)
    feeder = AheadFeeder(SealAhead(world.sender), iter(lambda: b"x", None))
    feeder.close()
    for _ in range(4):  # more than were sealed ahead
        (found,) = at_once(feeder.send_next)
        assert isinstance(found, UsageError)
    world.close()


def test_memory_of_batches_of_many_lengths_does_not_pile_up():
    world = LinkWorld(AHEAD)
    ahead = SealAhead(world.sender)
    for nbytes in range(1, 12):
        batch = ahead.seal(bytes(nbytes))
        world.cross(lambda batch=batch: ahead.send(batch))
    assert len(ahead._rooms) <= 2
    world.close()


class Broken(HostDevice):
    """Its memory cannot be overwritten any more."""

    def allocate(self, nbytes):
        memory = super().allocate(nbytes)

        def scrub():
            raise UnavailableError("the device stopped working", code="device-lost")

        memory.scrub = scrub
        return memory


@pytest.mark.parametrize("engine", [Broken, HostDevice])
def test_a_device_that_cannot_overwrite_says_so_and_ends_the_link(engine):
    def attacker(count, frame):
        return [frame[:-1] + bytes([frame[-1] ^ 1])] if count == 1 else [frame]

    world = LinkWorld(engine=engine(), attacker=attacker)
    found = world.cross(lambda: world.sender.send(bytes(100)))
    if engine is Broken:
        assert found.code == "device-lost"
        assert isinstance(found.__context__, AuthenticationError)
    else:
        assert isinstance(found, AuthenticationError)
    assert isinstance(world.sender_error, PeerError)
    assert world.sender_error.code == "peer-closed"
    with pytest.raises(UsageError, match="wiped"):
        world.receiver._opener._keys.trailer_key()


def test_a_closed_link_has_forgotten_every_key():
    world = LinkWorld()
    world.cross(lambda: world.sender.send(b"x"))
    world.close()
    for keys in (
        world.sender.sealer._keys,
        world.sender._verdicts._records.keys,
        world.receiver._opener._keys,
        world.receiver._answers._keys,
    ):
        with pytest.raises(UsageError, match="wiped"):
            keys.trailer_key()


def test_a_receiver_that_cannot_be_made_has_forgotten_its_keys(monkeypatch):
    made = []
    real = LinkOpener.__init__

    def noting(self, *given, **named):
        real(self, *given, **named)
        made.append(self)

    monkeypatch.setattr(LinkOpener, "__init__", noting)
    here, there = memfd_pair()
    keys = LinkKeys(SecretKey.generate(), SecretKey.generate())
    LinkSender(here, keys)
    device = Apart()
    device.allocate = HostDevice(memory_bytes=1).allocate  # no room for staging
    with pytest.raises(UnavailableError):
        LinkReceiver(there, keys, device)
    with pytest.raises(UsageError, match="wiped"):
        made[0]._keys.trailer_key()
    assert here.receive(1)  # its hello
    with pytest.raises(PeerError):
        here.receive(1)
    here.close()


def test_an_announcement_that_fits_no_stream_leaves_no_key_of_the_owner(monkeypatch):
    stream, made = HomeStream(), []
    monkeypatch.setattr(openers, "RecordKeys", lambda *given: made.append(given))
    announced = TransferAnnouncement(
        TransferKind.HOME, 0, 1 << 20, RECORD_BYTES, 0, stream.header
    )
    with pytest.raises(MalformedError):
        HomeOpener(stream.key, announced, HostDevice(threads=1), None)
    assert made == []


def test_a_sender_whose_peer_is_gone_has_forgotten_its_keys(monkeypatch):
    from sealift.channel.link import send as linksend

    made = []
    real = linksend.FrameSealer

    def noting(*given, **named):
        made.append(real(*given, **named))
        return made[-1]

    monkeypatch.setattr(linksend, "FrameSealer", noting)
    here, there = memfd_pair(slot_bytes=64)  # too small for a header
    with pytest.raises(SealiftError):
        LinkSender(here, LinkKeys(SecretKey.generate(), SecretKey.generate()))
    with pytest.raises(UsageError, match="wiped"):
        made[0]._keys.trailer_key()
    there.close()


def test_parts_of_a_stream_sealed_at_home_may_be_forwarded():
    key, plaintext = SecretKey.generate(), os.urandom(3 * RECORD_BYTES + 5)
    sealer = StreamSealer(key, total_bytes=len(plaintext), record_bytes=RECORD_BYTES)
    starts = range(0, len(plaintext), RECORD_BYTES)
    records = [sealer.seal(plaintext[at : at + RECORD_BYTES]) for at in starts]
    header = sealer.header_bytes
    for first, last, genuine in ((2, 4, True), (0, 2, True), (1, 3, False)):
        world = LinkWorld(home_key=lambda header: key)
        part = plaintext[first * RECORD_BYTES : last * RECORD_BYTES]
        told = first if genuine else 0  # the control: parts of another place
        found = world.cross(
            lambda world=world, first=first, last=last, part=part, told=told: (
                world.sender.forward(
                    header, records[first:last], len(part), first_index=told
                )
            )
        )
        if genuine:
            assert world.content()[: len(part)] == part
        else:
            assert isinstance(found, AuthenticationError)
        world.close()
