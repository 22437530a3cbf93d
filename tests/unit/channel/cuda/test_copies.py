"""Pinned memory that lies, the order of calls, packed crossings, and their threads."""

from __future__ import annotations

import os
import threading
from itertools import count

import pytest

from sealift.channel.cuda.driver import Residence
from sealift.channel.cuda.opening import make_case
from sealift.channel.cuda.staging import (
    GpuProtection,
    PinnedTruth,
    choose_copies,
    measure_toll,
    prove_pinned,
    read_protection,
)
from sealift.channel.cuda.transfer import cut, least_piece
from sealift.crypto.aead import Suite
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    UnavailableError,
    UsageError,
)
from tests.contract.test_device_engines import Batch, on_device, open_batch, read
from tests.sim.cuda_engines import (
    PIECE,
    WAYS,
    engine_on,
    gcc_engine,
    model_gpu,
    opened_on,
)
from tests.sim.cuda_standin import FOREIGN, StandInDriver, StandInStream
from tests.sim.nvml import FakeNvml

GCM = Suite.AES_256_GCM
LIES = {
    "refused": "the driver gives none",
    "ordinary": "calls it unknown memory",
    "synchronous": "return only when they are done",
    "stale": "were not those sent",
}


def test_memory_that_is_pinned_is_proven():
    truth = prove_pinned(StandInDriver(model_gpu(copy_s=0.002)))
    assert truth.proven, truth.why


@pytest.mark.parametrize("lie", LIES)
def test_memory_that_is_not_pinned_is_not_believed(lie):
    gpu = model_gpu(pinned=lie, copy_s=0.001)
    truth = prove_pinned(StandInDriver(gpu))
    assert not truth.proven
    assert LIES[lie] in truth.why
    assert not gpu.blocks
    assert not gpu.pinned_blocks


@pytest.mark.parametrize("lie", LIES)
def test_with_pinned_memory_that_lies_bytes_are_right_and_it_is_said(lie):
    gpu, said = model_gpu(pinned=lie), []
    engine = opened_on(gpu, sink=said.append, test=lambda _: None)
    batch = Batch(GCM)
    plain, verdicts = open_batch(engine, GCM, batch)
    verdicts.wait()
    assert read(engine, plain) == batch.plain
    assert engine.pinned(4096) is None
    engine.close()
    [event] = [each for each in said if each.kind == "cuda.opened"]
    assert event.fields["pinned"] is False
    assert "staged copies" in event.fields["copies"]


def test_confidential_mode_gets_threads_and_contexts():
    proven, not_proven = PinnedTruth(True, "yes"), PinnedTruth(False, "no")
    chosen = choose_copies(GpuProtection(True), not_proven, 1e-6)
    assert (chosen.threads, chosen.contexts, chosen.pinned) == (True, 3, False)
    assert chosen.piece_bytes == 1 << 20
    assert choose_copies(GpuProtection(True), proven, 1e-6).threads
    assert not choose_copies(GpuProtection(False), proven, 1e-6).threads
    assert not choose_copies(GpuProtection(None), proven, 1e-6).threads
    assert choose_copies(GpuProtection(False), not_proven, 1e-6).threads
    gpu = model_gpu()
    engine = opened_on(gpu, confidential=True, test=lambda _: None)
    assert gpu.contexts == 3
    engine.close()
    assert gpu.contexts == 0


def test_what_a_crossing_costs_is_measured_and_decides_how_transfers_are_cut():
    """A clock that goes on by a third of a millisecond each time it is looked at."""
    ticks = count(step=330e-6)
    driver, truth = StandInDriver(model_gpu()), PinnedTruth(True, "yes")
    toll_s = measure_toll(driver, truth, lambda: next(ticks))
    assert toll_s == pytest.approx(330e-6)
    assert not driver.gpu.blocks
    assert not driver.gpu.pinned_blocks
    confidential = choose_copies(GpuProtection(True), truth, toll_s)
    ordinary = choose_copies(GpuProtection(False), truth, toll_s)
    one, more = (
        len(list(cut([(0, 64 << 20)], least_piece(each.toll_s))))
        for each in (confidential, ordinary)
    )
    assert one == 1
    assert more > 3


def test_the_state_comes_from_nvml():
    found = read_protection(lambda: FakeNvml([], multi_gpu=1, ready=1))
    assert (found.confidential, found.devtools) == (True, False)
    assert (found.multi_gpu, found.accepts_work) == ("ppcie", True)
    assert read_protection(lambda: FakeNvml([], feature=0)).confidential is False
    refused = read_protection(lambda: FakeNvml([], settings_error=3))
    assert refused.confidential is None
    assert "does not say" in refused.why

    def missing():
        raise UnavailableError("no package here")

    assert "no package" in read_protection(missing).why


@pytest.mark.parametrize("way", WAYS)
def test_calls_on_the_same_bytes_keep_their_order(way):
    """A ring in one memory: nobody says what waits for what, and all is right."""
    engine = engine_on(model_gpu(), way)
    batches = [Batch(GCM, (30_000,)) for _ in range(12)]
    sealed = engine.allocate(len(batches[0].sealed))
    plain = engine.allocate(batches[0].plain_bytes)
    outs = [bytearray(plain.nbytes) for _ in batches]
    waits = []
    for batch, out in zip(batches, outs, strict=True):
        engine.upload(bytes(batch.sealed), sealed)
        key = engine.key(GCM, batch.key)
        waits.append(engine.open(key, sealed, plain, batch.places))
        waits.append(engine.download(plain, 0, out))
    for each in waits:
        each.wait()
    for batch, out in zip(batches, outs, strict=True):
        assert out[64:30_064] == batch.plaintexts[0]
    engine.close()


def test_a_copy_goes_on_while_a_kernel_runs():
    """Truth of overlap on the stand-in: the next upload ends before the kernel does."""
    gpu = model_gpu()
    started, go_on = threading.Event(), threading.Event()
    inner = gpu.runner.run

    def slow(name, grid, arguments):
        if name == "model_open":
            started.set()
            assert go_on.wait(300)
        inner(name, grid, arguments)

    engine = engine_on(gpu)
    batch = Batch(GCM)
    key, plain = engine.key(GCM, batch.key), engine.allocate(batch.plain_bytes)
    sealed, other = on_device(engine, batch.sealed), engine.allocate(60_000)
    gpu.runner.run = slow
    verdicts = engine.open(key, sealed, plain, batch.places)
    assert started.wait(300)
    engine.upload(os.urandom(2 * PIECE), other).wait()  # would hang if it waited
    blocked = engine.upload(bytes(2 * PIECE), sealed)
    assert not blocked.is_done()  # its bytes are being read
    go_on.set()
    verdicts.wait()
    blocked.wait()
    assert read(engine, plain) == batch.plain
    engine.close()


def test_more_batches_than_tables_keep_their_verdicts():
    engine = engine_on(model_gpu())
    batch = Batch(GCM)
    spoiled = bytearray(batch.sealed)
    spoiled[-40] ^= 1
    key = engine.key(GCM, batch.key)
    sealed = on_device(engine, batch.sealed)
    plains = [engine.allocate(batch.plain_bytes) for _ in range(9)]
    verdicts = [engine.open(key, sealed, plain, batch.places) for plain in plains]
    for each in verdicts:
        each.wait()
    assert all(read(engine, plain) == batch.plain for plain in plains)
    engine.close()


def test_bytes_in_pinned_memory_cross_without_another_copy():
    gpu = model_gpu()
    engine = engine_on(gpu)
    block = engine.pinned(50_000)
    block.view[:] = os.urandom(50_000)
    memory = engine.allocate(50_000)
    gpu.calls.clear()
    engine.upload(block.view, memory).wait()
    assert gpu.calls.count("cuMemcpyHtoDAsync") == 1
    assert read(engine, memory) == bytes(block.view)
    engine.close()
    assert not gpu.pinned_blocks  # and it was overwritten, or the stand-in complains


class Array:
    """What torch shows of a tensor."""

    def __init__(self, address, shape, typestr="<f4", strides=None, read_only=False):
        self.__cuda_array_interface__ = {
            "data": (address, read_only), "shape": shape, "typestr": typestr,
            "strides": strides, "version": 3,
        }  # fmt: skip


def test_memory_of_others_is_used_where_it_lies():
    gpu = model_gpu()
    engine = engine_on(gpu)
    torch_memory = StandInDriver(gpu)
    torch_memory.allocate = engine.core.driver.allocate
    address = torch_memory.allocate(4 * 600)
    plain = engine.borrow(Array(address, (20, 30)))
    assert plain.nbytes == 2400
    assert plain.__cuda_array_interface__["data"] == (address, False)
    content = os.urandom(2400)
    engine.upload(content, plain).wait()
    assert gpu.read(address, 2400) == content
    plain.close()
    assert gpu.read(address, 2400) == bytes(2400)  # scrubbed, not given back
    assert address in gpu.blocks
    for wrong in (
        Array(address, (20, 30), strides=(4, 80)),
        Array(address, (20, 30), read_only=True),
        object(),
    ):
        with pytest.raises(UsageError) as caught:
            engine.borrow(wrong)
        assert caught.value.code == "not-on-gpu"
    engine.close()


def test_streams_of_others_are_waited_for_and_can_wait():
    gpu = model_gpu()
    engine = engine_on(gpu)
    foreign = FOREIGN[7] = StandInStream(gpu)
    held = threading.Event()
    memory = engine.allocate(100)
    foreign.put(lambda: held.wait(300))
    engine.follow(7)
    ticket = engine.upload(b"x" * 100, memory)
    assert not ticket.is_done()
    held.set()
    ticket.wait()
    engine.lead(7)
    foreign.drain()
    foreign.end()
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_threads_share_an_engine(way):
    """Good and bad batches at once, more than there are tables: each gets its own answer."""
    engine = engine_on(model_gpu(), way)
    wrong = []

    def work(number):
        batch = Batch(GCM, (100, 3000))
        spoiled = bytearray(batch.sealed)
        spoiled[batch.places[1].sealed_offset] ^= 1
        key, plain = engine.key(GCM, batch.key), engine.allocate(batch.plain_bytes)
        memories = [on_device(engine, each) for each in (batch.sealed, spoiled)]
        for turn in range(12):
            bad = (turn + number) % 3 == 0
            verdicts = engine.open(key, memories[bad], plain, batch.places)
            try:
                verdicts.wait()
                right = not bad and read(engine, plain) == batch.plain
            except AuthenticationError:
                right = bad and not any(read(engine, plain))
            if not right:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    assert not any(each.is_alive() for each in threads)
    assert not wrong
    engine.close()


def test_a_scrub_that_does_not_hold_is_noticed():
    gpu = model_gpu()
    engine = engine_on(gpu)
    memory = engine.allocate(5000)
    engine.upload(b"x" * 10, memory, 4990).wait()
    engine.core.driver.zero = lambda address, nbytes, stream: (
        None
        if address == memory.address
        else StandInDriver.zero(engine.core.driver, address, nbytes, stream)
    )
    with pytest.raises(IntegrityError, match="10 bytes were not zero"):
        memory.scrub()
    del engine.core.driver.zero
    memory.scrub()
    engine.close()


def test_many_small_records_are_refused_as_one():
    """More records than the refusing kernel has blocks; the real kernels."""
    engine, case = gcc_engine(), make_case(GCM, [33] * 600)
    spoiled = bytearray(case.sealed)
    spoiled[case.places[599].sealed_offset] ^= 1
    sealed, plain = on_device(engine, spoiled), engine.allocate(len(case.plain))
    verdicts = engine.open(engine.key(GCM, case.key), sealed, plain, case.places)
    assert verdicts.collect() == b"\1" * 599 + b"\0"
    assert engine.core.count_nonzero(plain, 0, plain.nbytes) == 0
    with pytest.raises(AuthenticationError):
        verdicts.wait()
    engine.close()


def test_memory_of_another_gpu_is_not_borrowed(monkeypatch):
    engine = engine_on(model_gpu())
    address = engine.core.driver.allocate(600)
    monkeypatch.setattr(
        engine.core.driver, "residence", lambda _: Residence.OTHER_DEVICE
    )
    with pytest.raises(UsageError, match="another device's") as caught:
        engine.borrow(Array(address, (600,)))
    assert caught.value.code == "not-on-gpu"
    engine.core.driver.free(address)
    engine.close()
