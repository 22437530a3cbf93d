"""Memory that the engine shares with another process: zero at first, scrubbed at the end."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from sealift.channel.cuda.opening import open_cuda
from sealift.errors import SealiftError, UnavailableError
from tests.sim.cuda_engines import engine_on, gcc_engine, model_gpu


def test_both_ends_see_what_either_writes() -> None:
    engine = gcc_engine()
    memory = engine.share(5000)
    there = mmap.mmap(os.dup(memory.descriptor), 5000)  # the worker's end
    assert there[:] == bytes(5000)
    engine.upload(b"a" * 100, memory, 7).wait()
    assert there[7:107] == b"a" * 100
    there[2000:2003] = b"xyz"
    found = bytearray(3)
    engine.download(memory, 2000, found).wait()
    assert found == b"xyz"
    memory.close()
    assert there[:] == bytes(5000)
    engine.close()


def test_its_descriptor_ends_with_it() -> None:
    engine = engine_on(model_gpu())
    memory = engine.share(4096)
    descriptor = memory.descriptor
    memory.close()
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(SealiftError):
        engine.upload(b"a", memory)
    engine.close()


def test_an_engine_gives_back_what_is_still_shared() -> None:
    gpu = model_gpu()
    engine = engine_on(gpu)
    memory = engine.share(4096)
    there = mmap.mmap(os.dup(memory.descriptor), 4096)
    there[:4] = b"left"
    engine.close()
    assert there[:4] == bytes(4)
    assert not gpu.used_bytes


def test_more_than_there_is_is_refused() -> None:
    engine = engine_on(model_gpu(memory_bytes=64 << 20))
    with pytest.raises(UnavailableError) as caught:
        engine.share(1 << 30)
    assert caught.value.code == "device-out-of-memory"
    engine.close()


WORKER = """
import ctypes, sys
from sealift.channel.cuda.bindings import open_driver
descriptor, nbytes = map(int, sys.argv[1:])
driver = open_driver()
address, stream = driver.map_shared(descriptor, nbytes), driver.stream()
own, event = ctypes.create_string_buffer(nbytes), driver.event()
driver.copy_to_host(ctypes.addressof(own), address, nbytes, stream)
driver.record(event, stream)
driver.synchronize(event)
assert own.raw == b"p" * nbytes
ctypes.memset(own, ord("w"), nbytes)
driver.copy_to_device(address, ctypes.addressof(own), nbytes, stream)
driver.record(event, stream)
driver.synchronize(event)
driver.free_shared(address, nbytes)
driver.close()
"""


@pytest.mark.gpu
def test_another_process_maps_it_on_a_gpu() -> None:
    nbytes = 3 << 20
    engine = open_cuda(test=lambda _: None)
    memory = engine.share(nbytes)
    engine.upload(b"p" * nbytes, memory).wait()
    subprocess.run(
        [sys.executable, "-c", WORKER, str(memory.descriptor), str(nbytes)],
        pass_fds=[memory.descriptor],
        check=True,
    )
    found = bytearray(nbytes)
    engine.download(memory, 0, found).wait()
    assert found == b"w" * nbytes
    memory.close()
    engine.close()
