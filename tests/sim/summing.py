"""Devices that add up what lies in their memory: the host's stand-in, and the real kernels."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.channel import pipe_over
from benchmarks.harness import pack
from sealift.channel.device.device import DeviceTensor, SummingEngine
from sealift.channel.device.host import HostDevice, HostMemory, QueuedWork
from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpTransport
from sealift.crypto.keys import KEY_BYTES
from sealift.session.devicepipe import DevicePipe
from tests.sim.cuda_engines import gcc_engine


class SharedHostMemory(HostMemory):
    """A memory file, which another process can map."""

    def __init__(self, nbytes: int) -> None:
        self.descriptor = os.memfd_create("gpu")
        os.ftruncate(self.descriptor, nbytes)
        super().__init__(memoryview(mmap.mmap(self.descriptor, nbytes)), self._end)

    def _end(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


class SummingHost(HostDevice):
    """The host's stand-in with sums by numpy, which the product's has none of."""

    def pinned(self, nbytes: int) -> None:
        return None

    def share(self, nbytes: int) -> SharedHostMemory:
        return SharedHostMemory(nbytes)

    def add(self, total: DeviceTensor, part: DeviceTensor) -> QueuedWork:
        array_of(total)[...] += array_of(part)
        return QueuedWork()

    def weigh(
        self, total: DeviceTensor, part: DeviceTensor, factor: float
    ) -> QueuedWork:
        own = array_of(part)
        array_of(total)[...] = own * own.dtype.type(factor)
        return QueuedWork()

    def copy(self, total: DeviceTensor, part: DeviceTensor) -> QueuedWork:
        array_of(total)[...] = array_of(part)
        return QueuedWork()

    def first_odd(self, tensor: DeviceTensor) -> int | None:
        finite = np.isfinite(array_of(tensor))
        return None if finite.all() else int(np.argmin(finite))


SUMMING: dict[str, Callable[[], SummingEngine]] = {
    "host": lambda: SummingHost(threads=1),
    "cuda-gcc": gcc_engine,
}


def array_of(tensor: DeviceTensor) -> Any:
    """The numbers of a tensor in the stand-in's memory, where they are."""
    memory = tensor.memory
    assert isinstance(memory, HostMemory)
    memory.require_open()
    return np.frombuffer(memory.view, tensor.dtype, tensor.size, tensor.offset)


def put(engine: SummingEngine, numbers: Any) -> DeviceTensor:
    """Numbers in memory of their own on a device."""
    memory = engine.allocate(numbers.nbytes)
    engine.upload(numbers.tobytes(), memory).wait()
    return DeviceTensor(memory, 0, numbers.size, str(numbers.dtype))


def read(engine: SummingEngine, tensor: DeviceTensor) -> Any:
    """What they are now."""
    out = bytearray(tensor.nbytes)
    engine.download(tensor.memory, tensor.offset, out).wait()
    return np.frombuffer(out, tensor.dtype)


def pipes_of(world: int, kind: str = "memfd") -> list[dict[int, DevicePipe]]:
    """A pipe for every pair of ranks, both ends in this process."""
    from concurrent.futures import ThreadPoolExecutor

    found: list[dict[int, DevicePipe]] = [{} for _ in range(world)]
    with ThreadPoolExecutor(2) as pool:
        for one in range(world):
            for two in range(one + 1, world):
                seed = pack(os.urandom(KEY_BYTES))
                a, b = carriers(kind)
                ends = [
                    pool.submit(
                        lambda m=make, s=seed, o=opens: pipe_over(m(), s, opens=o)
                    )
                    for make, opens in ((a, True), (b, False))
                ]
                found[one][two], found[two][one] = (each.result() for each in ends)
    return found


def carriers(kind: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What makes both ends of a carrier; they wait for each other."""
    if kind == "memfd":
        a, b = socket.socketpair()
        return lambda: MemfdTransport.offer(a), lambda: MemfdTransport.accept(b)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        a, b = socket.create_connection(listener.getsockname()), listener.accept()[0]
    return lambda: TcpTransport(a), lambda: TcpTransport(b)
