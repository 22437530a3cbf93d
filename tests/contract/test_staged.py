"""Units opened in memory that is not the host's: what has come, by one call, or nothing."""

from __future__ import annotations

import os
import threading
import time

import pytest

from sealift.channel.device.host import HostDevice
from sealift.channel.link.openers import LinkOpener
from sealift.channel.link.receive import MAX_BATCH_RECORDS, Staged, spans
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import SLOT_HEAD_BYTES
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError
from tests.sim.apart import Apart
from tests.sim.cuda_engines import gcc_engine
from tests.sim.device_engines import ENGINES, ON_A_GPU
from tests.sim.homestream import HomeStream, skipping
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

RECORDS, SLOTS = 16, 32
PLAINTEXT = os.urandom(RECORDS * RECORD_BYTES - 100)
STAGED = {
    "apart": Apart,
    "cuda-pinned": ENGINES["cuda-pinned"],
    "cuda-confidential": ENGINES["cuda-confidential"],
    "cuda-gcc": gcc_engine,
    **ON_A_GPU,
}
MARKS = {"cuda-gcc": pytest.mark.gcc, "cuda": pytest.mark.gpu}
PARAMS = [pytest.param(name, marks=MARKS.get(name, ())) for name in STAGED]


@pytest.fixture(params=PARAMS)
def engine(request):
    return STAGED[request.param]()


class Counted:
    """Transfers of an engine: where the records of each go, and its parts."""

    def __init__(self, engine):
        self.opened, self.parts = [], []
        self._transfer = engine.transfer
        engine.transfer = self.transfer

    def transfer(self, parts, sealed, plain, groups, **more):
        places = [place for _, group in groups for place in group]
        self.opened.append([place.plain_offset for place in places])
        self.parts.append(len(parts))
        return self._transfer(parts, sealed, plain, groups, **more)


def flip(number, position=100):
    """Spoils one bit of one frame; the announcement is frame 0."""

    def attacker(count, frame):
        spoiled = bytearray(frame)
        if count == number:
            spoiled[position] ^= 1
        return [bytes(spoiled)]

    return attacker


def world_of(engine, attacker=None, **options):
    options = {"num_slots": SLOTS, **options}
    return LinkWorld(engine=engine, attacker=attacker, **options)


def receive_after_all_came(world, send=None):
    """Receive once the announcement and all records lie in the ring."""
    wait_for_all(world)
    return world.cross(send or (lambda: world.sender.send(PLAINTEXT)))


def wait_for_all(world):
    receive = world.receiver.receive

    def later(*args, **more):
        world.receiver._transport.ranges(RECORDS + 1, 10)
        return receive(*args, **more)

    world.receiver.receive = later


def test_all_that_came_is_one_transfer_of_one_part(engine):
    counted = Counted(engine)
    world = world_of(engine)
    assert receive_after_all_came(world).total_bytes == len(PLAINTEXT)
    assert world.content()[: len(PLAINTEXT)] == PLAINTEXT
    assert [len(places) for places in counted.opened] == [RECORDS]
    assert counted.parts == [1]
    assert world.seen == [
        (start, min(RECORD_BYTES, len(PLAINTEXT) - start))
        for start in range(0, len(PLAINTEXT), RECORD_BYTES)
    ]
    world.close()


def test_calls_take_half_a_ring_at_most_and_wrap_at_its_end(engine):
    counted = Counted(engine)
    world = world_of(engine, num_slots=6)
    for _ in range(3):
        assert world.cross(lambda: world.sender.send(PLAINTEXT)).total_bytes
        assert world.content()[: len(PLAINTEXT)] == PLAINTEXT
    assert max(map(len, counted.opened)) <= 3
    assert sum(map(len, counted.opened)) == 3 * RECORDS
    in_order = [start for places in counted.opened for start in places]
    assert in_order == [n * RECORD_BYTES for n in range(RECORDS)] * 3
    assert [start for start, _ in world.seen] == in_order
    world.close()


@pytest.mark.parametrize(("flipped", "position"), [(1, 3), (7, 100), (RECORDS, -1)])
def test_a_flipped_bit_releases_nothing_of_the_batch(engine, flipped, position):
    world = world_of(engine, flip(flipped, position))
    found = receive_after_all_came(world)
    assert isinstance(found, AuthenticationError)
    assert world.seen == []
    assert not any(world.content())
    world.close()


@pytest.mark.parametrize("flipped", [4, 11])
def test_batches_before_the_flip_are_told_in_order_and_overwritten_too(engine, flipped):
    world = world_of(engine, flip(flipped), num_slots=4)
    found = world.cross(lambda: world.sender.send(PLAINTEXT))
    assert isinstance(found, AuthenticationError)
    told = [start for start, _ in world.seen]
    assert told == [number * RECORD_BYTES for number in range(len(told))]
    assert len(told) < flipped
    assert not any(world.content())
    world.close()


def test_records_sealed_at_home_cross_in_batches(engine):
    key, counted = SecretKey.generate(), Counted(engine)
    sealer = StreamSealer(key, total_bytes=len(PLAINTEXT), record_bytes=RECORD_BYTES)
    starts = range(0, len(PLAINTEXT), RECORD_BYTES)
    records = [sealer.seal(PLAINTEXT[at : at + RECORD_BYTES]) for at in starts]
    world = world_of(engine, home_key=lambda header: key)

    def send():
        world.sender.forward(sealer.header_bytes, records, len(PLAINTEXT))

    assert receive_after_all_came(world, send).total_bytes
    assert world.content()[: len(PLAINTEXT)] == PLAINTEXT
    assert [len(places) for places in counted.opened] == [RECORDS]
    world.close()


def forwarded_twice(engine):
    """The second time one record is that of the first; the stream, and what was found."""
    stream, frames = HomeStream(), []
    world = world_of(engine, home_key=stream.home_key)

    def attacker(count, frame):
        frames.append(frame)
        return [frame if count != 7 else frame[:16] + frames[2][16:]]

    world.sender.transport.attacker = attacker
    assert stream.forward(world).total_bytes == len(stream.plaintext)
    world.memory.scrub()
    found = stream.forward(world)
    content = world.content()
    world.close()
    return stream, found, content


def test_a_record_that_was_forwarded_before_is_refused_unopened(engine):
    counted = Counted(engine)
    stream, found, content = forwarded_twice(engine)
    assert isinstance(found, AuthenticationError)
    assert not any(content)
    assert sum(map(len, counted.opened)) <= len(stream.records) + 1


def test_a_device_that_skips_the_check_would_take_it(engine, monkeypatch):
    monkeypatch.setattr(LinkOpener, "verify_bound", skipping)
    stream, found, content = forwarded_twice(engine)
    assert found.total_bytes == len(stream.plaintext)
    assert content[: len(stream.plaintext)] == stream.plaintext


def while_it_is_copied(engine, monkeypatch, *, tells_the_tag=True):
    """Whoever can write the ring puts other genuine records there as they are copied."""
    stream = HomeStream(RECORDS)
    twin, transfer = stream.twin(), engine.transfer
    world = world_of(engine, home_key=stream.home_key)
    place = world.sender.transport._outgoing.place
    wait_for_all(world)

    def racing(parts, sealed, plain, groups):
        # The hello and the announcement lie before them.
        for number, record in enumerate(twin.records, 2):
            at = place.start + number * place.stride + SLOT_HEAD_BYTES + 16
            world.sender.transport.memory[at : at + len(record)] = record
        if not tells_the_tag:
            groups = [
                (key, [each._replace(tag=b"") for each in places])
                for key, places in groups
            ]
        return transfer(parts, sealed, plain, groups)

    monkeypatch.setattr(engine, "transfer", racing)
    found = stream.forward(world)
    content = world.content()[: len(stream.plaintext)]
    world.close()
    return found, content == twin.plaintext


def test_the_tag_that_was_checked_is_the_one_that_the_device_verifies(
    engine, monkeypatch
):
    found, taken = while_it_is_copied(engine, monkeypatch)
    assert isinstance(found, AuthenticationError)
    assert not taken


def test_the_tag_in_the_slot_would_let_another_record_in(engine, monkeypatch):
    # The mutant: the device verifies what was copied from the slot.
    found, taken = while_it_is_copied(engine, monkeypatch, tells_the_tag=False)
    assert found.total_bytes
    assert taken


def hasty(self, arriving):
    """Mutant: tells records before their verdicts."""
    batch = self._queued.popleft()
    for start, length in batch.units:
        arriving.verified(start, length)
    batch.crossing.wait()


def test_a_device_that_tells_before_the_verdict_is_noticed(monkeypatch):
    monkeypatch.setattr(Staged, "_settle", hasty)
    attacker = flip(7)
    world = world_of(Apart(), attacker)
    assert isinstance(receive_after_all_came(world), AuthenticationError)
    assert world.seen  # what the tests above would find
    world.close()


class Slow(HostDevice):
    """Its second batch is written when the first failed and memory was overwritten."""

    overwritten = calls = 0

    def allocate(self, nbytes):
        memory = super().allocate(nbytes)
        scrub = memory.scrub

        def scrubbing():
            scrub()
            self.overwritten += 1

        memory.scrub = scrubbing
        return memory

    def transfer(self, parts, sealed, plain, groups):
        self.calls += 1
        if self.calls == 1:
            return super().transfer(parts, sealed, plain, groups)
        super().transfer(parts, sealed, plain, groups).wait()
        return Late(self, plain.view)


class Late:
    def __init__(self, engine, view):
        self._view, self._engine, self._opened = view, engine, bytes(view)
        view[:] = bytes(len(view))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        until = time.monotonic() + 0.3
        while not self._engine.overwritten and time.monotonic() < until:
            time.sleep(0.001)
        self._view[:] = self._opened

    def wait_copied(self):
        """It was copied."""

    def wait(self):
        self._thread.join()


def left_after_two_batches():
    engine = Slow(threads=2)
    attacker = flip(2)
    world = world_of(Apart(engine), attacker, num_slots=SLOTS // 2 + 2)
    found = receive_after_all_came(world)
    time.sleep(0.05)
    content = world.content()
    world.close()
    assert isinstance(found, AuthenticationError)
    assert engine.calls == 2
    return any(content)


def test_a_batch_under_way_ends_before_memory_is_overwritten():
    assert not left_after_two_batches()


def test_without_waiting_its_plaintext_would_be_left(monkeypatch):
    monkeypatch.setattr(Staged, "_drain", lambda self: self._queued.clear())
    assert left_after_two_batches()


def test_a_copy_ends_at_the_rings_end_and_at_large_gaps():
    assert spans([(100, 50), (160, 50), (220, 9)]) == [(0, 100, 229)]
    assert spans([(9000, 50), (100, 50)]) == [(0, 9000, 9050), (1, 100, 150)]
    assert len(spans([(0, 50), (70_000, 50)])) == 2
    assert MAX_BATCH_RECORDS >= RECORDS
