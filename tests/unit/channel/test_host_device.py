"""The host's stand-in for a device where threads meet."""

from __future__ import annotations

import threading

import pytest

from sealift.channel.device import host
from sealift.channel.device.device import RecordPlace
from sealift.channel.device.host import HostDevice
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError

SUITE = Suite.AES_256_GCM
LENGTH = 64


class Slow:
    """Ciphers that wait until they may go on."""

    def __init__(self):
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)

    def cipher(self, suite, key):
        inner, outer = Aead(suite, key), self

        class Waiting:
            def open_into(self, *given):
                outer.begun.release()
                assert outer.go.wait(300)
                return inner.open_into(*given)

        return Waiting()


def two_records(engine, *, flip=False):
    """Queue the opening of two records; return their memory and the verdicts."""
    key = SecretKey.generate()
    sealed = bytearray(2 * (LENGTH + 16))
    places = []
    for number in range(2):
        nonce, at = number.to_bytes(12, "big"), number * (LENGTH + 16)
        room = memoryview(sealed)[at : at + LENGTH + 16]
        Aead(SUITE, key).seal_into(nonce, b"p" * LENGTH, b"", room)
        places.append(RecordPlace(nonce, b"", at, number * LENGTH, LENGTH))
    sealed[3] ^= flip
    uploaded, plain = engine.allocate(len(sealed)), engine.allocate(2 * LENGTH)
    engine.upload(sealed, uploaded).wait()
    return plain, engine.open(engine.key(SUITE, key), uploaded, plain, places)


def test_whoever_asks_while_another_is_told_hears_the_same(monkeypatch):
    # The second asks exactly where the first knows and did not say yet.
    engine, told = HostDevice(threads=2), []
    _, verdicts = two_records(engine, flip=True)

    def asking():
        try:
            verdicts.wait()
            told.append("verified")
        except AuthenticationError:
            told.append("refused")

    second = threading.Thread(target=asking)
    worst = host._worst

    def meanwhile(errors):
        second.start()
        second.join(0.2)
        return worst(errors)

    monkeypatch.setattr(host, "_worst", meanwhile)
    asking()
    second.join()
    assert told == ["refused", "refused"]
    engine.close()


def test_memory_is_scrubbed_after_what_is_queued():
    backend = Slow()
    engine = HostDevice(threads=2, make_cipher=backend.cipher)
    plain, verdicts = two_records(engine)
    for _ in range(2):
        backend.begun.acquire()
    scrubbing = threading.Thread(target=plain.scrub)
    scrubbing.start()
    scrubbing.join(0.2)
    backend.go.set()
    scrubbing.join()
    verdicts.wait()
    assert not any(plain.view)
    engine.close()


def test_memory_that_was_given_back_is_not_kept():
    engine = HostDevice(threads=1)
    for _ in range(3):
        engine.allocate(100).close()
    lent = engine.allocate(100)
    view = memoryview(lent.view)
    lent.close()
    assert not any(view)  # scrubbed, and whoever was lent it may still look
    assert not engine._memories
    engine.close()


@pytest.mark.parametrize("threads", [8])
def test_what_may_be_allocated_is_counted_once_by_many_threads(threads):
    engine = HostDevice(threads=1, memory_bytes=4096 * threads)

    def turn():
        for _ in range(50):
            engine.allocate(4096).close()

    turning = [threading.Thread(target=turn) for _ in range(threads)]
    for each in turning:
        each.start()
    for each in turning:
        each.join()
    engine.allocate(4096 * threads).close()
    engine.close()
