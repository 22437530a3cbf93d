"""The link's modes, engines and limits; what is done to it: tests/attacks/test_link_*."""

from __future__ import annotations

import os

import pytest

from sealift.channel.device.host import HostDevice
from sealift.channel.link.announcement import (
    LinkKeys,
    LinkMode,
    TransferAnnouncement,
    TransferKind,
    parse_mode,
)
from sealift.channel.link.send import LinkSender
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    UnavailableError,
    UsageError,
)
from tests.sim.apart import Apart
from tests.sim.cuda_engines import engine_on, model_gpu
from tests.sim.linkworld import RECORD_BYTES, SLOT_BYTES, LinkWorld
from tests.sim.memfdpair import memfd_pair


@pytest.fixture(params=[HostDevice, Apart], ids=["in-place", "staged"])
def engine(request):
    return request.param()


@pytest.mark.parametrize("nbytes", [1, RECORD_BYTES, RECORD_BYTES + 1, 13 * 4096 + 7])
def test_transfers_of_any_length_arrive_whole(engine, nbytes):
    world = LinkWorld(engine=engine)
    for number in range(3):
        plaintext = os.urandom(nbytes)
        found = world.cross(lambda sent=plaintext: world.sender.send(sent))
        assert (found.number, found.total_bytes) == (number, nbytes)
        assert world.content()[:nbytes] == plaintext
    assert sum(length for _, length in world.seen) == 3 * nbytes
    world.close()


def home_stream(key, plaintext, context=b""):
    sealer = StreamSealer(
        key, total_bytes=len(plaintext), record_bytes=RECORD_BYTES, context=context
    )
    records = [
        sealer.seal(plaintext[start : start + RECORD_BYTES])
        for start in range(0, len(plaintext), RECORD_BYTES)
    ]
    return sealer.header_bytes, records


def forward(world, header, records, nbytes):
    return world.cross(lambda: world.sender.forward(header, records, nbytes))


def test_records_sealed_at_home_cross_unopened(engine):
    key, plaintext = SecretKey.generate(), os.urandom(3 * RECORD_BYTES + 5)
    world = LinkWorld(engine=engine, home_key=lambda header: key)
    found = forward(world, *home_stream(key, plaintext), len(plaintext))
    assert found.total_bytes == len(plaintext)
    assert world.content()[: len(plaintext)] == plaintext
    world.close()


@pytest.mark.parametrize("change", ["swap", "splice", "flip", "at-home-context"])
def test_records_of_another_place_or_file_are_refused(change):
    key, plaintext = SecretKey.generate(), os.urandom(3 * RECORD_BYTES)
    header, records = home_stream(key, plaintext)
    other = home_stream(key, plaintext)[1]
    if change == "swap":
        records[0], records[1] = records[1], records[0]
    elif change == "splice":
        records[1] = other[1]
    elif change == "flip":
        records[2] = bytes([records[2][0] ^ 1]) + records[2][1:]
    else:
        header, records = home_stream(key, plaintext, context=b"elsewhere")
    world = LinkWorld(home_key=lambda header: key)
    assert isinstance(
        forward(world, header, records, len(plaintext)), AuthenticationError
    )
    assert not any(world.content())
    world.close()


def test_a_device_without_the_owners_key_says_so():
    key, plaintext = SecretKey.generate(), os.urandom(RECORD_BYTES)
    world = LinkWorld()
    found = forward(world, *home_stream(key, plaintext), len(plaintext))
    assert found.code == "no-home-key"
    world.close()


def test_modes_have_names_that_people_type():
    assert parse_mode("seal-ahead") is LinkMode.SEAL_AHEAD
    for none in ("fast", "plain", "reencrypt", "direct"):
        with pytest.raises(UsageError, match="seal-ahead") as caught:
            parse_mode(none)
        assert caught.value.code == "no-such-mode"


@pytest.mark.parametrize("record_bytes", [0, 100, 4097, 8 << 20])
def test_a_record_size_that_is_not_allowed(record_bytes):
    here, there = memfd_pair()
    keys = LinkKeys(SecretKey.generate(), SecretKey.generate())
    with pytest.raises(MalformedError, match="not a multiple of 32 in"):
        LinkSender(here, keys, record_bytes=record_bytes)
    here.close()
    there.close()


def test_a_transfer_that_does_not_fit_is_refused_by_whoever_sees_it_first():
    world = LinkWorld(nbytes=1000)
    found = world.cross(lambda: world.sender.send(bytes(1001)))
    assert found.code == "transfer-too-long"
    world.close()
    world = LinkWorld()
    with pytest.raises(UsageError) as caught:
        world.sender.send(b"")
    assert caught.value.code == "empty-transfer"
    # A mistake, not an attack: the link goes on.
    assert world.cross(lambda: world.sender.send(bytes(100))).number == 0
    world.close()


def test_a_device_without_room_is_unavailable():
    device = HostDevice(memory_bytes=SLOT_BYTES)
    with pytest.raises(UnavailableError) as caught:
        LinkWorld(engine=device, nbytes=SLOT_BYTES + 1)
    assert caught.value.code == "device-out-of-memory"


def test_a_device_that_lacks_the_suite_says_so():
    device = engine_on(model_gpu())
    device.core.kernels.suites = lambda: (Suite.CHACHA20_POLY1305,)
    world = LinkWorld(engine=device)
    found = world.cross(lambda: world.sender.send(bytes(100)))
    assert (found.code, found.exit_code) == ("no-such-suite", 3)
    world.close()
    device.close()


def test_after_an_error_a_link_is_dead():
    def attacker(count, frame):
        return [frame[:-1] + bytes([frame[-1] ^ 1])] if count == 1 else [frame]

    world = LinkWorld(attacker=attacker)
    world.cross(lambda: world.sender.send(bytes(100)))
    with pytest.raises(UsageError) as caught:
        world.receiver.receive(world.memory)
    assert caught.value.code == "dead-stream"
    with pytest.raises(UsageError):
        world.sender.send(bytes(100))
    world.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: b"X" + raw[1:],
        lambda raw: raw[:4] + b"\x03" + raw[5:],
        lambda raw: raw[:5] + b"\x01" + raw[6:],
        lambda raw: raw + bytes(120),
        lambda raw: raw[:16] + bytes(8) + raw[24:],
        lambda raw: raw[:16] + b"\xff" * 8 + raw[24:],
        lambda raw: raw[:24] + bytes(8) + raw[32:],
        lambda raw: raw[:39] + b"\x01",
    ],
)
def test_an_announcement_is_parsed_strictly(change):
    raw = TransferAnnouncement(TransferKind.LIVE, 7, 1000, 64).encode()
    assert TransferAnnouncement.parse(raw).num_units == 16
    with pytest.raises(MalformedError) as caught:
        TransferAnnouncement.parse(change(raw))
    assert caught.value.code == "bad-announcement"
