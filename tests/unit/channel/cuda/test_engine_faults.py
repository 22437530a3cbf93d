"""What the engine does when the GPU does not: one line each, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import sealift
from sealift.channel.cuda.driver import CudaError, GpuFacts
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UnavailableError, UsageError
from tests.contract.test_device_engines import Batch, on_device, open_batch, read
from tests.sim.cuda_engines import WAYS, engine_on, model_gpu, opened_on
from tests.sim.cuda_standin import StandInDriver

GCM = Suite.AES_256_GCM
ROOT = Path(__file__).resolve().parents[4]
SOURCE = Path(sealift.__file__).parent


def code_of(error: pytest.ExceptionInfo) -> tuple[str, int]:
    return error.value.code, error.value.exit_code


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_without_memory_says_so_and_goes_on(way):
    gpu = model_gpu(memory_bytes=4 << 20)
    engine = engine_on(gpu, way)
    with pytest.raises(UnavailableError, match="no room for 8,388,608 bytes") as caught:
        engine.allocate(8 << 20)
    assert code_of(caught) == ("device-out-of-memory", 3)
    batch = Batch(GCM)
    plain, verdicts = open_batch(engine, GCM, batch)
    verdicts.wait()
    assert read(engine, plain) == batch.plain
    engine.close()
    assert not gpu.blocks
    assert not gpu.pinned_blocks


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_finds_no_room_gives_back_what_it_took(way):
    for room in (0, 4096, 40_000, 80_000, 200_000):
        gpu = model_gpu(memory_bytes=room)
        with suppress(CudaError):
            engine_on(gpu, way).close()
        assert not gpu.blocks, room
        assert not gpu.pinned_blocks, room


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lost_at", [0, 1, 3, 7, 12, 20, 33])
def test_a_gpu_that_disappears_ends_every_call_with_one_line(way, lost_at):
    gpu = model_gpu()
    engine = engine_on(gpu, way)
    batch = Batch(GCM)
    plain, key = engine.allocate(batch.plain_bytes), engine.key(GCM, batch.key)
    sealed = on_device(engine, batch.sealed)
    gpu.lose_after = lost_at

    def work_for_ever():
        while True:
            engine.open(key, sealed, plain, batch.places).wait()
            read(engine, plain)

    with pytest.raises(UnavailableError) as caught:
        work_for_ever()
    assert code_of(caught) == ("device-lost", 3)
    assert "last checkpoint" in str(caught.value)
    engine.close()  # and closing it does not fail
    with pytest.raises(UnavailableError):
        engine.allocate(1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", ["model_open", "sealift_refuse_batch"])
def test_a_kernel_that_fails_never_passes_as_a_verdict(way, kernel):
    gpu = model_gpu()
    engine = engine_on(gpu, way)
    batch = Batch(GCM)
    gpu.fail_kernel = kernel
    _, verdicts = open_batch(engine, GCM, batch)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="ILLEGAL_ADDRESS") as caught:
            verdicts.wait()
    assert caught.value.code == "device-lost"
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_keys_are_gone_from_the_gpu_after_close(way):
    gpu = model_gpu()
    engine = engine_on(gpu, way)
    secrets = [os.urandom(32) for _ in range(3)]
    keys = [engine.key(GCM, SecretKey(secret)) for secret in secrets]
    assert all(gpu.leftovers(secret) == 1 for secret in secrets)  # expanded, not raw
    address = keys[0].memory.address
    kept = gpu.blocks[address]
    keys[0].close()
    assert not any(kept[:])
    blocks = list(gpu.blocks.values())
    engine.close()
    assert not any(secret in block[:] for secret in secrets for block in blocks)


AT_EXIT = """
import atexit
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from tests.sim.cuda_engines import engine_on, model_gpu
gpu = model_gpu()
atexit.register(lambda: print(any(block[:].count(b"k" * 32) for block in blocks)))
engine = engine_on(gpu)
key = engine.key(Suite.AES_256_GCM, SecretKey(b"k" * 32))
blocks = list(gpu.blocks.values())
print(any(block[:].count(b"k" * 32) for block in blocks))
{how}
"""


@pytest.mark.parametrize("how", ["", "raise SystemExit(0)"])
def test_keys_are_overwritten_when_the_process_ends(how):
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(how=how)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(SOURCE.parent), str(ROOT))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_key_that_cannot_be_expanded_is_not_left_on_the_gpu():
    gpu = model_gpu()
    engine = engine_on(gpu)
    gpu.fail_kernel = "model_expand"
    with pytest.raises(UnavailableError):
        engine.key(GCM, SecretKey(b"k" * 32))
    engine.close()
    with pytest.raises(UsageError):
        engine_on(model_gpu()).key(GCM, SecretKey(b"k" * 16))


def test_a_suite_the_kernels_lack_is_refused():
    engine = engine_on(model_gpu())
    engine._core.kernels.suites = lambda: (Suite.CHACHA20_POLY1305,)
    with pytest.raises(UnavailableError) as caught:
        engine.key(GCM, SecretKey.generate())
    assert caught.value.code == "no-such-suite"
    engine.close()


def test_a_forked_child_may_not_touch_the_gpu():
    gpu = model_gpu()
    engine = engine_on(gpu)
    engine._process += 1  # as a child sees it
    with pytest.raises(UnavailableError, match="forked"):
        engine.allocate(10)
    calls = len(gpu.calls)
    engine.close()
    assert len(gpu.calls) == calls
    engine._process -= 1
    engine.close()


def test_a_gpu_that_is_too_old_is_refused_before_anything_is_built():
    class Old(StandInDriver):
        def __init__(self, gpu):
            super().__init__(gpu)
            facts = self.facts
            self.facts = GpuFacts("Old GPU", (7, 0), 1, facts.memory_bytes, 13_000, 1)

    from sealift.channel.cuda.opening import open_cuda

    gpu = model_gpu()
    with pytest.raises(UnavailableError, match=r"has compute capability 7.0") as caught:
        open_cuda(driver=lambda _: Old(gpu))
    assert code_of(caught) == ("gpu-unsupported", 3)
    assert gpu.contexts == 0


class Mutant:
    """Runs the models, and spoils what one of them does."""

    def __init__(self, name, spoil):
        from tests.sim.model_kernels import ModelRunner

        self._models, self._name, self._spoil = ModelRunner(), name, spoil

    def has(self, name):
        return self._models.has(name)

    def run(self, name, grid, arguments):
        numbers = [int(each.value) for each in arguments]
        self._models.run(name, grid, arguments)
        if name == self._name:
            self._spoil(*numbers)


def accept_all(_records, count, *rest):
    from sealift.channel.cuda.staging import view_at

    view_at(rest[-2], count)[:] = b"\1" * count


def flip_plaintext(*numbers):
    from sealift.channel.cuda.staging import view_at

    view_at(numbers[6], 1000)[999] ^= 1


def flip_sealed(*numbers):
    from sealift.channel.cuda.staging import view_at

    view_at(numbers[5], 1000)[999] ^= 1


MUTANTS = {
    "accepts every tag": ("model_open", accept_all, "not notice"),
    "opens to other bytes": ("model_open", flip_plaintext, "not open"),
    "seals other bytes": ("model_seal", flip_sealed, "its sealed bytes differ"),
    "refuses nothing of the batch": ("sealift_refuse_batch", None, "not notice"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_engine_with_wrong_kernels_is_refused_by_name(name):
    from sealift.channel.cuda.opening import EDGES, self_test

    kernel, spoil, said = MUTANTS[name]
    gpu = model_gpu()
    gpu.runner = Mutant(kernel, spoil or (lambda *_: None))
    if spoil is None:
        inner = gpu.runner.run
        gpu.runner.run = lambda n, *rest: None if n == kernel else inner(n, *rest)
    with pytest.raises(UnavailableError, match=said) as caught:
        opened_on(gpu, test=lambda engine: self_test(engine, lengths=EDGES))
    assert code_of(caught) == ("engine-self-test", 3)
    assert "engine cuda failed" in str(caught.value)
    assert not gpu.blocks
    assert gpu.contexts == 0


def test_the_right_kernels_pass_with_records_of_every_length():
    engine = opened_on(model_gpu())
    assert engine.suites() == tuple(Suite)
    engine.close()


def test_only_the_spoiled_record_is_blamed_and_later_batches_are_not_harmed():
    """The refusal of a batch must not overwrite what was opened there since."""
    engine = engine_on(model_gpu())
    good, bad = Batch(GCM), Batch(GCM)
    spoiled = bytearray(bad.sealed)
    spoiled[bad.places[6].sealed_offset] ^= 1
    plain = engine.allocate(good.plain_bytes)
    first = engine.open(
        engine.key(GCM, bad.key), on_device(engine, spoiled), plain, bad.places
    )
    second = engine.open(
        engine.key(GCM, good.key), on_device(engine, good.sealed), plain, good.places
    )
    with pytest.raises(AuthenticationError):
        first.wait()
    second.wait()
    assert first.collect() == bytes([1, 1, 1, 1, 1, 1, 0, 1])
    assert read(engine, plain) == good.plain
    engine.close()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (2, "device-out-of-memory"), (34, "no-gpu"), (46, "device-lost"),
        (100, "no-gpu"), (209, "gpu-kernels-refused"), (222, "gpu-kernels-refused"),
        (700, "device-lost"), (719, "device-lost"), (801, "gpu-unsupported"),
        (802, "gpu-not-ready"), (803, "gpu-driver-too-old"), (916, "device-lost"),
        (999, "device-lost"), (1, "gpu-error"),
    ],
)  # fmt: skip
def test_every_error_of_the_driver_has_a_name(number, code):
    error = CudaError("cuCall", number, "CUDA_ERROR_X", asked_bytes=5).to_error()
    assert error.code == code
    assert f"cuCall: CUDA_ERROR_X ({number})" in str(error)
