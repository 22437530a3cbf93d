"""Sums of numbers that lie in a GPU's memory, with the bits that a processor gets.

Each call queues one kernel, or one copy, behind what uses the same ranges. Sums of
different order have different bits, so the caller fixes the order of the calls.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sealift.channel.cuda.core import Core
from sealift.channel.cuda.driver import Grid
from sealift.channel.cuda.memory import CudaMemory, own_memory
from sealift.channel.cuda.plan import (
    THREADS,
    BufferName,
    KernelPlan,
    Launch,
    Word32,
    Word64,
)
from sealift.channel.cuda.streams import HoldsUp, Ticket
from sealift.channel.device.device import DeviceTensor, check_range
from sealift.errors import UsageError

_KINDS: Final[Mapping[str, str]] = {"float32": "f32", "float64": "f64"}
_BLOCKS: Final = 16  # per multiprocessor


class _Span(NamedTuple):
    """Bytes of a memory that a call uses."""

    memory: CudaMemory
    start: int
    end: int

    @classmethod
    def of(cls, tensor: DeviceTensor) -> _Span:
        check_range(tensor.memory, tensor.offset, tensor.nbytes)
        end = tensor.offset + tensor.nbytes
        return cls(own_memory(tensor.memory), tensor.offset, end)

    @property
    def address(self) -> int:
        return self.memory.address + self.start


def add(core: Core, total: DeviceTensor, part: DeviceTensor) -> Ticket:
    """Queue ``total += part``."""
    plan = _plan(core, "add", total, "total", "part", Word64(total.size))
    return _write(core, plan, total, part)


def weigh(core: Core, total: DeviceTensor, part: DeviceTensor, factor: float) -> Ticket:
    """Queue ``total = part * factor``; the factor is rounded to the elements' type first."""
    word: Word32 | Word64
    if total.dtype == "float32":
        word = Word32(*struct.unpack("<I", struct.pack("<f", factor)))
    else:
        word = Word64(*struct.unpack("<Q", struct.pack("<d", factor)))
    plan = _plan(core, "weigh", total, "total", "part", Word64(total.size), word)
    return _write(core, plan, total, part)


def copy(core: Core, total: DeviceTensor, part: DeviceTensor) -> Ticket:
    """Queue ``total = part``."""
    return _write(core, None, total, part)


def first_odd(core: Core, tensor: DeviceTensor) -> int | None:
    """Index of the first element that is infinite or no number; waits for it."""
    span = _Span.of(tensor)
    plan = _plan(core, "find_odd", tensor, "target", Word64(tensor.size), "count")
    with core.lock:
        after = span.memory.hazards.before_read(span.start, span.end)
        left = core.ask(plan, {"target": span.address}, after=after)
    return tensor.size - left if left else None


def _plan(
    core: Core,
    name: str,
    tensor: DeviceTensor,
    *arguments: BufferName | Word32 | Word64,
) -> KernelPlan:
    """One kernel over the elements.

    Raises:
        UsageError: code ``bad-tensor``, for elements of another type.
    """
    kind = _KINDS.get(tensor.dtype)
    if kind is None or tensor.offset % tensor.itemsize:
        raise UsageError(
            "a tensor cannot be summed on a GPU",
            why=f"{tensor.dtype} at byte {tensor.offset}",
            code="bad-tensor",
        )
    wanted = -(-tensor.size // THREADS)
    blocks = max(1, min(wanted, _BLOCKS * core.driver.facts.multiprocessors))
    return KernelPlan(
        (Launch(f"sealift_{name}_{kind}", Grid(blocks, THREADS), arguments),)
    )


def _write(
    core: Core, plan: KernelPlan | None, total: DeviceTensor, part: DeviceTensor
) -> Ticket:
    """Queue kernels, or without any a copy, that read ``part`` and write ``total``."""
    if (total.size, total.dtype) != (part.size, part.dtype):
        raise UsageError("the tensors differ in length or type", code="bad-tensor")
    to, origin = _Span.of(total), _Span.of(part)
    places = {"total": to.address, "part": origin.address}

    def step(stream: Any) -> None:
        if plan is None:
            core.driver.copy_on_device(to.address, origin.address, total.nbytes, stream)
        else:
            core.run(plan, places, stream)

    with core.lock:
        waits: list[HoldsUp] = [
            *origin.memory.hazards.before_read(origin.start, origin.end),
            *to.memory.hazards.before_write(to.start, to.end),
        ]
        ticket = core.crypto.submit(step, after=waits)
        origin.memory.hazards.reads(origin.start, origin.end, ticket)
        to.memory.hazards.writes(to.start, to.end, ticket)
    return ticket
