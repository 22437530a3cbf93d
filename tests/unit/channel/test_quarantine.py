"""Plaintext is released only after its tag verified; checked by reading the memory."""

from __future__ import annotations

import os

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealift.channel.record.opener import RecordOpener, RecordPosition, Slot
from sealift.channel.record.record import StreamOptions
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError, UsageError

KEY = SecretKey.from_bytes(b"k" * 32)
SENTINEL = b"\xaa"


class LeavingCipher:
    """As the library does: on a bad tag the plaintext stays in the output buffer."""

    def __init__(self, key: bytes) -> None:
        self._gcm = AESGCM(key)

    def open_into(self, nonce, ciphertext, associated_data, out):
        try:
            return self._gcm.decrypt_into(nonce, ciphertext, associated_data, out)
        except InvalidTag:
            raise AuthenticationError from None


def leaving(suite, key):
    """An engine that does not clean up, so that the channel has to."""
    return LeavingCipher(key.reveal(TOKEN))


class StraightOpener(RecordOpener):
    """The mutant: opens into the caller's memory and trusts the engine to clean up."""

    def open_at(self, place, record, out, *, private=False):
        length = len(record) - 16
        self.keys.cipher(place.index).open_into(
            self.keys.nonce(place.index, place.sequence),
            record,
            self.keys.associated_data(place.index, final=place.final),
            memoryview(out)[:length],
        )
        return length


def spoiled_record():
    plaintext = os.urandom(4096)
    sealer = StreamSealer(KEY, total_bytes=4096, record_bytes=4096)
    record = bytearray(sealer.seal(plaintext))
    record[5] ^= 1
    return plaintext, sealer.header_bytes, bytes(record)


def leak_of(opener_class):
    """What of the plaintext an opener leaves in the caller's memory on a bad tag."""
    plaintext, header, record = spoiled_record()
    opener = opener_class(KEY, header, options=StreamOptions(leaving))
    out = bytearray(SENTINEL * 4096)
    with pytest.raises(AuthenticationError):
        opener.open_record(0, record, out)
    return plaintext, out, opener


def test_on_a_bad_tag_the_callers_memory_is_untouched():
    _, out, _ = leak_of(RecordOpener)
    assert bytes(out) == SENTINEL * 4096


def test_on_a_bad_tag_the_quarantine_slot_is_zero():
    _, _, opener = leak_of(RecordOpener)
    assert bytes(opener._slot._memory) == bytes(4096)


def test_opening_straight_into_the_callers_memory_is_caught_by_this_test():
    plaintext, out, _ = leak_of(StraightOpener)
    assert bytes(out) != SENTINEL * 4096
    same = sum(a == b for a, b in zip(out, plaintext, strict=True))
    assert same == 4095, "the mutant hands out unverified plaintext"


def test_the_cpu_engine_cleans_up_by_itself_as_well():
    _, header, record = spoiled_record()
    opener = RecordOpener(KEY, header)
    slot = Slot(4096)
    slot.room(4096)[:] = SENTINEL * 4096
    with pytest.raises(AuthenticationError):
        opener.open_in(slot, RecordPosition(0, 0, final=True), record)
    assert bytes(slot._memory) == bytes(4096)


def test_a_slot_releases_nothing_that_was_not_verified():
    slot = Slot(64)
    slot.room(64)[:] = b"u" * 64
    with pytest.raises(UsageError):
        slot.release()
    slot.mark_verified(64)
    assert bytes(slot.release()) == b"u" * 64
    slot.room(64)
    with pytest.raises(UsageError):
        slot.release()


def test_released_views_cannot_be_written():
    slot = Slot(64)
    slot.mark_verified(64)
    with pytest.raises(TypeError):
        slot.release()[0] = 1


def test_closing_an_opener_scrubs_its_memory():
    sealer = StreamSealer(KEY, total_bytes=64, record_bytes=64)
    record = sealer.seal(b"p" * 64)
    opener = RecordOpener(KEY, sealer.header_bytes)
    opener.open_record(0, memoryview(bytearray(record)), bytearray(64))
    slot, copied = opener._slot, opener._sealed_copy
    assert bytes(slot._memory) == b"p" * 64
    opener.close()
    assert bytes(slot._memory) == bytes(64)
    assert bytes(copied) == bytes(80)
    with pytest.raises(UsageError):
        opener.open_record(0, record, bytearray(64))


def test_a_target_too_small_is_refused_before_opening():
    _, header, record = spoiled_record()
    with pytest.raises(UsageError):
        RecordOpener(KEY, header).open_record(0, record, bytearray(4095))


class NotingCipher:
    """Notes which memory the engine was given to read."""

    def __init__(self, inner) -> None:
        self.inner = inner
        self.read: list[object] = []

    def open_into(self, nonce, ciphertext, associated_data, out):
        self.read.append(ciphertext)
        return self.inner.open_into(nonce, ciphertext, associated_data, out)


def test_memory_that_others_may_write_is_copied_before_opening():
    sealer = StreamSealer(KEY, total_bytes=64, record_bytes=64)
    record = bytearray(sealer.seal(b"p" * 64))
    opener = RecordOpener(KEY, sealer.header_bytes)
    cipher = NotingCipher(opener.keys.cipher(0))
    opener.keys._segment = (0, cipher, opener.keys._segment[2])
    opener.open_record(0, memoryview(record), bytearray(64))
    assert cipher.read[0].obj is not record
    opener.open_at(
        RecordPosition(0, 0, final=True),
        memoryview(record),
        bytearray(64),
        private=True,
    )
    assert cipher.read[1].obj is record, "only the caller's word allows this"
