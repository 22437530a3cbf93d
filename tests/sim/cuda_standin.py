"""A CUDA driver without a GPU: host memory, and streams that are threads.

What it is: the protocol `channel.cuda.driver.Driver`, work of a stream in order on a
thread of its own, events that stand where they were recorded, kernels that somebody
else runs (compiled by gcc, or models). What it is not: a GPU. No timing of it means
anything, and it never raced a real one.

Faults are what a test sets on the `StandInGpu`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sealift.channel.cuda.driver import (
    Argument,
    CudaError,
    GpuFacts,
    Grid,
    PreparedCall,
    Residence,
)

PinnedKind = Literal["true", "refused", "ordinary", "synchronous", "stale"]
NAME = "stand-in of the tests: host memory, no GPU"


class KernelRunner(Protocol):
    """Runs kernels on host memory."""

    def run(self, name: str, grid: Grid, arguments: Sequence[Argument]) -> None: ...

    def has(self, name: str) -> bool: ...


@dataclass
class StandInGpu:
    """The state that all contexts of one stand-in share, and what goes wrong.

    Attributes:
        runner: Runs its kernels.
        memory_bytes: How much it has; above that it is out of memory.
        pinned: What pinned memory is: as asked for, refused, ordinary memory, memory
            whose copies are waited for (as in CC mode), or memory that delivers stale
            bytes.
        pinnable_bytes: How much host memory can be pinned.
        copy_s: How long a crossing takes besides.
        lose_after: Fall off the bus after so many queued operations.
        fail_kernel: A kernel that fails when it is run.
        sticky: The error that ended it.
    """

    runner: KernelRunner
    memory_bytes: int = 1 << 30
    pinned: PinnedKind = "true"
    pinnable_bytes: int = 1 << 30
    copy_s: float = 0.0
    lose_after: int | None = None
    fail_kernel: str | None = None
    sticky: CudaError | None = None
    used_bytes: int = 0
    contexts: int = 0
    calls: list[str] = field(default_factory=list)
    blocks: dict[int, mmap.mmap] = field(default_factory=dict)
    pinned_blocks: dict[int, mmap.mmap] = field(default_factory=dict)
    registered: dict[int, int] = field(default_factory=dict)
    owners: dict[int, object] = field(default_factory=dict)
    launched: list[tuple[str, Grid]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def count(self, call: str) -> None:
        """One more call; the GPU may be gone, or go with this one."""
        with self.lock:
            self.calls.append(call)
            if self.lose_after is not None:
                self.lose_after -= 1
                if self.lose_after < 0:
                    self.sticky = CudaError(call, 999, "CUDA_ERROR_UNKNOWN")
            if self.sticky is not None:
                lost = self.sticky
                raise CudaError(call, lost.number, lost.name)

    def lose(self) -> None:
        """Fall off the bus now."""
        self.sticky = CudaError(
            "cuEventSynchronize", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE"
        )

    def read(self, address: int, nbytes: int) -> bytes:
        """Look into its memory, past every rule."""
        return ctypes.string_at(address, nbytes)

    def leftovers(self, text: bytes) -> int:
        """In how many of its blocks some bytes stand."""
        return sum(block[:].count(text) > 0 for block in list(self.blocks.values()))


class Mark:
    """A point in a stream."""

    def __init__(self) -> None:
        self.past = threading.Event()


class StandInEvent:
    def __init__(self) -> None:
        self.mark: Mark | None = None


class StandInStream:
    """A thread that does one thing after the other."""

    def __init__(self, gpu: StandInGpu) -> None:
        self.gpu = gpu
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="stand-in")
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def drain(self) -> None:
        mark = Mark()
        self._work.put(mark.past.set)
        mark.past.wait()

    def end(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except CudaError as fault:
                self.gpu.sticky = fault


class StandInDriver:
    """One context of a `StandInGpu`."""

    def __init__(self, gpu: StandInGpu) -> None:
        self.gpu = gpu
        gpu.contexts += 1
        self.closed = False
        self.facts = GpuFacts(
            name=NAME,
            capability=(9, 0),
            multiprocessors=4,
            memory_bytes=gpu.memory_bytes,
            driver=13_000,
            copy_engines=2,
            real=False,
        )

    # ------------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> int:
        self.gpu.count("cuMemAlloc")
        with self.gpu.lock:
            if self.gpu.used_bytes + nbytes > self.gpu.memory_bytes:
                name = "CUDA_ERROR_OUT_OF_MEMORY"
                raise CudaError("cuMemAlloc", 2, name, asked_bytes=nbytes)
            self.gpu.used_bytes += nbytes
            address = _map(self.gpu.blocks, nbytes, fill=0xA5)
            self.gpu.owners[address] = self
            return address

    def free(self, address: int) -> None:
        self.gpu.count("cuMemFree")
        with self.gpu.lock:
            assert self.gpu.owners.pop(address) is self, "freed by another context"
            self.gpu.used_bytes -= len(self.gpu.blocks[address])
            _unmap(self.gpu.blocks, address)

    def allocate_shared(self, nbytes: int) -> tuple[int, int]:
        self.gpu.count("cuMemCreate")
        with self.gpu.lock:
            if self.gpu.used_bytes + nbytes > self.gpu.memory_bytes:
                name = "CUDA_ERROR_OUT_OF_MEMORY"
                raise CudaError("cuMemCreate", 2, name, asked_bytes=nbytes)
            descriptor = os.memfd_create("gpu")
            os.ftruncate(descriptor, max(nbytes, 1))
            return self._map_file(descriptor, nbytes), descriptor

    def map_shared(self, descriptor: int, nbytes: int) -> int:
        self.gpu.count("cuMemImportFromShareableHandle")
        with self.gpu.lock:
            return self._map_file(descriptor, nbytes)

    def free_shared(self, address: int, nbytes: int) -> None:
        self.gpu.count("cuMemUnmap")
        self.free(address)

    def _map_file(self, descriptor: int, nbytes: int) -> int:
        block = mmap.mmap(descriptor, max(nbytes, 1))
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self.gpu.blocks[address] = block
        self.gpu.owners[address] = self
        self.gpu.used_bytes += len(block)
        return address

    def allocate_host(self, nbytes: int) -> int:
        self.gpu.count("cuMemHostAlloc")
        if self.gpu.pinned == "refused":
            raise CudaError("cuMemHostAlloc", 801, "CUDA_ERROR_NOT_SUPPORTED")
        self._take_pinned("cuMemHostAlloc", nbytes)
        return _map(self.gpu.pinned_blocks, nbytes, fill=0)

    def free_host(self, address: int) -> None:
        self.gpu.count("cuMemFreeHost")
        block = self.gpu.pinned_blocks[address]
        assert not any(block[:]), "pinned memory was given back with content"
        _unmap(self.gpu.pinned_blocks, address)

    def pin_host(self, address: int, nbytes: int) -> None:
        self.gpu.count("cuMemHostRegister")
        self._take_pinned("cuMemHostRegister", nbytes)
        assert address not in self.gpu.registered, "pinned twice"
        self.gpu.registered[address] = nbytes

    def unpin_host(self, address: int) -> None:
        self.gpu.count("cuMemHostUnregister")
        del self.gpu.registered[address]

    def residence(self, address: int) -> Residence:
        self.gpu.count("cuPointerGetAttribute")
        if _inside(self.gpu.blocks, address):
            return Residence.DEVICE
        if self._is_pinned(address) and self.gpu.pinned != "ordinary":
            return Residence.PINNED
        return Residence.UNKNOWN

    def free_bytes(self) -> int:
        return self.gpu.memory_bytes - self.gpu.used_bytes

    # ---------------------------------------------------------- streams and events

    def stream(self) -> StandInStream:
        self.gpu.count("cuStreamCreate")
        return StandInStream(self.gpu)

    def foreign_stream(self, pointer: int) -> Any:
        return FOREIGN[pointer]

    def event(self, *, timed: bool = False) -> StandInEvent:
        self.gpu.count("cuEventCreate")
        return StandInEvent()

    def record(self, event: StandInEvent, stream: StandInStream) -> None:
        self.gpu.count("cuEventRecord")
        mark = event.mark = Mark()
        stream.put(mark.past.set)

    def wait(self, stream: StandInStream, event: StandInEvent) -> None:
        self.gpu.count("cuStreamWaitEvent")
        if (mark := event.mark) is not None:
            stream.put(lambda: _discard(mark.past.wait()))

    def is_done(self, event: StandInEvent) -> bool:
        self.gpu.count("cuEventQuery")
        return event.mark is None or event.mark.past.is_set()

    def synchronize(self, event: StandInEvent) -> None:
        self.gpu.count("cuEventSynchronize")
        if event.mark is not None:
            assert event.mark.past.wait(300), "the stand-in waited for ever"
        if self.gpu.sticky is not None:
            raise self.gpu.sticky

    def seconds_between(self, first: StandInEvent, second: StandInEvent) -> float:
        return 1e-3

    # ------------------------------------------------------------------- copies

    def copy_to_device(
        self, to: int, origin: int, nbytes: int, stream: StandInStream
    ) -> None:
        self.gpu.count("cuMemcpyHtoDAsync")
        self._copy(to, origin, nbytes, stream, host=origin)

    def copy_to_host(
        self, to: int, origin: int, nbytes: int, stream: StandInStream
    ) -> None:
        self.gpu.count("cuMemcpyDtoHAsync")
        if self.gpu.pinned == "stale" and _inside(self.gpu.pinned_blocks, to):
            return
        self._copy(to, origin, nbytes, stream, host=to)

    def copy_on_device(
        self, to: int, origin: int, nbytes: int, stream: StandInStream
    ) -> None:
        self.gpu.count("cuMemcpyDtoDAsync")
        self._require(to, nbytes)
        self._require(origin, nbytes)
        stream.put(lambda: _move(to, origin, nbytes))

    def copy_to_context(
        self, other: StandInDriver, to: int, origin: int, nbytes: int, stream: Any
    ) -> None:
        self.gpu.count("cuMemcpyPeerAsync")
        self._require(origin, nbytes)
        other._require(to, nbytes)
        stream.put(lambda: _move(to, origin, nbytes))

    def zero(self, address: int, nbytes: int, stream: StandInStream) -> None:
        self.gpu.count("cuMemsetD8Async")
        self._require(address, nbytes)
        stream.put(lambda: _discard(ctypes.memset(address, 0, nbytes)))

    # ------------------------------------------------------------------- kernels

    def load(self, code: bytes) -> bytes:
        self.gpu.count("cuModuleLoadData")
        if not code:
            raise CudaError("cuModuleLoadData", 200, "CUDA_ERROR_INVALID_IMAGE")
        return code

    def kernel(self, module: bytes, name: str) -> str:
        self.gpu.count("cuModuleGetFunction")
        if not self.gpu.runner.has(name):
            raise CudaError("cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND")
        return name

    def launch(
        self,
        kernel: str,
        grid: Grid,
        arguments: Sequence[Argument],
        stream: StandInStream,
    ) -> None:
        self.gpu.count("cuLaunchKernel")
        if grid.blocks < 1:
            raise CudaError("cuLaunchKernel", 1, "CUDA_ERROR_INVALID_VALUE")
        kept = tuple(arguments)
        self.gpu.launched.append((kernel, grid))

        def run() -> None:
            if self.gpu.sticky is not None:
                return  # after an error nothing runs any more
            if kernel == self.gpu.fail_kernel:
                raise CudaError("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")
            self.gpu.runner.run(kernel, grid, kept)

        stream.put(run)

    # ------------------------------------------------------------ calls made ready

    def copy_call(self, *arguments: Any) -> PreparedCall:
        return PreparedCall(
            "cuMemcpyHtoDAsync", self._made(self.copy_to_device), arguments
        )

    def copy_back_call(self, *arguments: Any) -> PreparedCall:
        return PreparedCall(
            "cuMemcpyDtoHAsync", self._made(self.copy_to_host), arguments
        )

    def record_call(self, *arguments: Any) -> PreparedCall:
        return PreparedCall("cuEventRecord", self._made(self.record), arguments)

    def wait_call(self, *arguments: Any) -> PreparedCall:
        return PreparedCall("cuStreamWaitEvent", self._made(self.wait), arguments)

    def launch_call(self, *arguments: Any) -> PreparedCall:
        return PreparedCall("cuLaunchKernel", self._made(self.launch), arguments)

    def issue(self, calls: Iterable[PreparedCall]) -> None:
        for call in calls:
            if number := call.make(*call.arguments):
                raise CudaError(call.name, number, "CUDA_ERROR_OF_A_CALL")

    @staticmethod
    def _made(method: Callable[..., None]) -> Callable[..., int]:
        def make(*arguments: Any) -> int:
            method(*arguments)
            return 0

        return make

    def release(self, thing: object) -> None:
        if isinstance(thing, StandInStream):
            thing.end()

    def another_context(self) -> StandInDriver:
        self.gpu.count("cuCtxCreate")
        return StandInDriver(self.gpu)

    def close(self) -> None:
        self.closed = True
        self.gpu.contexts -= 1

    def _copy(
        self, to: int, origin: int, nbytes: int, stream: StandInStream, *, host: int
    ) -> None:
        self._require(to if host == origin else origin, nbytes)
        stream.put(lambda: time.sleep(self.gpu.copy_s))
        stream.put(lambda: _move(to, origin, nbytes))
        slow = self.gpu.pinned in ("synchronous", "ordinary")
        if slow or not self._is_pinned(host):
            stream.drain()

    def _take_pinned(self, call: str, nbytes: int) -> None:
        taken = sum(map(len, self.gpu.pinned_blocks.values()))
        taken += sum(self.gpu.registered.values())
        if taken + nbytes > self.gpu.pinnable_bytes:
            raise CudaError(call, 2, "CUDA_ERROR_OUT_OF_MEMORY", asked_bytes=nbytes)

    def _is_pinned(self, address: int) -> bool:
        registered = self.gpu.registered.items()
        return bool(_inside(self.gpu.pinned_blocks, address)) or any(
            start <= address < start + nbytes for start, nbytes in registered
        )

    def _require(self, address: int, nbytes: int) -> None:
        """The range lies in one block of this context."""
        found = _inside(self.gpu.blocks, address)
        owner = self.gpu.owners.get(found) if found else None
        end = found + len(self.gpu.blocks[found]) if found else 0
        if owner is not self or address + nbytes > end:
            raise CudaError("copy", 1, "CUDA_ERROR_INVALID_VALUE")


FOREIGN: dict[int, StandInStream] = {}


def _map(blocks: dict[int, mmap.mmap], nbytes: int, *, fill: int) -> int:
    block = mmap.mmap(-1, nbytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    if fill:
        ctypes.memset(address, fill, nbytes)
    blocks[address] = block
    return address


def _unmap(blocks: dict[int, mmap.mmap], address: int) -> None:
    blocks.pop(address)  # closed with the last view of it


def _inside(blocks: dict[int, mmap.mmap], address: int) -> int:
    for start, block in list(blocks.items()):
        if start <= address < start + len(block):
            return start
    return 0


def _move(to: int, origin: int, nbytes: int) -> None:
    ctypes.memmove(to, origin, nbytes)


def _discard(_: object) -> None:
    """Nothing to say."""
