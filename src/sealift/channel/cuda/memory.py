"""Memory of a GPU that the engine works in: its own, or borrowed from torch.

Both are told to other libraries by ``__cuda_array_interface__`` (version 3), so that a
tensor can be made over them without a copy. What is borrowed is never given back here.

Which ranges of a memory are being read and written, so that calls keep their order.

Work on different ranges overlaps; work on the same bytes waits. A ring of slots in one
memory therefore needs nobody to say what waits for what.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sealift.channel.cuda.driver import Driver, Residence
from sealift.channel.cuda.streams import Passed, Point
from sealift.channel.device.device import DeviceMemory
from sealift.errors import UnavailableError, UsageError

MANY: Final = 64


Use = tuple[int, int, Point]
"""Start and end of a range, and when the use of it is over."""


@dataclass(slots=True)
class Hazards:
    """The uses of one memory that may not be over."""

    _reads: list[Use] = field(default_factory=list)
    _writes: list[Use] = field(default_factory=list)

    def before_read(self, start: int, end: int) -> list[Point]:
        """What must be past before the range is read."""
        return _overlapping(self._writes, start, end)

    def before_write(self, start: int, end: int) -> list[Passed]:
        """What must be past, or have failed, before the range is written."""
        both = (self._writes, self._reads)
        found = (point for uses in both for point in _overlapping(uses, start, end))
        return [Passed(point) for point in found]

    def was_last_written_by(self, start: int, end: int, point: Point) -> bool:
        """Whether nothing was queued to write any of the range since ``point``."""
        found = _overlapping(self._writes, start, end)
        return bool(found) and found[-1] is point

    def reads(self, start: int, end: int, point: Point) -> None:
        """The range is read until ``point``."""
        self._reads = [*_pruned(self._reads), (start, end, point)]

    def writes(self, start: int, end: int, point: Point) -> None:
        """The range is written until ``point``, after everything on it before."""
        self._reads = _outside(_pruned(self._reads), start, end)
        kept = _outside(_pruned(self._writes), start, end)
        self._writes = [*kept, (start, end, point)]


def _overlapping(uses: list[Use], start: int, end: int) -> list[Point]:
    return [point for a, b, point in uses if a < end and start < b]


def _outside(uses: list[Use], start: int, end: int) -> list[Use]:
    """Without those that lie inside the range: whoever writes it waited for them."""
    return [use for use in uses if use[0] < start or end < use[1]]


def _pruned(uses: list[Use]) -> list[Use]:
    if len(uses) < MANY:
        return uses
    return [use for use in uses if not use[2].is_done()]


LOST: Final = "device-lost"
# A kernel that touched another GPU's memory would end the process's context.
_FOREIGN: Final = (Residence.PINNED, Residence.OTHER_DEVICE)


class CudaMemory:
    """A range of device memory (see ``channel.device.device.DeviceMemory``).

    Args:
        address: Where it begins.
        nbytes: How long it is.
        scrub: Overwrites it and reads that back.
        give_back: Called once, when it is closed.
        owner: Kept alive as long as this is.
    """

    def __init__(
        self,
        address: int,
        nbytes: int,
        *,
        scrub: Callable[[CudaMemory], None],
        give_back: Callable[[CudaMemory], None],
        owner: object = None,
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.hazards = Hazards()
        self._scrub = scrub
        self._give_back = give_back
        self._owner = owner
        self._closed = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Bytes, in the GPU's memory; wait for verdicts before reading them."""
        self.require_open()
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }

    def require_open(self) -> None:
        """Refuse to be used after ``close``."""
        if self._closed:
            raise UsageError("this memory was freed", code="dead-memory")

    def scrub(self) -> None:
        """Overwrite it with zeroes after what is queued, and read that back.

        Raises:
            IntegrityError: if something else than zeroes is read.
            UnavailableError: code ``device-lost``.
        """
        if not self._closed:
            self._scrub(self)

    def close(self) -> None:
        """Scrub and give back; borrowed memory is only scrubbed. Idempotent.

        A GPU that was lost took the memory with it: that is no error here.

        Raises:
            IntegrityError: if it was not zeroes afterwards.
        """
        if self._closed:
            return
        self._closed = True  # first: nothing may be queued behind the last scrub
        try:
            self._scrub(self)
        except UnavailableError as error:
            if error.code != LOST:
                raise
        finally:
            self._give_back(self)
            self._owner = None


class SharedMemory(CudaMemory):
    """Memory that another process may map, too: what it holds is read once (rule N10).

    Attributes:
        descriptor: What that process is given, until ``close``.
    """

    descriptor = -1

    def close_descriptor(self) -> None:
        """Nobody is given it any more. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def array_range(array: Any, driver: Driver) -> tuple[int, int]:
    """Address and bytes of somebody else's array on this GPU.

    Raises:
        UsageError: if it is not one, not writable, or has gaps.
    """
    told = getattr(array, "__cuda_array_interface__", None)
    if told is None or told.get("mask") is not None:
        raise UsageError("this array is not in a GPU's memory", code="not-on-gpu")
    address, read_only = told["data"]
    itemsize = int(told["typestr"][2:])
    nbytes = itemsize
    for extent in told["shape"]:
        nbytes *= extent
    if read_only or not _is_dense(told, itemsize):
        raise UsageError("this array is read-only or has gaps", code="not-on-gpu")
    if nbytes and (found := driver.residence(address)) in _FOREIGN:
        raise UsageError(
            f"this array is in {found.value} memory, not in this GPU's",
            code="not-on-gpu",
        )
    return address, nbytes


def own_memory(memory: DeviceMemory) -> CudaMemory:
    """The memory, if it is one of a GPU and open."""
    if not isinstance(memory, CudaMemory):
        raise UsageError("this memory belongs to another device")
    memory.require_open()
    return memory


def _is_dense(told: dict[str, Any], itemsize: int) -> bool:
    strides = told.get("strides")
    if strides is None:
        return True
    step = itemsize
    for extent, stride in zip(reversed(told["shape"]), reversed(strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True
