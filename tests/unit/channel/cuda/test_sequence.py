"""Rule C8 on the GPU: a replayed graph never uses a nonce again."""

from __future__ import annotations

import os

import pytest

from sealift.channel.cuda.batches import Batch
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.cuda.sequence import DeviceSealer, SealerStart
from sealift.channel.device import RecordPlace
from sealift.channel.record import RecordKeys, make_header
from sealift.channel.stream import StreamOpener
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, StaleError, UsageError
from tests.sim.cuda_engines import WAYS, engine_on, gcc_engine, model_gpu

LENGTHS = (4096, 4096, 33)
TAG = 16


class Sealing:
    """A stream of messages that a GPU seals, and its opener on the host."""

    def __init__(self, engine, suite, *, limit=1 << 40):
        base = SecretKey.generate()
        header = make_header(base, total_bytes=None, record_bytes=4096, suite=suite)
        keys = RecordKeys(base, header)
        secret, mask = keys.segment_secret(0)
        self.engine, self.opener = engine, StreamOpener(base, header.encode())
        self.plain = engine.allocate(4 * 4096)
        self.sealed = engine.allocate(4 * 4200)
        text = keys.associated_data(0, final=False)
        self.places = [
            RecordPlace(bytes(12), text, 4112 * at, 4096 * at, nbytes)
            for at, nbytes in enumerate(LENGTHS)
        ]
        start = SealerStart(mask.to_bytes(12, "big"), 5, 7, 0, limit)
        self.key = engine.key(suite, secret)
        batch = Batch(self.key, self.sealed, self.plain, self.places)
        self.sealer = DeviceSealer(engine, batch, start)

    def put(self):
        content = os.urandom(self.plain.nbytes)
        self.engine.upload(content, self.plain)
        return [content[4096 * at : 4096 * at + n] for at, n in enumerate(LENGTHS)]

    def frames(self):
        sealed = bytearray(self.sealed.nbytes)
        prefixes = bytearray(self.sealer.prefixes.nbytes)
        self.engine.download(self.sealed, 0, sealed).wait()
        self.engine.download(self.sealer.prefixes, 0, prefixes).wait()
        return [
            bytes(prefixes[16 * at : 16 * at + 16])
            + bytes(sealed[place.sealed_offset :][: place.plaintext_bytes + TAG])
            for at, place in enumerate(self.places)
        ]


ENGINES = {
    **{way: lambda way=way: engine_on(model_gpu(), way) for way in WAYS},
    "gcc": gcc_engine,
    "gpu": lambda: open_cuda(test=lambda _: None),
}


@pytest.fixture(params=[*WAYS, "gcc", pytest.param("gpu", marks=pytest.mark.gpu)])
def engine(request):
    made = ENGINES[request.param]()
    yield made
    made.close()


@pytest.mark.parametrize("suite", Suite, ids=lambda suite: suite.name)
def test_replays_of_one_graph_are_the_next_records_of_the_stream(engine, suite):
    sealing = Sealing(engine, suite)
    seen, graph = set(), None
    for number in range(4):
        texts = sealing.put()
        if number == 0:
            sealing.sealer.seal()
        else:
            graph = graph or sealing.sealer.capture()
            sealing.sealer.replay(graph)
        frames = sealing.frames()
        seen.update(frame[4:16] for frame in frames)
        assert [sealing.opener.open_frame(frame) for frame in frames] == texts
    assert len(seen) == 4 * len(LENGTHS)
    state = sealing.sealer.state()
    assert (state.sequence, state.index, state.refused) == (7 + 12, 12, False)
    sealing.sealer.close()


def test_a_sealer_without_its_kernel_repeats_nonces_and_is_caught():
    """The mutant: the graph replays what it was captured with."""
    gpu = model_gpu()
    inner, skip = gpu.runner.run, []
    gpu.runner.run = lambda name, *rest: (
        None if skip and name == "sealift_sequence" else inner(name, *rest)
    )
    engine = engine_on(gpu)
    sealing = Sealing(engine, Suite.AES_256_GCM)
    sealing.put()
    sealing.sealer.seal().wait()
    first = sealing.frames()
    skip.append(True)
    sealing.put()
    sealing.sealer.seal().wait()
    assert [frame[4:16] for frame in sealing.frames()] == [f[4:16] for f in first]
    for frame in first:
        sealing.opener.open_frame(frame)
    with pytest.raises(StaleError):
        sealing.opener.open_frame(sealing.frames()[0])
    engine.close()


def test_at_the_end_of_its_segment_a_sealer_seals_nothing(engine):
    sealing = Sealing(engine, Suite.AES_256_GCM, limit=7 + 5)
    sealing.put()
    sealing.sealer.seal()
    first = sealing.frames()
    sealing.put()
    for _ in range(2):
        sealing.sealer.seal()
        frames = sealing.frames()
        assert all(frame[:16] == bytes(16) for frame in frames)
        assert [f[16:] for f in frames] == [f[16:] for f in first]  # nothing new
    assert sealing.sealer.state().refused
    assert sealing.sealer.state().sequence == 10


def test_what_was_changed_on_the_way_does_not_open(engine):
    sealing = Sealing(engine, Suite.CHACHA20_POLY1305)
    sealing.put()
    sealing.sealer.seal()
    frame = bytearray(sealing.frames()[0])
    frame[15] ^= 1  # another sequence
    with pytest.raises(AuthenticationError):
        sealing.opener.open_frame(bytes(frame))


def test_a_start_that_cannot_be_is_refused(engine):
    for start in (
        SealerStart(bytes(11), 0, 0, 0, 1),
        SealerStart(bytes(12), 1 << 31, 0, 0, 1),
    ):
        with pytest.raises(UsageError):
            start.encode()
