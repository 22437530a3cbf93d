"""Whole streams over a transport, seal and open overlapped, with faults on the line."""

from __future__ import annotations

import os
import threading

import pytest

from sealift.channel.record.opener import StreamSealer
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    SealiftError,
    StaleError,
)
from sealift.lab.bench.pipeline import Quarantine, receive_stream, send_stream
from sealift.lab.worlds.memorytransport import Fault, memory_pair
from tests.sim.memfdpair import memfd_pair

KEY = SecretKey.from_bytes(b"k" * 32)
PLAINTEXT = os.urandom(64 * 9 + 3)


def send(transport, plaintext=PLAINTEXT, record_bytes=64):
    sealer = StreamSealer(KEY, total_bytes=len(plaintext), record_bytes=record_bytes)
    send_stream(transport, [plaintext[:100], plaintext[100:]], sealer)


@pytest.mark.parametrize("length", [0, 1, 64, 1000])
def test_a_stream_arrives(length):
    plaintext, got = os.urandom(length), []
    here, there = memory_pair()
    send(here, plaintext)
    receive_stream(there, KEY, lambda record: got.append(bytes(record)), timeout_s=300)
    assert b"".join(got) == plaintext


def test_more_than_the_ring_holds_arrives_because_both_ends_work_at_once():
    plaintext, got = os.urandom(5 << 20), bytearray()
    here, there = memfd_pair(slot_bytes=(64 << 10) + 64, num_slots=3)
    sender = threading.Thread(target=send, args=(here, plaintext, 64 << 10))
    sender.start()
    receive_stream(there, KEY, got.extend, timeout_s=300)
    sender.join()
    here.close()
    there.close()
    assert bytes(got) == plaintext


FAULTS = [
    (Fault("flip", 3, 40), AuthenticationError),
    (Fault("flip", 3, 3), MalformedError),
    (Fault("flip", 0, 60), AuthenticationError),
    (Fault("flip", 11, 30), AuthenticationError),
    (Fault("drop", 3), AuthenticationError),
    (Fault("drop", 11), PeerError),
    (Fault("duplicate", 3), StaleError),
    (Fault("hold", 3, 1), AuthenticationError),
    (Fault("truncate", 3, 50), MalformedError),
    (Fault("truncate", 3, 5), MalformedError),
    (Fault("truncate", 11, 55), MalformedError),
]


@pytest.mark.parametrize(("fault", "error"), FAULTS)
def test_every_fault_ends_in_its_error_after_an_exact_prefix(fault, error):
    here, there = memory_pair([fault])
    send(here)
    here.close()
    got = bytearray()
    with pytest.raises(error):
        receive_stream(there, KEY, got.extend, timeout_s=1)
    assert PLAINTEXT.startswith(bytes(got))


def test_a_delayed_frame_is_no_error():
    here, there = memory_pair([Fault("delay", 3, 0.02)])
    send(here)
    got = bytearray()
    receive_stream(there, KEY, got.extend, timeout_s=300)
    assert bytes(got) == PLAINTEXT


def test_on_failure_the_quarantine_is_zero():
    here, there = memory_pair([Fault("flip", 4, 40)])
    send(here)
    made: list[Quarantine] = []

    def make(header):
        made.append(Quarantine(header.record_bytes, header.record_count))
        return made[0]

    with pytest.raises(AuthenticationError):
        receive_stream(there, KEY, lambda r: None, make_quarantine=make, timeout_s=1)
    assert not any(made[0].memory)


def test_a_silent_peer_is_an_error():
    _, there = memory_pair()
    with pytest.raises(SealiftError) as caught:
        receive_stream(there, KEY, lambda record: None, timeout_s=0.01)
    assert caught.value.code == "peer-timeout"


def test_a_quarantine_scrubs_all_its_slots():
    quarantine = Quarantine(64, 3)
    for index in range(3):
        quarantine.slot(index).room(64)[:] = b"p" * 64
    quarantine.scrub()
    assert bytes(quarantine.memory) == bytes(192)
