"""The mean of several slices' training states, by rows: what a round of training comes to.

A slice contributes its change: what a round made of model and optimizer, less what both
were before, times its share of all rows; a bound shortens a change whose norm over the
model is larger. Of the optimizer's large tensors nobody has what they were before: they
were moved to the worker. Their mean is the sum of what they became, by shares. Contributions are added in the order of slices, by a group of ranks or
here, and every slice goes on from the same state. Whole numbers (counters) are the
largest of anybody's. So ``local`` with as many slices as there are ranks computes the same
bits. Where gradients were added up in every step, weights and optimizer are the
same everywhere and are demanded to be; what no gradient belongs to (buffers) has its mean.
Where ranks learn sums alone, a counter moves by the mean of everybody's change of it, rounded
towards zero, since a largest value is somebody's own.
Not here: that a contribution is what training made of a slice's rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from sealift.errors import JobError, require_kind
from sealift.ids import Digest
from sealift.train.loop.held import Content, Held, read_of
from sealift.train.loop.states import (
    MODEL,
    TensorBytes,
    TrainingState,
    is_moved,
    parse_tensors,
    state_digest,
)

Array = NDArray[Any]
# What is averaged, and in which precision; bfloat16 is the upper half of a float32.
_COMPUTED: Final = {
    "F16": np.float32,
    "BF16": np.float32,
    "F32": np.float32,
    "F64": np.float64,
}
_COUNTED: Final = {
    "BOOL": np.uint8,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
}


PIECE_NUMBERS: Final = 2 << 20
Role = Literal["", "model", "optimizer", "scalar"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Numbers of one tensor that lie end to end."""

    name: str
    start: int
    elements: int


@dataclass(frozen=True, slots=True)
class AveragedPiece:
    """What is combined in one go, in memory of this process alone.

    Attributes:
        numbers: To be added up, or maximised where they count.
        counts: Whether they do: whole numbers, as int64.
        stretches: Whose they are, end to end.
        role: Of whose tensors it is made; empty where tensors of all roles are together.
    """

    numbers: Array
    counts: bool
    stretches: tuple[Stretch, ...]
    role: Role = ""

    def combine(self, other: AveragedPiece) -> None:
        """Take in another slice's."""
        if self.counts:
            np.maximum(self.numbers, other.numbers, out=self.numbers)
        else:
            self.numbers[...] += other.numbers


class Contribution:
    """What one slice brings to a round, piece by piece.

    What the pieces come to takes the place of ``after``, where that lies in a memory file.

    Args:
        before: What every slice began the round with.
        after: What this one made of it.
        share: Its rows, of all rows of the round.
        max_norm: Of its change of the model, before it is weighted; 0 bounds nothing.
        summed: The model's tensors whose gradients were added up in every step: they and
            the optimizer are the same in every slice. None where every slice trained
            for itself.
        only_sums: Of so many slices, which learn sums alone: pieces are cut by role, and
            counters bring their change. 0 where the largest counter may be known.

    Attributes:
        shortened: Whether its change was longer than the bound.

    Raises:
        JobError: ``states-differ``, if its state has no mean; ``not-finite``.
    """

    def __init__(
        self,
        before: TrainingState,
        after: TrainingState,
        share: float,
        *,
        max_norm: float = 0.0,
        summed: Collection[str] | None = None,
        only_sums: int = 0,
    ) -> None:
        self._after, self._share, self._only_sums = after, share, only_sums
        held = isinstance(after.tensors, Held)
        self._target = after.tensors if held else bytearray(_whole(after.tensors))
        self._all = parse_tensors(self._target)
        same = {n for n in self._all if summed is not None and _is_same(n, summed)}
        self._same = {n: each for n, each in self._all.items() if n in same}
        self._tensors = {n: each for n, each in self._all.items() if n not in same}
        self._began = parse_tensors(before.tensors)
        for name, tensor in self._tensors.items():
            if tensor.dtype in _COMPUTED:
                if self._began.get(name, tensor).form != tensor.form:
                    raise differ(f"{name} has another type or shape than at the start")
            elif tensor.dtype not in _COUNTED:
                raise differ(f"tensors of type {tensor.dtype} have no mean")
        self._factor = self._shortening(max_norm)
        self.shortened = self._factor < 1.0
        self._odd = ""

    @property
    def form(self) -> Digest:
        """What must be the same of every slice: names, types, shapes, plain values.

        Also the bits of what is the same everywhere.
        """
        tensors = sorted(self._all.items())
        lines = [f"{name}|{tensor.form}" for name, tensor in tensors]
        lines.append(state_digest(self._same).to_text())
        return Digest.of("\n".join(lines).encode() + b"\n" + self._after.tree)

    def pieces(self) -> Iterator[AveragedPiece]:
        """The same pieces in every slice; each is made when it is asked for."""
        roles: tuple[Role, ...] = ("model", "optimizer", "scalar")
        for role in roles if self._only_sums else ("",):
            for kind in (np.float32, np.float64):
                for stretches in self._cut(_COMPUTED, kind, role):
                    changes = [self._weighted(each) for each in stretches]
                    yield AveragedPiece(np.concatenate(changes), False, stretches, role)
        for stretches in self._cut(_COUNTED):
            counts = [self._count(each) for each in stretches]
            yield AveragedPiece(np.concatenate(counts), True, stretches)

    def put(self, piece: AveragedPiece) -> None:
        """Keep what a piece came to, once it is everybody's.

        What is not finite is told in the end: other ranks go on with the next piece.
        """
        at = 0
        for each in piece.stretches:
            tensor = self._tensors[each.name]
            numbers = piece.numbers[at : at + each.elements]
            at += each.elements
            if not piece.counts:
                numbers = self._start(each) + numbers
                if not np.isfinite(numbers).all():
                    self._odd = self._odd or each.name
            elif self._only_sums:
                size = np.abs(numbers) // self._only_sums
                numbers = self._counted_before(each) + np.sign(numbers) * size
            _write(tensor, each, numbers)

    def result(self, step: int) -> TrainingState:
        """What every slice goes on from, once all pieces were ``put``.

        Args:
            step: Of the slice that made most steps.

        Raises:
            JobError: ``not-finite``: too large a sum, or a rank that says what none is.
        """
        if self._odd:
            raise _not_finite(self._odd)
        found = self._target
        tensors = bytes(found) if isinstance(found, bytearray) else found
        return replace(self._after, step=step, tensors=tensors)

    def _cut(
        self,
        kinds: Mapping[str, Any],
        computed: type[Any] | None = None,
        role: Role = "",
    ) -> Iterator[tuple[Stretch, ...]]:
        """Stretches of the tensors of these kinds, as many as a piece has numbers."""
        found, left = list[Stretch](), PIECE_NUMBERS
        for name, tensor in self._tensors.items():
            if computed not in (None, kinds.get(tensor.dtype)) or (
                tensor.dtype not in kinds
            ):
                continue
            if role and role != _role(name, tensor):
                continue
            start = 0
            while start < tensor.elements:
                found.append(Stretch(name, start, min(left, tensor.elements - start)))
                start, left = start + found[-1].elements, left - found[-1].elements
                if not left:
                    yield tuple(found)
                    found, left = [], PIECE_NUMBERS
        if found:
            yield tuple(found)

    def _count(self, each: Stretch) -> Array:
        count = _counted(self._tensors[each.name], each)
        return count - self._counted_before(each) if self._only_sums else count

    def _counted_before(self, each: Stretch) -> Array:
        if each.name in self._began:
            return _counted(self._began[each.name], each)
        return np.zeros(each.elements, np.int64)

    def _start(self, each: Stretch) -> Array:
        tensor = self._tensors[each.name]
        if each.name in self._began and not is_moved(each.name, tensor):
            return _numbers(self._began[each.name], each)
        return np.zeros(each.elements, _COMPUTED[tensor.dtype])

    def _change(self, each: Stretch) -> Array:
        change: Array = _numbers(self._tensors[each.name], each)
        change -= self._start(each)
        return change

    def _weighted(self, each: Stretch) -> Array:
        change = self._change(each)
        weight = self._share
        if each.name.startswith(MODEL):
            weight *= self._factor
        change *= change.dtype.type(weight)
        return change

    def _shortening(self, max_norm: float) -> float:
        """What a change is multiplied with; all of it is looked at once."""
        squares: list[float] = []
        for stretches in self._cut(_COMPUTED):
            for each in stretches:
                change = self._change(each)
                if not np.isfinite(change).all():
                    raise _not_finite(each.name)
                if max_norm and each.name.startswith(MODEL):
                    squares.append(float(np.square(change, dtype=np.float64).sum()))
        norm = math.sqrt(math.fsum(squares))
        return min(1.0, max_norm / norm) if norm else 1.0


def mean_state(contributions: Sequence[Contribution], step: int) -> TrainingState:
    """What slices that were all trained here come to, added in their order.

    Raises:
        JobError: ``states-differ``.
    """
    first = contributions[0]
    demand_same_form([each.form for each in contributions])
    for mine, *others in zip(*(each.pieces() for each in contributions), strict=True):
        for theirs in others:
            mine.combine(theirs)
        first.put(mine)
    return first.result(step)


def demand_same_form(forms: Sequence[Digest]) -> None:
    """Raises ``states-differ`` with the first slice whose state is another than slice 0's."""
    for number, form in enumerate(forms):
        if form != forms[0]:
            raise differ(
                f"slice {number} has other tensors, plain values or weights than "
                "slice 0"
            )


def _is_same(name: str, summed: Collection[str]) -> bool:
    return not name.startswith(MODEL) or name.removeprefix(MODEL) in summed


def _role(name: str, tensor: TensorBytes) -> Role:
    """Numbers of one size: a count of steps beside squares of gradients has none."""
    if name.startswith(MODEL):
        return "model"
    return "scalar" if tensor.elements == 1 else "optimizer"


def differ(why: str) -> JobError:
    """The error for states that have no mean."""
    return JobError(
        "the slices' states cannot be averaged", why=why, code="states-differ"
    )


def _not_finite(name: str) -> JobError:
    _, _, own = name.partition("/")
    return JobError(f"{own} contains NaN or infinity", code="not-finite")


def _whole(content: Content) -> bytes:
    return read_of(content, 0, len(content))


def _elements(tensor: TensorBytes, each: Stretch, kind: Any) -> Array:
    size = np.dtype(kind).itemsize
    raw = read_of(tensor.content, each.start * size, each.elements * size)
    return np.frombuffer(raw, kind)


def _counted(tensor: TensorBytes, each: Stretch) -> Array:
    return _elements(tensor, each, _COUNTED[tensor.dtype]).astype(np.int64)


def _numbers(tensor: TensorBytes, each: Stretch) -> Array:
    """Elements in the precision in which they are averaged; a copy."""
    if tensor.dtype == "BF16":
        upper = _elements(tensor, each, np.uint16).astype(np.uint32)
        return (upper << 16).view(np.float32)
    found = _elements(tensor, each, ELEMENT_KINDS[tensor.dtype])
    return found.astype(_COMPUTED[tensor.dtype])


ELEMENT_KINDS: Final = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def _write(tensor: TensorBytes, each: Stretch, numbers: Array) -> None:
    if tensor.dtype == "BF16":  # to the nearest, ties to even
        bits = numbers.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        found = rounded.astype(np.uint16)
    else:
        kind = ELEMENT_KINDS.get(tensor.dtype) or _COUNTED[tensor.dtype]
        found = numbers.astype(kind)
    raw, start = found.tobytes(), each.start * found.itemsize
    if isinstance(tensor.content, Held):
        tensor.content.write(start, raw)
    else:
        content = require_kind(tensor.content, memoryview)
        content[start : start + len(raw)] = raw
