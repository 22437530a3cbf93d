"""A slice's part in steps that a group makes together, as its parent takes it.

The parent weighs what the recipe's process brings, has the group add it up, and looks at
the sum: what is NaN or infinite anywhere is so in it, on every rank, with its parameter.
With the last bucket of a step every rank tells every other the number of the step, the
digest of the weights where steps stopped for that, and that it goes on. Nobody steps
before it has heard all (rule M1). A rank that fails brings zeros for the rest of the step
and says so in that word, so that none of them is left waiting.
Not here: that a gradient is what its rows come to.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from sealift.channel.device.device import DeviceMemory, DeviceTensor, SummingEngine
from sealift.collective.tensors import Numbers
from sealift.errors import (
    IntegrityError,
    JobError,
    PeerError,
    SealiftError,
    require_value,
)
from sealift.ids import Buffer, Digest
from sealift.train.loop.buckets import Array, Bucket, Trained, cut_buckets
from sealift.train.loop.states import TensorBytes, TrainingState, state_digest
from sealift.train.loop.tasks import Together

_WORD: Final = struct.Struct(">BQ32s")  # whether it goes on, step, digest
_FAILED, _GOES_ON = 0, 1
FAILED: Final = "rank-failed"
_NO_DIGEST: Final = bytes(32)


class ReduceGroup(Protocol):
    """What of ``collective.SealedGroup`` this takes."""

    def all_reduce(self, tensor: Numbers) -> None:
        """Add up everybody's, in the order of ranks, in place."""
        ...

    def exchange(self, words: bytes) -> list[bytes]:
        """What every rank says, in their order."""
        ...


class _Here:
    """A bucket in this process's memory: what a slice brings, and the sum."""

    def __init__(self, gradient: Buffer, dtype: str, share: float) -> None:
        self._own = np.frombuffer(gradient, dtype)
        self._total = self._own * self._own.dtype.type(share)  # the sum grows in it

    def reduce(self, group: ReduceGroup) -> None:
        group.all_reduce(self._total)

    def first_odd(self) -> int | None:
        return _first_odd(self._total)

    def own_is_finite(self) -> bool:
        return _first_odd(self._own) is None

    def result(self) -> Buffer:
        return self._total.data.cast("B")


class _There:
    """A bucket on a device. Its worker can write ``gradient`` meanwhile (rule N10)."""

    def __init__(
        self, rooms: PrivateRooms, gradient: DeviceTensor, share: float
    ) -> None:
        self._engine, self._gradient = rooms.engine, gradient
        self._own, self._total = rooms.like(gradient)
        self._engine.weigh(self._own, gradient, share)
        self._engine.copy(self._total, self._own)

    def reduce(self, group: ReduceGroup) -> None:
        group.all_reduce(self._total)

    def first_odd(self) -> int | None:
        return self._engine.first_odd(self._total)

    def own_is_finite(self) -> bool:
        """With its weight, of at most 1: what is odd without it is so with it."""
        return self._engine.first_odd(self._own) is None

    def result(self) -> Buffer:
        self._engine.copy(self._gradient, self._total).wait()
        return b""


class PrivateRooms:
    """Memory of this process's own on a device, for one bucket after the other.

    Args:
        engine: The device.

    Attributes:
        engine: As given.
    """

    def __init__(self, engine: SummingEngine) -> None:
        self.engine = engine
        self._rooms: tuple[DeviceMemory, ...] = ()

    def like(self, tensor: DeviceTensor) -> tuple[DeviceTensor, DeviceTensor]:
        """Room for two tensors of that length; what they were before is gone."""
        if not self._rooms or self._rooms[0].nbytes < tensor.nbytes:
            self.close()
            for _ in range(2):
                self._rooms += (self.engine.allocate(tensor.nbytes),)
        a, b = self._rooms
        return replace(tensor, memory=a, offset=0), replace(tensor, memory=b, offset=0)

    def close(self) -> None:
        """Scrub it and give it back. Idempotent."""
        rooms, self._rooms = self._rooms, ()
        with ExitStack() as closing:
            for each in rooms:
                closing.callback(each.close)


def _first_odd(numbers: Array) -> int | None:
    finite = np.isfinite(numbers)
    return None if finite.all() else int(np.argmin(finite))


class StepSums:
    """The sums of one task.

    Args:
        group: Of the slices' ranks.
        number: Of this slice.
        together: The steps.
        batch_rows: Rows of a slice in a step, at most.
        state: That the task goes on from.
        device: Where gradients lie that are summed there; None for this process.

    Attributes:
        together: The steps.
        device: As given.
    """

    def __init__(
        self,
        group: ReduceGroup,
        number: int,
        together: Together,
        *,
        batch_rows: int,
        state: TrainingState,
        device: SummingEngine | None = None,
    ) -> None:
        self.device: Final = device
        self._rooms = PrivateRooms(device) if device else None
        self._group = group
        self._number = number
        self.together: Final = together
        self._batch_rows = batch_rows
        self._tensors: Mapping[str, TensorBytes] = state.model()
        self._first = state.step
        self._steps = together.steps(batch_rows)
        self._buckets: tuple[Bucket, ...] = ()
        self._names: Sequence[str] = ()
        self._step = self._next = 0
        self._weights = _NO_DIGEST
        self._over = False  # nobody waits for a word of ours

    def begin(self, trained: Trained) -> None:
        """Have every rank train the same parameters in the same steps.

        Raises:
            JobError: ``states-differ``.
            PeerError: ``rank-failed``, or whatever ended the group.
        """
        steps = self.together
        buckets = cut_buckets(
            trained, self._tensors, steps.bucket_bytes, units=steps.units
        )
        plan = Digest.of(f"{trained}|{steps}".encode()).raw
        if any(each != (self._first, plan) for each in self._agree(plan)):
            self._over = True
            raise JobError(
                "the ranks do not train the same parameters in the same number of "
                "steps",
                code="states-differ",
            )
        self._buckets, self._names = buckets, trained.names

    def note(self, state: TrainingState) -> None:
        """Have the weights compared with all others' before the next step is made."""
        tensors = state.model()
        self._weights = state_digest({n: tensors[n] for n in self._names}).raw

    def add_up(self, bucket: Bucket, gradient: Buffer | DeviceTensor) -> Buffer:
        """The weighted sum over all ranks; see ``TaskParent.add_up``.

        What lies on a device is read once, summed in memory of our own there, and
        written over the gradient when every rank goes on.

        Raises:
            JobError: ``not-finite``, the same on every rank; ``ranks-drifted``.
            IntegrityError: ``ranks-diverged``.
            PeerError: ``rank-failed``, or whatever ended the group.
        """
        share = self.together.share(self._number, self._step, self._batch_rows)
        summed: _Here | _There
        if isinstance(gradient, DeviceTensor):
            summed = _There(require_value(self._rooms), gradient, share)
        else:
            summed = _Here(gradient, bucket.dtype, share)
        summed.reduce(self._group)
        self._next += 1
        self._demand_finite(bucket, summed)
        if self._next == len(self._buckets):
            self._end_step()
        return summed.result()

    def give_up(self) -> None:
        """Tell all others that this rank does not go on; nobody steps. Idempotent."""
        if self._over:
            return
        self._over = True
        with suppress(SealiftError):  # the group has ended: they know
            for bucket in self._buckets[self._next :]:
                self._group.all_reduce(np.zeros(bucket.elements, bucket.dtype))
            self._group.exchange(_WORD.pack(_FAILED, 0, _NO_DIGEST))

    def close(self) -> None:
        """Give back what was taken of the device. Idempotent."""
        if self._rooms is not None:
            self._rooms.close()

    def _end_step(self) -> None:
        now, own = self._first + self._step, self._weights
        for rank, (step, weights) in enumerate(self._agree(own)):
            if (step, weights) != (now, own):
                self._over = True
                raise _apart(rank, "step" if step != now else "weights")
        self._next, self._weights = 0, _NO_DIGEST
        self._step += 1
        self._over = self._step == self._steps

    def _agree(self, digest: bytes) -> list[tuple[int, bytes]]:
        """Step and digest of every rank, all of which go on."""
        word = _WORD.pack(_GOES_ON, self._first + self._step, digest)
        heard = [_WORD.unpack(each) for each in self._group.exchange(word)]
        for rank, (state, _step, _digest) in enumerate(heard):
            if state != _GOES_ON:
                self._over = True
                why = "no rank made this step"
                what, ranks = f"rank {rank} failed", (rank,)
                raise PeerError(what, why=why, code=FAILED, ranks=ranks)
        return [(step, found) for _state, step, found in heard]

    def _demand_finite(self, bucket: Bucket, summed: _Here | _There) -> None:
        """All ranks see the same sum, and ask each other who brought it."""
        odd = summed.first_odd()
        if odd is None:
            return
        self._over, name = True, bucket.name_at(odd)
        mine = bytes([summed.own_is_finite()])
        heard = self._group.exchange(mine)
        ranks = [rank for rank, each in enumerate(heard) if each == b"\0"]
        brought = f"it came from rank {' and '.join(map(str, ranks))}"
        raise JobError(
            f"the gradient of {name} is infinite or NaN at step "
            f"{self._first + self._step}",
            why=brought if ranks else "the sum is too large",
            code="not-finite",
            ranks=tuple(ranks),
        )


def _apart(rank: int, what: str) -> SealiftError:
    if what == "step":
        at_another = f"rank {rank} is at another step"
        return JobError(at_another, code="ranks-drifted", ranks=(rank,))
    return IntegrityError(
        f"rank {rank} has other weights than this rank",
        why="it received another sum, or computed another update",
        code="ranks-diverged",
        ranks=(rank,),
    )
