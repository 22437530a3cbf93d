"""Records cross to every device engine and are opened there, with one answer for all."""

from __future__ import annotations

import pytest

from sealift.channel.cuda import transfer as transfers
from sealift.crypto.aead import Suite
from sealift.errors import AuthenticationError, UsageError
from tests.contract.test_device_engines import ALL, GPU, Batch, read
from tests.sim.device_engines import ENGINES

TAG = 16
LENGTHS = (0, 70_001, 4096, 1, 16_400, 33_000, 0)


@pytest.fixture(params=[*ENGINES, *GPU])
def engine(request):
    made = ALL[request.param]()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def pieces_are_short(monkeypatch):
    """So that a test's few bytes cross in several."""
    monkeypatch.setattr(transfers, "least_piece", lambda _: 3000)


@pytest.fixture(params=["pinned", "ordinary"])
def where(request):
    return request.param


class Sent:
    """Records of two keys, one after another, as they lie on the host."""

    def __init__(self, engine, where, suites=tuple(Suite), lengths=LENGTHS):
        self.engine, self.batches = engine, []
        at = plain_at = 0
        for suite in suites:
            batch = Batch(suite, lengths)
            batch.places = [
                place._replace(
                    sealed_offset=place.sealed_offset + at,
                    plain_offset=place.plain_offset + plain_at,
                )
                for place in batch.places
            ]
            self.batches.append((suite, batch))
            at, plain_at = at + len(batch.sealed), plain_at + batch.plain_bytes
        sealed = b"".join(bytes(batch.sealed) for _, batch in self.batches)
        self.expected = b"".join(bytes(batch.plain) for _, batch in self.batches)
        block = None
        if where == "pinned" and hasattr(engine, "pinned"):
            block = engine.pinned(len(sealed))
        self.host = memoryview(bytearray(len(sealed))) if block is None else block.view
        self.host[:] = sealed
        self.sealed = engine.allocate(100 + len(sealed))
        self.plain = engine.allocate(plain_at)
        self.groups = [
            (engine.key(suite, batch.key), batch.places)
            for suite, batch in self.batches
        ]

    def transfer(self, offset=0, num_parts=1):
        groups = [
            (key, [p._replace(sealed_offset=p.sealed_offset + offset) for p in places])
            for key, places in self.groups
        ]
        parts = [(self.host, offset)]
        if num_parts == 2:
            middle = self.groups[1][1][2].sealed_offset - 5  # in a gap
            parts = [
                (self.host[:middle], offset),
                (self.host[middle:], offset + middle),
            ]
        return self.engine.transfer(parts, self.sealed, self.plain, groups)


def test_what_crosses_is_opened(engine, where):
    sent = Sent(engine, where)
    for offset, num_parts in ((0, 1), (37, 2), (0, 2)):
        verdicts = sent.transfer(offset, num_parts)
        verdicts.wait()
        verdicts.wait()  # the answer stays
        assert read(engine, sent.plain) == sent.expected
        sent.plain.scrub()


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("record", [1, 4])
@pytest.mark.parametrize("part", ["first", "middle", "tag", "nonce", "associated data"])
def test_one_bad_record_leaves_nothing_of_the_whole_transfer(
    engine, where, group, record, part
):
    sent = Sent(engine, where)
    _key, places = sent.groups[group]
    place = places[record]
    at = {
        "first": 0,
        "middle": place.plaintext_bytes // 2,
        "tag": place.plaintext_bytes,
    }
    if part in at:
        sent.host[place.sealed_offset + at[part]] ^= 0x20
    elif part == "nonce":
        places[record] = place._replace(nonce=b"\xff" * 12)
    else:
        places[record] = place._replace(associated_data=b"another")
    verdicts = sent.transfer()
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            verdicts.wait()
    assert read(engine, sent.plain) == bytes(sent.plain.nbytes)


def test_transfers_that_follow_one_another_have_an_answer_each(engine, where):
    sents = [Sent(engine, where) for _ in range(6)]
    for number, sent in enumerate(sents):
        if number % 3 == 1:
            sent.host[sent.batches[1][1].places[5].sealed_offset + 20_000] ^= 1
    verdicts = [sent.transfer() for sent in sents]
    for number, (sent, each) in enumerate(zip(sents, verdicts, strict=True)):
        if number % 3 == 1:
            with pytest.raises(AuthenticationError):
                each.wait()
            assert not any(read(engine, sent.plain))
        else:
            each.wait()
            assert read(engine, sent.plain) == sent.expected


@pytest.mark.parametrize("what", ["transfer", "open"])
def test_a_tag_that_is_told_counts_instead_of_the_one_that_crossed(engine, where, what):
    sent = Sent(engine, where, (Suite.CHACHA20_POLY1305,))
    key, places = sent.groups[0]
    for at, place in enumerate(places):
        if at % 2:
            end = place.sealed_offset + place.plaintext_bytes
            places[at] = place._replace(tag=bytes(sent.host[end : end + TAG]))
            sent.host[end : end + TAG] = bytes(TAG)

    def cross():
        if what == "transfer":
            return sent.transfer()
        engine.upload(sent.host, sent.sealed).wait()
        return engine.open(key, sent.sealed, sent.plain, places)

    cross().wait()
    assert read(engine, sent.plain) == sent.expected
    told = places[3].tag
    places[3] = places[3]._replace(tag=told[:-1] + bytes([told[-1] ^ 1]))
    with pytest.raises(AuthenticationError):
        cross().wait()
    assert not any(read(engine, sent.plain))


def test_bytes_without_records_only_cross(engine, where):
    sent = Sent(engine, where)
    for groups in ([], [(sent.groups[0][0], [])]):
        engine.transfer([(sent.host, 3)], sent.sealed, sent.plain, groups).wait()
        assert read(engine, sent.sealed)[3 : 3 + len(sent.host)] == bytes(sent.host)
        assert not any(read(engine, sent.plain))


def test_nothing_is_opened_where_places_are_wrong(engine, where):
    sent = Sent(engine, where)
    key, places = sent.groups[0]
    beyond = places[-1]._replace(sealed_offset=len(sent.host) - 15)
    whole = [(sent.host, 0)]
    for parts, wrong in (
        (whole, [places[1], places[0]]),  # not in their order
        (whole, [beyond]),  # not in what crosses
        (whole, [places[1]._replace(plain_offset=sent.plain.nbytes)]),
        (whole, [places[1], places[1]]),
        (whole, [places[1]._replace(nonce=b"short"), places[2]]),
        (whole, [places[1]._replace(tag=b"short"), places[2]]),
        ([(sent.host[:100], 0), (sent.host[101:], 101)], [places[1]]),  # in two parts
        ([(sent.host[:100], 100), (sent.host[:100], 0)], []),
        ([(sent.host, 101)], []),
        ([(sent.host, -1)], []),
    ):
        with pytest.raises(UsageError) as caught:
            engine.transfer(parts, sent.sealed, sent.plain, [(key, wrong)])
        assert caught.value.code == "bad-record-place"
    assert not any(read(engine, sent.plain))
    sent.transfer().wait()  # and the engine goes on
    assert read(engine, sent.plain) == sent.expected


def test_a_key_or_memory_that_was_given_back_is_refused(engine, where):
    sent = Sent(engine, where)
    sent.groups[1][0].close()
    with pytest.raises(UsageError) as caught:
        sent.transfer()
    assert caught.value.code == "dead-key"
    other = Sent(engine, where)
    other.plain.close()
    with pytest.raises(UsageError) as caught:
        other.transfer()
    assert caught.value.code == "dead-memory"
