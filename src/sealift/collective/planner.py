"""Which algorithm for which size, and how large a bucket: measured, fitted, agreed on.

At the start the ranks exchange messages of five sizes and add as much. Three costs are
fitted: of a message however short, of a byte sealed, sent and opened, of a byte added.
Every rank takes the largest of everybody's costs, so all choose the same; the digest of
the choice is in every announcement. Where a rank's gradients lie on a device, sums of
tensors that lie there are measured instead, by all ranks, and messages are longer.

One phase costs ``a + (N-1)S(b+c)``, two cost ``2a + (N-1)/N S(2b+c)`` for a tensor of S
bytes over N ranks; below the size where they meet everybody sends everything. A step
with gradients of G bytes costs ``a G/B + b B`` beyond its backward pass in buckets of B
bytes: most of it is the message of the last bucket, so ``B = sqrt(a G/b)``.
Source: spec/collective.md section 5; field notes' cost model of the published overheads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

from sealift.channel.device.device import DeviceTensor
from sealift.codec import encode
from sealift.collective.announcement import Algorithm, Reduction
from sealift.collective.group import (
    DEFAULT_SEGMENT_BYTES,
    DEVICE_SEGMENT_BYTES,
    Choices,
    SealedGroup,
)
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.errors import JobError

SIZES: Final = (1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20)
SIZES_THERE: Final = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
_REPEATS: Final = 5
_MIB: Final = 1 << 20
SMALLEST_BUCKET: Final = _MIB
# What no rank that works costs: a minute a message, a millisecond a byte.
_MOST_MESSAGE_S: Final = 60.0
_MOST_BYTE_S: Final = 1e-3
# Small enough to be copied on every rank, and for a sandbox's area.
MOST_ONE_PHASE: Final = 4 * _MIB


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one message between all pairs at once.

    Attributes:
        message_s: Seconds, however short it is.
        byte_s: Seconds for a byte that is sealed, sent and opened, both ways.
        add_s: Seconds for a byte that is added.
    """

    message_s: float
    byte_s: float
    add_s: float

    def demand_sane(self) -> None:
        """All ranks hold the same costs, so all raise, or none.

        Raises:
            JobError: code ``bad-costs``, if nothing can be chosen by them.
        """
        most = (_MOST_MESSAGE_S, _MOST_BYTE_S, _MOST_BYTE_S)
        if not all(0 <= c <= m for c, m in zip(astuple(self), most, strict=True)):
            raise JobError(
                "no collective algorithm can be chosen: a rank measured impossible "
                "costs",
                why=f"the largest costs of all ranks are {astuple(self)} seconds",
                code="bad-costs",
            )

    def one_phase_bytes(self, world: int) -> int:
        """The tensor for which both algorithms cost the same; at most ``MOST_ONE_PHASE``."""
        others = world - 1
        one = others * (self.byte_s + self.add_s)
        two = others / world * (2 * self.byte_s + self.add_s)
        if one <= two:
            return MOST_ONE_PHASE
        return min(MOST_ONE_PHASE, int(self.message_s / (one - two)))

    def bucket_bytes(self, gradient_bytes: int) -> int:
        """The bucket that exposes least of a step's communication."""
        best = math.sqrt(self.message_s * gradient_bytes / self.byte_s)
        return int(
            min(max(best, SMALLEST_BUCKET), max(gradient_bytes, SMALLEST_BUCKET))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePlan:
    """What the ranks chose, and why.

    Attributes:
        costs: The largest of everybody's.
        bucket_bytes: Gradients that are reduced together.
        segment_bytes: How long a message is, the last of a chunk aside.
    """

    world: int
    costs: Costs
    one_phase_bytes: int
    bucket_bytes: int
    segment_bytes: int = DEFAULT_SEGMENT_BYTES

    @classmethod
    def of(
        cls,
        costs: Costs,
        world: int,
        gradient_bytes: int,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    ) -> CollectivePlan:
        """Choose."""
        return cls(
            world=world,
            costs=costs,
            one_phase_bytes=costs.one_phase_bytes(world),
            bucket_bytes=costs.bucket_bytes(gradient_bytes),
            segment_bytes=segment_bytes,
        )

    @property
    def choices(self) -> Choices:
        """For the group."""
        chosen = {
            "bucket_bytes": self.bucket_bytes,
            "one_phase_bytes": self.one_phase_bytes,
            "segment_bytes": self.segment_bytes,
            "world": self.world,
        }
        digest = labelled(Label.GROUP_CHOICES.value, encode(chosen))
        return Choices(
            one_phase_bytes=self.one_phase_bytes,
            segment_bytes=self.segment_bytes,
            digest=digest,
        )

    @property
    def why(self) -> str:
        """One line."""
        costs = self.costs
        return (
            f"{self.world} ranks; sending a message takes {costs.message_s * 1e6:.0f} "
            f"us, sealing a MiB {costs.byte_s * _MIB * 1e6:.0f} us and adding it "
            f"{costs.add_s * _MIB * 1e6:.0f} us: one phase for up to "
            f"{self.one_phase_bytes >> 10} KiB, messages of "
            f"{self.segment_bytes >> 20} MiB, buckets of "
            f"{self.bucket_bytes / _MIB:.1f} MiB"
        )


def plan_group(
    group: SealedGroup, gradient_bytes: int, clock: Callable[[], float]
) -> CollectivePlan:
    """Measure, and choose together with all ranks.

    Args:
        group: Its ``choices`` are replaced.
        gradient_bytes: Of one step.
        clock: Monotonic seconds.

    Raises:
        JobError: code ``bad-costs``, on all ranks, if one measured what cannot be.
        PeerError, RefusedError: see ``SealedGroup.all_reduce``.
    """
    there = np.array([group.device is not None], np.uint8)
    group.all_reduce(there, Reduction.MAX)
    segment_bytes = DEFAULT_SEGMENT_BYTES
    measure = _measured
    if there.any():
        segment_bytes, measure = DEVICE_SEGMENT_BYTES, _measured_there
        group.choices = replace(group.choices, segment_bytes=segment_bytes)
    mine = np.array(astuple(measure(group, clock)))
    group.all_reduce(mine, Reduction.MAX)  # what is no number stays none
    costs = Costs(*mine.tolist())
    costs.demand_sane()
    plan = CollectivePlan.of(costs, group.world, gradient_bytes, segment_bytes)
    group.choices = plan.choices
    return plan


def _measured(group: SealedGroup, clock: Callable[[], float]) -> Costs:
    """Fit what a rank measures with all others."""
    adding = _seconds_to_add(clock)
    spent = []
    for size in SIZES:
        part = np.zeros(size // group.world, np.uint8)
        whole = np.empty(part.size * group.world, np.uint8)
        group.barrier()
        spent.append(_median_s(partial(group.all_gather, part, whole), clock))
    moved = [size * (group.world - 1) / group.world for size in SIZES]
    message_s, byte_s = fit_line(moved, spent)
    return Costs(message_s, byte_s, adding)


def _measured_there(group: SealedGroup, clock: Callable[[], float]) -> Costs:
    """Fit sums in two phases of tensors that lie where a rank's gradients do.

    Each costs two messages and, besides adding, two crossings of what is not its own.
    """
    spent, device = [], group.device
    with ExitStack() as stack:
        for size in SIZES_THERE:
            tensor: Any = np.zeros(size // 4, np.float32)
            if device is not None:
                memory = device.allocate(size)
                stack.callback(memory.close)
                tensor = DeviceTensor(memory, 0, size // 4, "float32")
            group.barrier()
            reduce = partial(group.all_reduce, tensor, algorithm=Algorithm.TWO_PHASE)
            spent.append(_median_s(reduce, clock))
    both_s, byte_s = fit_line(SIZES_THERE, spent)
    crossings = max(2 * (group.world - 1) / group.world, 1)
    return Costs(both_s / 2, byte_s / crossings, _seconds_to_add(clock))


def _seconds_to_add(clock: Callable[[], float]) -> float:
    here, there = np.ones(_MIB, np.float32), np.ones(_MIB, np.float32)
    return _median_s(partial(np.add, here, there, out=here), clock) / here.nbytes


def _median_s(work: Callable[[], object], clock: Callable[[], float]) -> float:
    spent = []
    for _ in range(_REPEATS):
        began = clock()
        work()
        spent.append(clock() - began)
    return median(spent)


def fit_line(sizes: Sequence[float], spent: Sequence[float]) -> tuple[float, float]:
    """Seconds at no byte, and for each byte; neither is below what a clock can tell.

    Each size counts alike: residuals are relative, or the largest would decide alone.
    What is no number for one size is none for all.
    """
    if not np.isfinite(spent).all():
        return math.nan, math.nan
    weights = 1 / np.maximum(spent, 1e-9)  # a clock may stand still
    ones = np.ones(len(sizes))
    matrix = np.stack([ones, np.asarray(sizes)], axis=1) * weights[:, None]
    (message_s, byte_s), *_ = np.linalg.lstsq(matrix, ones, rcond=None)
    return max(float(message_s), 1e-6), max(float(byte_s), 1e-13)
