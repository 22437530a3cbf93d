"""What the engine needs of a CUDA driver, and nothing more.

Addresses are integers; streams, events, kernels and graphs are the driver's own objects.
Every call may raise ``CudaError``. The real one is ``bindings.CudaDriver``; tests have
one that runs the same kernels, compiled by gcc, on host memory.

What a failed CUDA call means to the person who reads the line.

A fault is the driver's number and name; ``to_error`` gives the class, the code and what
to do. The numbers are those of ``CUresult`` (CUDA driver API reference, data types).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from sealift.channel.device.device import (
    device_lost,
    device_out_of_memory,
    no_pinned_memory,
)
from sealift.errors import SealiftError, UnavailableError

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


class PreparedCall(NamedTuple):
    """One call made ready: nothing is converted or looked up when it is made.

    Attributes:
        name: The driver's.
        make: Makes it; what it returns is 0, or the number of an error.
        arguments: What it is given.
        kept: What must live until it was made.
    """

    name: str
    make: Callable[..., int]
    arguments: tuple[Any, ...]
    kept: object = None


class Driver(Protocol):
    """One context of one GPU. All of it may be called from any thread."""

    facts: GpuFacts

    def allocate(self, nbytes: int) -> int:
        """Device memory; its address, a multiple of 256."""

    def free(self, address: int) -> None:
        """Give device memory back; waits for work that uses it."""

    def allocate_shared(self, nbytes: int) -> tuple[int, int]:
        """Device memory that another process can map: address, and a descriptor of it."""

    def map_shared(self, descriptor: int, nbytes: int) -> int:
        """Map what another process allocated; the descriptor can be closed then."""

    def free_shared(self, address: int, nbytes: int) -> None:
        """Give a mapping back; the memory goes with the last one."""

    def allocate_host(self, nbytes: int) -> int:
        """Host memory that the driver says is pinned; its address."""

    def free_host(self, address: int) -> None:
        """Give it back."""

    def pin_host(self, address: int, nbytes: int) -> None:
        """Pin host memory that is there."""

    def unpin_host(self, address: int) -> None:
        """Let it go; nothing may be copied from or to it any more."""

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
        self, kernel: Any, grid: Grid, arguments: Sequence[Argument], stream: Any
    ) -> None:
        """Queue a kernel."""

    def copy_call(self, to: int, origin: int, nbytes: int, stream: Any) -> PreparedCall:
        """``copy_to_device``, from pinned memory."""

    def copy_back_call(
        self, to: int, origin: int, nbytes: int, stream: Any
    ) -> PreparedCall:
        """``copy_to_host``, to pinned memory."""

    def record_call(self, event: Any, stream: Any) -> PreparedCall:
        """``record``."""

    def wait_call(self, stream: Any, event: Any) -> PreparedCall:
        """``wait``."""

    def launch_call(
        self, kernel: Any, grid: Grid, arguments: Sequence[Argument], stream: Any
    ) -> PreparedCall:
        """``launch``."""

    def issue(self, calls: Iterable[PreparedCall]) -> None:
        """Make calls that only queue something, one right after the other.

        Raises:
            CudaError: of the first that fails; none is made after it.
        """

    def release(self, thing: Any) -> None:
        """Give a stream, event or module back."""

    def another_context(self) -> Driver:
        """Another context of the same GPU, with a channel of its own."""

    def close(self) -> None:
        """Give the context back."""


OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
_PINNING: Final = ("cuMemHostAlloc", "cuMemHostRegister")
NEEDED_DRIVER: Final = 13_000

_KERNEL: Final = {700, 701, 702, 710, 714, 715, 716, 717, 718, 719, 721}
# 916: a confidential GPU ends its protected channel in order to change keys.
_LOST: Final = {4, 46, 201, 214, 220, 226, 709, 806, 810, 916, 999}

Meaning = tuple[str, str, str]
"""Code, what happened, what to do."""

_TO_DOCTOR: Final = "`sealift doctor` shows what this machine supports"
_OTHER: Final[Meaning] = (
    "gpu-error",
    "the NVIDIA driver returned an error",
    _TO_DOCTOR,
)
_MEANINGS: Final[tuple[tuple[set[int], Meaning], ...]] = (
    ({34, 100, 101}, ("no-gpu", "this process cannot use an NVIDIA GPU", _TO_DOCTOR)),
    (
        {36, 227, 803, 804},
        (
            "gpu-driver-too-old",
            "the NVIDIA driver does not match",
            "Install a driver for CUDA 13 (R580 or later)",
        ),
    ),
    (
        {200, 209, 218, 222, 223, 301, 302, 303},
        (
            "gpu-kernels-refused",
            "the driver does not load the kernels compiled for this GPU",
            "Update the driver and the compiler together",
        ),
    ),
    (
        {802},
        (
            "gpu-not-ready",
            "the GPU is in confidential mode and accepts no work yet",
            "Attest it first; then run `nvidia-smi conf-compute -srs 1`",
        ),
    ),
    (
        {801},
        (
            "gpu-unsupported",
            "this GPU or its mode does not support a required call",
            _TO_DOCTOR,
        ),
    ),
)


class CudaError(Exception):
    """A call of the driver that did not succeed.

    Args:
        call: Name of the call.
        number: The driver's ``CUresult``.
        name: Its name.
        asked_bytes: What an allocation asked for.
    """

    def __init__(self, call: str, number: int, name: str, asked_bytes: int = 0) -> None:
        super().__init__(call, number, name)
        self.call = call
        self.number = number
        self.name = name
        self.asked_bytes = asked_bytes

    def __str__(self) -> str:
        return f"{self.call}: {self.name} ({self.number})"

    @property
    def ends_context(self) -> bool:
        """Whether nothing more can be done on this GPU in this process."""
        return self.number in _LOST or self.number in _KERNEL

    def to_error(self) -> SealiftError:
        """The line for a person, with its code and exit code."""
        if self.number == OUT_OF_MEMORY and self.call in _PINNING:
            return no_pinned_memory(self.asked_bytes, str(self))
        if self.number == OUT_OF_MEMORY:
            return device_out_of_memory(self.asked_bytes, str(self))
        if self.ends_context:
            return device_lost(str(self))
        found = (each for numbers, each in _MEANINGS if self.number in numbers)
        code, what, fix = next(found, _OTHER)
        return UnavailableError(what, why=str(self), fix=fix, code=code)


@contextmanager
def faults_as_errors() -> Iterator[None]:
    """Faults inside become errors for people."""
    try:
        yield
    except CudaError as fault:
        raise fault.to_error() from None


def too_old(found: int) -> UnavailableError:
    """The driver is older than what kernels and bindings need."""
    return UnavailableError(
        "the NVIDIA driver is too old",
        why=f"it supports CUDA {_say(found)}; {_say(NEEDED_DRIVER)} is needed",
        code="gpu-driver-too-old",
    )


def _say(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
