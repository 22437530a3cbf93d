"""What is launched for one call: pure values between the kernels' side and the host's.

Whoever wrote a kernel knows its grid and its arguments; the engine knows where things
lie. A plan names addresses, the engine fills them in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from sealift.channel.cuda.driver import Argument, GpuFacts, Grid
from sealift.crypto.aead import Suite

Place = Literal[
    "records",  # the array of records (48 bytes each)
    "aad",  # all associated data, one behind the other
    "key",  # the expanded key
    "raw_key",  # 32 bytes; the engine overwrites them after the expansion
    "sealed",
    "plain",
    "verdicts",  # one byte a record: 1 genuine, 0 not
    "scratch",  # 16-byte aligned, of any content
    "target",  # what is counted
    "count",  # where a u64 goes
]

RECORD_BYTES: Final = 48


@dataclass(frozen=True, slots=True)
class Word32:
    """A 32-bit argument."""

    value: int


@dataclass(frozen=True, slots=True)
class Word64:
    """A 64-bit argument."""

    value: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel.

    Attributes:
        kernel: Its name in the module.
        grid: How it is spread.
        arguments: In order; a ``Place`` stands for the address of it.
    """

    kernel: str
    grid: Grid
    arguments: tuple[Place | Word32 | Word64, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels that run one after the other, and the room they share."""

    launches: tuple[Launch, ...]
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What decides the grid of a batch.

    Attributes:
        num_records: How many.
        longest_bytes: Plaintext of the longest.
        total_bytes: Plaintext of all.
    """

    num_records: int
    longest_bytes: int
    total_bytes: int


class Kernels(Protocol):
    """What the engine needs of the kernels' side."""

    origin: str
    """Where the code is from: source digest and compiler."""

    def code(self, gpu: GpuFacts) -> bytes:
        """What the driver loads for this GPU.

        Raises:
            UnavailableError: without a compiler, or for a GPU that they are not for.
        """

    def suites(self) -> tuple[Suite, ...]:
        """The suites they compute, fastest first."""

    def key_bytes(self, suite: Suite) -> int:
        """Size of an expanded key."""

    def expand(self, suite: Suite) -> Plan:
        """``raw_key`` to ``key``."""

    def open(self, suite: Suite, shape: BatchShape, gpu: GpuFacts) -> Plan:
        """``sealed`` to ``plain`` and ``verdicts``; plaintext of failed records is zero."""

    def seal(self, suite: Suite, shape: BatchShape, gpu: GpuFacts) -> Plan:
        """``plain`` to ``sealed``."""

    def count_nonzero(self, nbytes: int, gpu: GpuFacts) -> Plan:
        """Add the bytes of ``target`` that are not zero to the u64 at ``count``."""


def to_arguments(launch: Launch, places: Mapping[str, int]) -> tuple[Argument, ...]:
    """The arguments of a launch, addresses filled in."""
    return tuple(_to_argument(each, places) for each in launch.arguments)


def _to_argument(each: Place | Word32 | Word64, places: Mapping[str, int]) -> Argument:
    if isinstance(each, Word32):
        return ctypes.c_uint32(each.value)
    if isinstance(each, Word64):
        return ctypes.c_uint64(each.value)
    return ctypes.c_uint64(places[each])
