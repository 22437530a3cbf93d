"""What a failed CUDA call means to the person who reads the line.

A fault is the driver's number and name; ``to_error`` gives the class, the code and what
to do. The numbers are those of ``CUresult`` (CUDA driver API reference, data types).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sealift.channel.device.device import device_lost, device_out_of_memory
from sealift.errors import SealiftError, UnavailableError

OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
NEEDED_DRIVER: Final = 13_000

_KERNEL: Final = {700, 701, 702, 710, 714, 715, 716, 717, 718, 719, 721}
# 916: a confidential GPU ends its protected channel in order to change keys.
_LOST: Final = {4, 46, 201, 214, 220, 226, 709, 806, 810, 916, 999}

Meaning = tuple[str, str, str]
"""Code, what happened, what to do."""

_TO_DOCTOR: Final = "`sealift doctor` says what this machine can do"
_OTHER: Final[Meaning] = ("gpu-error", "the GPU refused a call", _TO_DOCTOR)
_MEANINGS: Final[tuple[tuple[set[int], Meaning], ...]] = (
    (
        {34, 100, 101},
        ("no-gpu", "there is no NVIDIA GPU to use here", _TO_DOCTOR),
    ),
    (
        {36, 227, 803, 804},
        (
            "gpu-driver-too-old",
            "the NVIDIA driver does not fit",
            "Install a driver for CUDA 13 (R580 or later)",
        ),
    ),
    (
        {200, 209, 218, 222, 223, 301, 302, 303},
        (
            "gpu-kernels-refused",
            "the driver does not load the kernels made for this GPU",
            "Update driver and compiler together",
        ),
    ),
    (
        {802},
        (
            "gpu-not-ready",
            "the GPU is confidential and accepts no work yet",
            "It must be attested first; then `nvidia-smi conf-compute -srs 1`",
        ),
    ),
    (
        {801},
        (
            "gpu-unsupported",
            "this GPU or its mode does not support a call that is needed",
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
        if self.number == OUT_OF_MEMORY:
            return device_out_of_memory(self.asked_bytes, str(self))
        if self.ends_context:
            return device_lost(str(self))
        found = (each for numbers, each in _MEANINGS if self.number in numbers)
        code, what, fix = next(found, _OTHER)
        return UnavailableError(what, why=str(self), fix=fix, code=code)


@contextmanager
def told() -> Iterator[None]:
    """Faults inside become errors for people."""
    try:
        yield
    except CudaError as fault:
        raise fault.to_error() from None


def too_old(found: int) -> UnavailableError:
    """The driver is older than what kernels and bindings need."""
    return UnavailableError(
        "the NVIDIA driver is too old",
        why=f"it speaks CUDA {_say(found)}, needed is {_say(NEEDED_DRIVER)}",
        code="gpu-driver-too-old",
    )


def _say(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
