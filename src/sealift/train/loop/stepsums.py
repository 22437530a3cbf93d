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
from contextlib import suppress
from typing import Final, Protocol

import numpy as np

from sealift.errors import IntegrityError, JobError, PeerError, SealiftError
from sealift.ids import Buffer, Digest
from sealift.train.loop.buckets import Array, Bucket, Trained, cut_buckets
from sealift.train.loop.states import TensorBytes, TrainingState, state_digest
from sealift.train.loop.tasks import Together

_WORD: Final = struct.Struct(">BQ32s")  # whether it goes on, step, digest
_FAILED, _GOES_ON = 0, 1
FAILED: Final = "rank-failed"
_NO_DIGEST: Final = bytes(32)


class Group(Protocol):
    """What of ``collective.SealedGroup`` this takes."""

    def all_reduce(self, tensor: Array) -> None:
        """Add up everybody's, in the order of ranks, in place."""
        ...

    def exchange(self, words: bytes) -> list[bytes]:
        """What every rank says, in their order."""
        ...


class StepSums:
    """The sums of one task.

    Args:
        group: Of the slices' ranks.
        number: Of this slice.
        together: The steps.
        batch_rows: Rows of a slice in a step, at most.
        state: That the task goes on from.

    Attributes:
        together: The steps.
    """

    def __init__(
        self,
        group: Group,
        number: int,
        together: Together,
        *,
        batch_rows: int,
        state: TrainingState,
    ) -> None:
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
        buckets = cut_buckets(trained, self._tensors, steps.bucket_bytes)
        plan = Digest.of(f"{trained}|{steps}".encode()).raw
        if any(each != (self._first, plan) for each in self._agree(plan)):
            self._over = True
            raise JobError(
                "the ranks do not train the same parameters in the same steps",
                code="states-differ",
            )
        self._buckets, self._names = buckets, trained.names

    def note(self, state: TrainingState) -> None:
        """Have the weights compared with all others' before the next step is made."""
        tensors = state.model()
        self._weights = state_digest({n: tensors[n] for n in self._names}).raw

    def add_up(self, bucket: Bucket, gradient: Buffer) -> memoryview:
        """The weighted sum over all ranks; see ``TaskParent.add_up``.

        Raises:
            JobError: ``not-finite``, the same on every rank; ``ranks-drifted``.
            IntegrityError: ``ranks-diverged``.
            PeerError: ``rank-failed``, or whatever ended the group.
        """
        own = np.frombuffer(gradient, bucket.dtype)
        share = self.together.share(self._number, self._step, self._batch_rows)
        total = own * own.dtype.type(share)  # a copy: the sum grows in it
        self._group.all_reduce(total)
        self._next += 1
        self._demand_finite(bucket, own, total)
        if self._next == len(self._buckets):
            self._end_step()
        return total.data.cast("B")

    def give_up(self) -> None:
        """Tell all others that this rank does not go on; nobody steps. Idempotent."""
        if self._over:
            return
        self._over = True
        with suppress(SealiftError):  # the group has ended: they know
            for bucket in self._buckets[self._next :]:
                self._group.all_reduce(np.zeros(bucket.elements, bucket.dtype))
            self._group.exchange(_WORD.pack(_FAILED, 0, _NO_DIGEST))

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
                why = "no rank made the step"
                what, ranks = f"rank {rank} failed", (rank,)
                raise PeerError(what, why=why, code=FAILED, ranks=ranks)
        return [(step, found) for _state, step, found in heard]

    def _demand_finite(self, bucket: Bucket, own: Array, total: Array) -> None:
        """All ranks see the same sum, and ask each other who brought it."""
        name = bucket.first_odd(total)
        if name is None:
            return
        self._over = True
        mine = bytes([bucket.first_odd(own) is None])
        heard = self._group.exchange(mine)
        ranks = [rank for rank, each in enumerate(heard) if each == b"\0"]
        brought = f"rank {' and '.join(map(str, ranks))} brought it"
        raise JobError(
            f"the gradient of {name} is not finite at step {self._first + self._step}",
            why=brought if ranks else "it is too large",
            code="not-finite",
            ranks=tuple(ranks),
        )


def _apart(rank: int, what: str) -> SealiftError:
    if what == "step":
        at_another = f"rank {rank} is at another step"
        return JobError(at_another, code="ranks-drifted", ranks=(rank,))
    return IntegrityError(
        f"rank {rank} has other weights than this one",
        why="it was told another sum, or computed another one",
        code="ranks-diverged",
        ranks=(rank,),
    )
