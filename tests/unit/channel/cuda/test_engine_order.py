"""What may come before what: failures, closing, and verdicts that others wait for."""

from __future__ import annotations

import threading

import pytest

from sealift.channel.cuda.driver import CudaError
from sealift.channel.cuda.engine import SLOTS
from sealift.channel.cuda.transfer import CudaVerdicts
from sealift.crypto.aead import Suite
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    UnavailableError,
    UsageError,
)
from tests.contract.test_device_engines import Batch, on_device, read
from tests.sim.cuda_engines import WAYS, engine_on, model_gpu

GCM = Suite.AES_256_GCM


@pytest.fixture(params=WAYS)
def made(request):
    gpu = model_gpu()
    engine = engine_on(gpu, request.param)
    yield gpu, engine
    engine.close()


class Opening:
    """A batch, opened often enough that all tables are there."""

    def __init__(self, engine):
        self.engine, self.batch = engine, Batch(GCM)
        self.plain = engine.allocate(self.batch.plain_bytes)
        self.sealed = on_device(engine, self.batch.sealed)
        self.key = engine.key(GCM, self.batch.key)
        for _ in range(4):
            self.open().wait()

    def open(self):
        return self.engine.open(self.key, self.sealed, self.plain, self.batch.places)

    def spoil(self):
        sealed = bytearray(self.batch.sealed)
        sealed[self.batch.places[6].sealed_offset] ^= 1
        self.engine.upload(bytes(sealed), self.sealed).wait()


def without_room(monkeypatch, engine):
    """The next kernels find no scratch."""

    def full(nbytes):
        raise CudaError("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY", nbytes)

    monkeypatch.setattr(engine.core._scratch, "_blocks", [])
    monkeypatch.setattr(engine.core.driver, "allocate", full)


def test_memory_is_scrubbed_after_a_call_that_could_not_be_queued(made, monkeypatch):
    gpu, engine = made
    opening = Opening(engine)
    block = gpu.blocks[opening.plain.address]
    assert any(block[:])
    with monkeypatch.context() as patch:
        without_room(patch, engine)
        with pytest.raises(UnavailableError, match="no room"):
            opening.open().wait()
    opening.plain.close()
    assert not any(block[:])


def test_what_is_overwritten_may_have_failed_before(made, monkeypatch):
    _, engine = made
    opening = Opening(engine)
    with monkeypatch.context() as patch:
        without_room(patch, engine)
        with pytest.raises(UnavailableError):
            opening.open().wait()
    engine.upload(b"x" * opening.plain.nbytes, opening.plain).wait()
    assert read(engine, opening.plain) == b"x" * opening.plain.nbytes


@pytest.mark.parametrize("act", ["seal", "download", "open"])
def test_what_comes_after_refused_verdicts_is_not_queued(made, act):
    _, engine = made
    opening = Opening(engine)
    opening.spoil()
    other = engine.allocate(opening.sealed.nbytes)
    refused = opening.open()
    plain, places = opening.plain, opening.batch.places
    out = bytearray(b"?" * 100)

    acts = {
        "seal": lambda: engine.seal(opening.key, plain, other, places, after=[refused]),
        "open": lambda: engine.open(opening.key, other, plain, places, after=[refused]),
        "download": lambda: engine.download(plain, 0, out, after=[refused]),
    }

    def follow():
        with pytest.raises(AuthenticationError):
            acts[act]()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    engine.upload(bytes(plain.nbytes), plain)  # wants the lock meanwhile
    follower.join(300)
    assert not follower.is_alive()
    assert out == b"?" * 100


def test_zeroes_of_a_refused_batch_are_read_back(made):
    """The second line: it also overwrites what a broken kernel left."""
    gpu, engine = made
    opening = Opening(engine)
    opening.spoil()
    inner = gpu.runner.run
    gpu.runner.run = lambda name, *rest: (
        None if name == "sealift_refuse_batch" else inner(name, *rest)
    )
    refused = opening.open()
    refused.collect()
    assert any(gpu.blocks[opening.plain.address][:])  # the mutant left plaintext
    with pytest.raises(AuthenticationError):
        refused.wait()
    assert not any(gpu.blocks[opening.plain.address][:])


def test_nothing_is_queued_behind_the_last_scrub_of_a_key(made):
    """Whoever closes waits for what was queued; what comes later is refused."""
    _, engine = made
    opening = Opening(engine)
    inner, tried = opening.key.memory._scrub, []

    def scrub(memory):
        inner(memory)
        with pytest.raises(UsageError):
            opening.key.require_open()
        with pytest.raises(UsageError):
            memory.require_open()
        tried.append(memory)

    opening.key.memory._scrub = scrub
    opening.key.close()
    assert tried == [opening.key.memory]
    with pytest.raises(UsageError):
        opening.open()


def test_a_forked_child_does_not_wait_for_lanes_it_does_not_have(made):
    _, engine = made
    opening = Opening(engine)
    core = engine.core
    lanes = (core.crypto, core.answers, core.back, *(way.lane for way in core.up))
    for lane in lanes:
        lane._process += 1  # as a child sees it
    with pytest.raises(UnavailableError, match="forked"):
        opening.plain.scrub()
    for lane in lanes:
        lane._process -= 1


def test_an_engine_that_leaves_something_says_so_when_it_is_closed():
    gpu = model_gpu()
    engine = engine_on(gpu)
    memory = engine.allocate(1000)
    engine.upload(b"x" * 1000, memory).wait()
    zero, driver = engine.core.driver.zero, engine.core.driver
    driver.zero = lambda at, nbytes, stream: zero(at, min(nbytes, 999), stream)
    with pytest.raises(IntegrityError, match="1 bytes were not zero"):
        engine.close()
    assert not gpu.blocks
    assert gpu.contexts == 0


class OneBefore:
    """A batch's lock: who takes the batch's table stands before it until it is refused.

    Whoever is kept from it for good raises.
    """

    def __init__(self, *, patience_s):
        self.reached, self.refusing = threading.Event(), threading.Event()
        self._patience_s, self._real = patience_s, threading.Lock()

    def __enter__(self):
        if threading.current_thread().name == "opener":
            self.reached.set()
            assert self.refusing.wait(300)
        if not self._real.acquire(timeout=self._patience_s):
            raise TimeoutError

    def __exit__(self, *error):
        self._real.release()


def refused_while_its_table_is_taken(engine, patience_s):
    """What an opener and a waiter end in, when each needs what the other may hold."""
    opening, ended = Opening(engine), {}
    opening.spoil()
    refused = opening.open()
    lock = refused._lock = OneBefore(patience_s=patience_s)
    prove = refused._refuse

    def refuse():
        lock.refusing.set()  # the opener goes on, with the engine's lock
        prove()

    refused._refuse = refuse
    others = [opening.open() for _ in range(SLOTS - 1)]  # of the other tables

    def run(name, act):
        def work():
            try:
                ended[name] = act()
            except Exception as error:
                ended[name] = type(error)

        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    opener = run("opener", opening.open)  # takes the table of the refused batch back
    assert lock.reached.wait(300)
    waiter = run("waiter", refused.wait)
    for thread in (opener, waiter):
        thread.join(300)
        assert not thread.is_alive()
    return ended, others


def test_whoever_opens_and_whoever_refuses_do_not_wait_for_each_other(made):
    """The opener holds the engine's lock and wants the verdicts'; a refusal, the engine's."""
    _, engine = made
    ended, others = refused_while_its_table_is_taken(engine, patience_s=20)
    assert ended["waiter"] is AuthenticationError
    for verdicts in (*others, ended["opener"]):
        with pytest.raises(AuthenticationError):
            verdicts.wait()


def test_a_refusal_under_the_verdicts_lock_stops_both(made, monkeypatch):
    """The mutant: as it was once, met by chance in two runs of all tests."""
    _, engine = made

    def wait(self):
        answer = self.collect()
        if answer != bytes([1]) * len(answer):
            with self._lock:
                self._refuse()
            raise AuthenticationError

    monkeypatch.setattr(CudaVerdicts, "wait", wait)
    ended, _ = refused_while_its_table_is_taken(engine, patience_s=1)
    assert ended["waiter"] is AuthenticationError  # once the other gave up
    assert ended["opener"] is TimeoutError
