"""Sealing and opening in order: what is caught where, and who is dead afterwards."""

from __future__ import annotations

import os
import threading

import pytest

from sealift.channel.record.layout import PREFIX_BYTES, FramePrefix
from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.record import StreamOptions
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError, StaleError, UsageError

KEY = SecretKey.from_bytes(b"k" * 32)
PLAINTEXT = os.urandom(64 * 4 + 5)


def sealed(plaintext=PLAINTEXT, **options):
    sealer = StreamSealer(KEY, total_bytes=len(plaintext), record_bytes=64, **options)
    starts = range(0, max(1, len(plaintext)), 64)
    records = [sealer.seal(plaintext[i : i + 64]) for i in starts]
    return sealer.header_bytes, records, sealer.trailer()


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 1000])
def test_what_was_sealed_is_opened(suite, length):
    plaintext = os.urandom(length)
    header, records, trailer = sealed(plaintext, suite=suite)
    opener = StreamOpener(KEY, header)
    assert b"".join(opener.open(record) for record in records) == plaintext
    opener.finish(trailer)


@pytest.mark.parametrize("byte", [0, 31, 63, 64, 79])
def test_a_flipped_byte_anywhere_in_a_record_is_refused(byte):
    header, records, _ = sealed()
    spoiled = bytearray(records[1])
    spoiled[byte] ^= 1
    opener = StreamOpener(KEY, header)
    opener.open(records[0])
    with pytest.raises(AuthenticationError):
        opener.open(bytes(spoiled))


def open_in_order(opener, records, order):
    for index in order:
        opener.open(records[index])


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 2), (0, 1, 1), (0, 1, 3)])
def test_reordered_repeated_and_dropped_records_are_refused(order):
    header, records, _ = sealed()
    opener = StreamOpener(KEY, header)
    with pytest.raises(AuthenticationError):
        open_in_order(opener, records, order)


def test_a_record_of_another_stream_of_the_same_key_is_refused():
    header, _, _ = sealed()
    _, others, _ = sealed()
    with pytest.raises(AuthenticationError):
        StreamOpener(KEY, header).open(others[0])


def test_another_context_is_refused():
    header, records, _ = sealed(context=b"job a")
    with pytest.raises(AuthenticationError):
        StreamOpener(KEY, header, context=b"job b").open(records[0])


def test_truncation_is_noticed():
    header, records, trailer = sealed()
    opener = StreamOpener(KEY, header)
    for record in records[:-1]:
        opener.open(record)
    with pytest.raises(MalformedError, match="cut"):
        opener.finish(trailer)


def test_without_the_final_bit_truncation_of_messages_would_pass():
    # The mutant forgets the final bit: it takes the last message for the end.
    sealer = StreamSealer(KEY, total_bytes=None)
    frames = [sealer.seal_frame(b"one"), sealer.seal_frame(b"two", final=True)]
    opener = StreamOpener(KEY, sealer.header_bytes)
    opener.open_frame(frames[0])
    with pytest.raises(MalformedError, match="cut"):
        opener.verify_finished()


@pytest.mark.parametrize("byte", [0, 8, 16, 24, 55])
def test_a_changed_trailer_is_refused(byte):
    header, records, trailer = sealed()
    spoiled = bytearray(trailer)
    spoiled[byte] ^= 1
    opener = StreamOpener(KEY, header)
    for record in records:
        opener.open(record)
    with pytest.raises((AuthenticationError, MalformedError)):
        opener.finish(bytes(spoiled))


def test_a_trailer_of_another_stream_is_refused():
    header, records, _ = sealed()
    _, _, other = sealed()
    opener = StreamOpener(KEY, header)
    for record in records:
        opener.open(record)
    with pytest.raises(AuthenticationError):
        opener.finish(other)


def test_after_one_error_an_opener_is_dead():
    header, records, _ = sealed()
    opener = StreamOpener(KEY, header)
    with pytest.raises(AuthenticationError):
        opener.open(bytes(80))
    with pytest.raises(UsageError) as caught:
        opener.open(records[0])
    assert caught.value.code == "dead-stream"


def test_after_one_error_a_sealer_is_dead():
    sealer = StreamSealer(KEY, total_bytes=128, record_bytes=64)
    with pytest.raises(UsageError):
        sealer.seal(bytes(63))
    with pytest.raises(UsageError) as caught:
        sealer.seal(bytes(64))
    assert caught.value.code == "dead-stream"


def test_nothing_is_sealed_or_opened_after_the_final_record():
    header, records, _ = sealed()
    sealer = StreamSealer(KEY, total_bytes=1, record_bytes=64)
    sealer.seal(b"x")
    with pytest.raises(UsageError):
        sealer.seal(b"x")
    opener = StreamOpener(KEY, header)
    for record in records:
        opener.open(record)
    with pytest.raises(MalformedError, match="after the final"):
        opener.open(records[0])


def test_a_sealer_without_its_final_record_gives_no_trailer():
    sealer = StreamSealer(KEY, total_bytes=128, record_bytes=64)
    sealer.seal(bytes(64))
    with pytest.raises(UsageError):
        sealer.trailer()


def test_a_closed_stream_refuses():
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    frame = sealer.seal_frame(b"x")
    sealer.close()
    opener.close()
    for attempt in (lambda: sealer.seal_frame(b"x"), lambda: opener.open_frame(frame)):
        with pytest.raises(UsageError):
            attempt()


class ClosedMeanwhile:
    """Calls ``close`` after the tag verified, before the plaintext is handed over."""

    def cipher(self, suite, key):
        self.inner = Aead(suite, key)
        return self

    def open_into(self, *arguments):
        written = self.inner.open_into(*arguments)
        closer = threading.Thread(target=self.close)
        closer.start()
        closer.join(300)
        return written


def test_a_stream_closed_by_another_thread_releases_no_scrubbed_bytes():
    backend = ClosedMeanwhile()
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(
        KEY, sealer.header_bytes, options=StreamOptions(make_cipher=backend.cipher)
    )
    backend.close = opener.close
    with pytest.raises(UsageError) as refusal:
        opener.open_frame(sealer.seal_frame(b"never seen as zeroes"))
    assert refusal.value.code == "dead-stream"


# ---------------------------------------------------------------- messages in frames


def test_messages_of_any_size_pass():
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    for message in (b"", b"x", os.urandom(100_000), os.urandom(1 << 20)):
        assert opener.open_frame(sealer.seal_frame(message)) == message
    assert not opener.finished
    assert opener.open_frame(sealer.seal_frame(b"bye", final=True)) == b"bye"
    assert opener.finished
    opener.finish(sealer.trailer())


def test_a_message_above_the_record_size_is_refused_by_both_ends():
    sealer = StreamSealer(KEY, total_bytes=None, record_bytes=64)
    opener = StreamOpener(KEY, sealer.header_bytes)
    long_prefix = FramePrefix(81, 0, final=False).encode()
    with pytest.raises(MalformedError):
        opener.open_frame(long_prefix + bytes(81))
    with pytest.raises(UsageError) as caught:
        sealer.seal_frame(bytes(65))
    assert caught.value.code == "message-too-long"


def test_frames_and_bare_records_are_not_mixed_up():
    messages = StreamSealer(KEY, total_bytes=None)
    with pytest.raises(UsageError):
        messages.seal(b"x")
    with pytest.raises(UsageError):
        StreamOpener(KEY, messages.header_bytes).open(bytes(17))


@pytest.mark.parametrize("byte", range(PREFIX_BYTES))
def test_a_changed_prefix_is_refused(byte):
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    frame = bytearray(sealer.seal_frame(b"message"))
    frame[byte] ^= 0x81
    with pytest.raises((AuthenticationError, MalformedError)):
        opener.open_frame(bytes(frame))


@pytest.mark.parametrize("length", [0, 15, 16, 31])
def test_a_frame_too_short_for_a_tag_is_malformed(length):
    sealer = StreamSealer(KEY, total_bytes=None)
    with pytest.raises(MalformedError):
        StreamOpener(KEY, sealer.header_bytes).open_frame(bytes(length))


def test_a_replayed_frame_is_stale():
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    frame = sealer.seal_frame(b"pay")
    opener.open_frame(frame)
    with pytest.raises(StaleError):
        opener.open_frame(frame)


# ------------------------------------------------------- two counters (rule H4)


def test_the_sequence_may_have_gaps_but_the_index_may_not():
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    ahead = bytearray(sealer.seal_frame(b"guessed wrong"))
    sealer.discard(ahead)
    assert bytes(ahead) == bytes(len(ahead)), "a discarded record is overwritten"
    frame = sealer.seal_frame(b"right")
    assert FramePrefix.parse(frame[:16], len(frame)).sequence == 1
    assert opener.open_frame(frame) == b"right"


def test_a_dropped_frame_is_not_taken_for_a_gap():
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    frames = [sealer.seal_frame(bytes([n])) for n in range(3)]
    opener.open_frame(frames[0])
    with pytest.raises(AuthenticationError):
        opener.open_frame(frames[2])


def test_with_one_counter_a_dropped_frame_would_pass():
    # The mutant binds the sequence where the index belongs, so gaps are legal for both.
    sealer = StreamSealer(KEY, total_bytes=None)
    opener = StreamOpener(KEY, sealer.header_bytes)
    frames = [sealer.seal_frame(bytes([n])) for n in range(3)]
    opener.open_frame(frames[0])
    opener._index = FramePrefix.parse(frames[2][:16], len(frames[2])).sequence
    assert opener.open_frame(frames[2]) == b"\x02"


def test_only_the_record_sealed_last_can_be_discarded():
    sealer = StreamSealer(KEY, total_bytes=None)
    first = bytearray(sealer.seal_frame(b"first"))
    sealer.seal_frame(b"second")
    with pytest.raises(UsageError):
        sealer.discard(first)


def test_the_trailer_covers_discarded_streams_too():
    sealer = StreamSealer(KEY, total_bytes=64, record_bytes=64)
    sealer.discard(bytearray(sealer.seal_frame(bytes(64))))
    frame = sealer.seal_frame(b"y" * 64)
    opener = StreamOpener(KEY, sealer.header_bytes)
    opener.open_frame(frame)
    opener.finish(sealer.trailer())


@pytest.mark.parametrize("bit", range(31))
def test_a_bit_of_the_prefix_that_means_nothing_is_refused(bit):
    sealer = StreamSealer(KEY, total_bytes=None)
    frame = bytearray(sealer.seal_frame(b"x"))
    opened = StreamOpener(KEY, sealer.header_bytes).open_frame(bytes(frame))
    assert opened == b"x"  # the control
    frame[4 + (31 - bit) // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedError):
        StreamOpener(KEY, sealer.header_bytes).open_frame(bytes(frame))
