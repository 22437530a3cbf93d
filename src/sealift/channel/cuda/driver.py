"""What the engine needs of a CUDA driver, and nothing more.

Addresses are integers; streams, events, kernels and graphs are the driver's own objects.
Every call may raise ``CudaError``. The real one is ``bindings.CudaDriver``; tests have
one that runs the same kernels, compiled by gcc, on host memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

Argument = ctypes.c_uint32 | ctypes.c_uint64
"""One argument of a kernel; addresses are 64 bits."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What a GPU says about itself.

    Attributes:
        name: As the driver says it; a stand-in says that it is one.
        capability: Major and minor compute capability.
        multiprocessors: How many.
        memory_bytes: All of its memory.
        driver: CUDA version of the driver, 1000 * major + 10 * minor.
        copy_engines: How many copies can run beside kernels.
        real: Whether it is a GPU.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    driver: int
    copy_engines: int
    real: bool = True


@dataclass(frozen=True, slots=True)
class Grid:
    """How a kernel is spread: blocks, threads in each, dynamic shared memory in each."""

    blocks: int
    threads: int
    shared_bytes: int = 0


class Residence(Enum):
    """Where the driver says an address lies."""

    DEVICE = "device"
    OTHER_DEVICE = "another device's"
    PINNED = "pinned"
    MANAGED = "managed"
    UNKNOWN = "unknown"


class Driver(Protocol):
    """One context of one GPU. All of it may be called from any thread."""

    facts: GpuFacts

    def allocate(self, nbytes: int) -> int:
        """Device memory; its address, a multiple of 256."""

    def free(self, address: int) -> None:
        """Give device memory back; waits for work that uses it."""

    def allocate_host(self, nbytes: int) -> int:
        """Host memory that the driver says is pinned; its address."""

    def free_host(self, address: int) -> None:
        """Give it back."""

    def residence(self, address: int) -> Residence:
        """Where the driver knows this address to lie."""

    def free_bytes(self) -> int:
        """Device memory that is free now."""

    def stream(self) -> Any:
        """A new stream that does not wait for the default stream."""

    def foreign_stream(self, pointer: int) -> Any:
        """Somebody else's stream, by its pointer (0 is the default stream)."""

    def event(self, *, timed: bool = False) -> Any:
        """A new event; what was never recorded counts as done."""

    def copy_to_device(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Queue a copy from host memory."""

    def copy_to_host(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Queue a copy to host memory."""

    def copy_on_device(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Queue a copy inside the device."""

    def copy_to_context(
        self, other: Any, to: int, origin: int, nbytes: int, stream: Any
    ) -> None:
        """Queue a copy of this context's memory into that of ``other``, a driver."""

    def zero(self, address: int, nbytes: int, stream: Any) -> None:
        """Queue overwriting device memory with zeroes."""

    def record(self, event: Any, stream: Any) -> None:
        """Queue ``event`` behind what ``stream`` was given so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """What ``stream`` is given from now on waits for ``event``."""

    def is_done(self, event: Any) -> bool:
        """Whether what ``event`` stands behind has finished."""

    def synchronize(self, event: Any) -> None:
        """Return when what ``event`` stands behind has finished."""

    def seconds_between(self, first: Any, second: Any) -> float:
        """Time on the device between two timed events."""

    def load(self, code: bytes) -> Any:
        """A module from the bytes that the compiler made."""

    def kernel(self, module: Any, name: str) -> Any:
        """One kernel of a module."""

    def launch(
        self,
        kernel: Any,
        grid: Grid,
        arguments: Sequence[Argument],
        stream: Any,
    ) -> None:
        """Queue a kernel."""

    def release(self, thing: Any) -> None:
        """Give a stream, event or module back."""

    def another_context(self) -> Driver:
        """Another context of the same GPU, with a channel of its own."""

    def close(self) -> None:
        """Give the context back."""
