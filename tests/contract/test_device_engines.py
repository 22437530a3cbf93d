"""Every device engine gives the oracle's bytes, and leaves nothing on a bad tag."""

from __future__ import annotations

import os

import pytest

from sealift.channel.device.device import RecordPlace
from sealift.channel.device.host import HostDevice
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UnavailableError, UsageError
from tests.sim.device_engines import ENGINES, ON_A_GPU

LENGTHS = (0, 1, 15, 16, 17, 511, 4096, 70_001)
TAG = 16


ALL = ENGINES | ON_A_GPU
GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ON_A_GPU]


@pytest.fixture(params=[*ENGINES, *GPU])
def engine(request):
    made = ALL[request.param]()
    yield made
    made.close()


@pytest.fixture(params=list(Suite), ids=lambda suite: suite.name)
def suite(request, engine):
    if request.param not in engine.suites():
        pytest.skip(f"engine {engine.name} lacks {request.param.name}")
    return request.param


class Batch:
    """Records of many lengths, sealed by the oracle, with gaps between them."""

    def __init__(self, suite, lengths=LENGTHS):
        self.key = SecretKey.generate()
        self.plaintexts = [os.urandom(length) for length in lengths]
        self.places, sealed_at, plain_at = [], 32, 64
        for number, length in enumerate(lengths):
            nonce, data = number.to_bytes(12, "big"), bytes([number]) * (73 + number)
            place = RecordPlace(nonce, data, sealed_at, plain_at, length)
            self.places.append(place)
            sealed_at += -(-(length + TAG) // 32) * 32 + 32
            plain_at += -(-length // 32) * 32 + 32
        self.sealed, self.plain_bytes = bytearray(sealed_at), plain_at
        self.plain = bytearray(plain_at)
        cipher = Aead(suite, self.key)
        for place, plaintext in zip(self.places, self.plaintexts, strict=True):
            end = place.sealed_offset + place.plaintext_bytes + TAG
            room = memoryview(self.sealed)[place.sealed_offset : end]
            cipher.seal_into(place.nonce, plaintext, place.associated_data, room)
            start = place.plain_offset
            self.plain[start : start + len(plaintext)] = plaintext


def on_device(engine, content):
    memory = engine.allocate(len(content))
    engine.upload(bytes(content), memory).wait()
    return memory


def read(engine, memory):
    out = bytearray(memory.nbytes)
    engine.download(memory, 0, out).wait()
    return out


def open_batch(engine, suite, batch, sealed=None):
    plain = engine.allocate(batch.plain_bytes)
    uploaded = on_device(engine, batch.sealed if sealed is None else sealed)
    key = engine.key(suite, batch.key)
    verdicts = engine.open(key, uploaded, plain, batch.places)
    return plain, verdicts


def test_what_the_oracle_sealed_opens_to_the_same_bytes(engine, suite):
    batch = Batch(suite)
    plain, verdicts = open_batch(engine, suite, batch)
    verdicts.wait()
    verdicts.wait()  # the answer stays
    assert read(engine, plain) == batch.plain


def test_what_the_engine_seals_are_the_oracles_bytes(engine, suite):
    batch = Batch(suite)
    sealed = engine.allocate(len(batch.sealed))
    key, plain = engine.key(suite, batch.key), on_device(engine, batch.plain)
    engine.seal(key, plain, sealed, batch.places).wait()
    assert read(engine, sealed) == batch.sealed


@pytest.mark.parametrize("part", ["ciphertext", "tag", "nonce", "associated data"])
@pytest.mark.parametrize("record", [1, 6])
def test_one_bad_record_leaves_no_plaintext_of_the_whole_call(
    engine, suite, part, record
):
    batch = Batch(suite)
    place, spoiled = batch.places[record], bytearray(batch.sealed)
    if part == "ciphertext":
        spoiled[place.sealed_offset] ^= 1
    elif part == "tag":
        spoiled[place.sealed_offset + place.plaintext_bytes + TAG - 1] ^= 0x80
    elif part == "nonce":
        batch.places[record] = place._replace(nonce=b"\xff" * 12)
    else:
        batch.places[record] = place._replace(associated_data=b"another")
    plain, verdicts = open_batch(engine, suite, batch, spoiled)
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            verdicts.wait()
    assert read(engine, plain) == bytes(batch.plain_bytes)


def test_a_truncated_record_does_not_verify(engine, suite):
    batch = Batch(suite, (4096,))
    batch.places[0] = batch.places[0]._replace(plaintext_bytes=4095)
    _, verdicts = open_batch(engine, suite, batch)
    with pytest.raises(AuthenticationError):
        verdicts.wait()


@pytest.mark.parametrize(
    "change",
    [
        {"sealed_offset": 1 << 20},
        {"plain_offset": 1 << 20},
        {"sealed_offset": -1},
        {"plain_offset": -1},
        {"plaintext_bytes": -1},
        {"plaintext_bytes": 1 << 20},
        {"nonce": bytes(11)},
        {"associated_data": bytes(257)},
    ],
)
def test_a_place_outside_of_the_memory_is_refused_before_anything_runs(engine, change):
    batch = Batch(Suite.AES_256_GCM, (64, 64))
    batch.places[1] = batch.places[1]._replace(**change)
    with pytest.raises(UsageError) as caught:
        open_batch(engine, engine.suites()[0], batch)
    assert caught.value.code == "bad-record-place"


def test_records_that_overlap_are_refused(engine):
    batch = Batch(Suite.AES_256_GCM, (64, 64))
    for field in ("plain_offset", "sealed_offset"):
        spoiled = Batch(Suite.AES_256_GCM, (64, 64))
        value = getattr(batch.places[0], field) + 63
        spoiled.places[1] = spoiled.places[1]._replace(**{field: value})
        with pytest.raises(UsageError, match="overlap"):
            open_batch(engine, engine.suites()[0], spoiled)


def test_memory_is_zero_at_first_and_after_a_scrub(engine):
    memory = engine.allocate(5000)
    assert read(engine, memory) == bytes(5000)
    engine.upload(os.urandom(5000), memory).wait()
    memory.scrub()
    assert read(engine, memory) == bytes(5000)
    memory.close()
    memory.close()


def test_memory_that_was_given_back_is_refused(engine):
    batch = Batch(Suite.AES_256_GCM, (64, 64))
    memory, other = engine.allocate(4096), on_device(engine, batch.sealed)
    key = engine.key(engine.suites()[0], batch.key)
    memory.close()
    for attempt in (
        lambda: engine.upload(bytes(1), memory),
        lambda: engine.download(memory, 0, bytearray(1)),
        lambda: engine.open(key, other, memory, batch.places),
        lambda: engine.open(key, memory, other, batch.places[:1]),
        lambda: engine.seal(key, other, memory, batch.places),
    ):
        with pytest.raises(UsageError) as caught:
            attempt()
        assert caught.value.code == "dead-memory"


def test_a_range_that_is_not_in_the_memory_is_not_copied(engine):
    memory = engine.allocate(100)
    with pytest.raises(UsageError):
        engine.upload(bytes(51), memory, 50)
    with pytest.raises(UsageError):
        engine.download(memory, 50, bytearray(51))


def test_a_key_that_was_closed_opens_nothing(engine, suite):
    batch = Batch(suite, (64,))
    key = engine.key(suite, batch.key)
    key.close()
    key.close()
    plain, sealed = engine.allocate(4096), on_device(engine, batch.sealed)
    with pytest.raises(UsageError) as caught:
        engine.open(key, sealed, plain, batch.places)
    assert caught.value.code == "dead-key"


def test_a_seal_waits_for_the_copy_it_reads(engine, suite):
    batch = Batch(suite, (70_001,))
    plain, sealed = engine.allocate(len(batch.plain)), engine.allocate(1 << 17)
    copied = engine.upload(bytes(batch.plain), plain)
    key = engine.key(suite, batch.key)
    done = engine.seal(key, plain, sealed, batch.places, after=[copied])
    out = bytearray(len(batch.sealed))
    engine.download(sealed, 0, out, after=[done]).wait()
    assert out == batch.sealed


def test_a_device_without_room_says_so():
    device = HostDevice(threads=1, memory_bytes=1000)
    memory = device.allocate(600)
    with pytest.raises(UnavailableError) as caught:
        device.allocate(401)
    assert caught.value.code == "device-out-of-memory"
    memory.close()
    device.allocate(1000)
    device.close()
    with pytest.raises(UnavailableError) as caught:
        open_batch(HostDevice(threads=1, memory_bytes=0), Suite(1), Batch(Suite(1)))
    assert caught.value.exit_code == 3


class Forgetful(HostDevice):
    """The mutant: it leaves what it opened before a tag failed."""

    def _run(self, step, places, after, undo=None):
        return super()._run(step, places, after)


def test_the_suite_catches_an_engine_that_scrubs_only_the_bad_record():
    engine, batch = Forgetful(threads=1), Batch(Suite.AES_256_GCM)
    spoiled = bytearray(batch.sealed)
    spoiled[batch.places[6].sealed_offset] ^= 1
    plain, verdicts = open_batch(engine, Suite.AES_256_GCM, batch, spoiled)
    with pytest.raises(AuthenticationError):
        verdicts.wait()
    assert read(engine, plain) != bytes(batch.plain_bytes)
    engine.close()
