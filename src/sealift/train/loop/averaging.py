"""The mean of several slices' training states, by rows: what a round of training comes to.

A slice contributes its change: what a round made of model and optimizer, less what both
were before, times its share of all rows; a bound shortens a change whose norm over the
model is larger. Contributions are added in the order of slices, by a group of ranks or
here, and every slice goes on from the same state. Whole numbers (counters) are the
largest of anybody's. So ``local`` with as many slices as there are ranks computes the same
bits. Where gradients were added up in every step, weights and optimizer are the
same everywhere and are demanded to be; what no gradient belongs to (buffers) has its mean.
Not here: that a contribution is what training made of a slice's rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.errors import JobError, require_value
from sealift.ids import Digest
from sealift.train.loop.states import (
    MODEL,
    TensorBytes,
    TrainingState,
    pack_tensors,
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


class Contribution:
    """What one slice brings to a round; its arrays are then added up, or maximised.

    Args:
        before: What every slice began the round with.
        after: What this one made of it.
        share: Its rows, of all rows of the round.
        max_norm: Of its change of the model, before it is weighted; 0 bounds nothing.
        summed: The model's tensors whose gradients were added up in every step: they and
            the optimizer are the same in every slice. None where every slice trained
            for itself.

    Attributes:
        sums: To be added, a float32 and a float64 vector; may be empty.
        most: To be maximised, int64.
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
    ) -> None:
        self._after = after
        self._all = parse_tensors(after.tensors)
        same = {n for n in self._all if summed is not None and _is_same(n, summed)}
        self._same = {n: each for n, each in self._all.items() if n in same}
        self._tensors = {n: each for n, each in self._all.items() if n not in same}
        began = parse_tensors(before.tensors)
        self._base, changes = [], dict[str, Array]()
        for name, tensor in self._tensors.items():
            if tensor.dtype in _COMPUTED:
                if name in began and began[name].form != tensor.form:
                    raise differ(f"{name} has another type or shape than at the start")
                now = _numbers(tensor)
                start = _numbers(began[name]) if name in began else np.zeros_like(now)
                self._base.append(start)
                changes[name] = now - start
            elif tensor.dtype not in _COUNTED:
                raise differ(f"tensors of type {tensor.dtype} have no mean")
        _require_finite(changes)
        factor = _shortening(changes, max_norm)
        self.shortened = factor < 1.0
        for name, change in changes.items():
            weight = share * factor if name.startswith(MODEL) else share
            change *= change.dtype.type(weight)
        self._changes = list(changes.values())
        self.sums = [self._flat(np.float32), self._flat(np.float64)]
        counted = [t for t in self._tensors.values() if t.dtype in _COUNTED]
        wide = [_whole(t).astype(np.int64) for t in counted]
        self.most = np.concatenate([np.empty(0, np.int64), *wide])

    @property
    def form(self) -> Digest:
        """What must be the same of every slice: names, types, shapes, plain values.

        Also the bits of what is the same everywhere.
        """
        tensors = sorted(self._all.items())
        lines = [f"{name}|{tensor.form}" for name, tensor in tensors]
        lines.append(state_digest(self._same).to_text())
        return Digest.of("\n".join(lines).encode() + b"\n" + self._after.tree)

    def result(self, step: int) -> TrainingState:
        """What every slice goes on from, once ``sums`` and ``most`` are everybody's.

        Args:
            step: Of the slice that made most steps.

        Raises:
            JobError: ``not-finite``: too large a sum, or a rank that says what none is.
        """
        means = self._means()
        counts, at = dict[str, Array](), 0
        for name, tensor in self._tensors.items():
            if tensor.dtype in _COUNTED:
                end = at + tensor.elements
                counts[name] = self.most[at:end].astype(_COUNTED[tensor.dtype])
                at = end
        packed = {
            name: _bytes_of(tensor, means.get(name, counts.get(name)))
            for name, tensor in self._tensors.items()
        }
        tensors = pack_tensors(self._same | packed)
        return replace(self._after, step=step, tensors=tensors)

    def _means(self) -> dict[str, Array]:
        names = [n for n, each in self._tensors.items() if each.dtype in _COMPUTED]
        at, found = {np.dtype(np.float32): 0, np.dtype(np.float64): 0}, {}
        total = {each.dtype: each for each in self.sums}
        for name, base in zip(names, self._base, strict=True):
            end = at[base.dtype] + base.size
            found[name] = base + total[base.dtype][at[base.dtype] : end]
            at[base.dtype] = end
        _require_finite(found)
        return found

    def _flat(self, kind: type[Any]) -> Array:
        own = [each for each in self._changes if each.dtype == kind]
        return np.concatenate([np.empty(0, kind), *own])


def mean_state(contributions: Sequence[Contribution], step: int) -> TrainingState:
    """What slices that were all trained here come to, added in their order.

    Raises:
        JobError: ``states-differ``.
    """
    first, *others = contributions
    demand_same_form([each.form for each in contributions])
    for other in others:
        for mine, theirs in zip(first.sums, other.sums, strict=True):
            mine += theirs
        np.maximum(first.most, other.most, out=first.most)
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


def differ(why: str) -> JobError:
    """The error for states that have no mean."""
    return JobError(
        "the slices' states cannot be averaged", why=why, code="states-differ"
    )


def _require_finite(changes: dict[str, Array]) -> None:
    for name, change in changes.items():
        if not np.isfinite(change).all():
            _, _, own = name.partition("/")
            raise JobError(f"{own} contains NaN or infinity", code="not-finite")


def _shortening(changes: dict[str, Array], max_norm: float) -> float:
    if not max_norm:
        return 1.0
    squares = (
        float(np.square(change, dtype=np.float64).sum())
        for name, change in changes.items()
        if name.startswith(MODEL)
    )
    norm = math.sqrt(math.fsum(squares))
    return min(1.0, max_norm / norm) if norm else 1.0


def _whole(tensor: TensorBytes) -> Array:
    return np.frombuffer(tensor.content, _COUNTED[tensor.dtype])


def _numbers(tensor: TensorBytes) -> Array:
    """A tensor's elements in the precision in which they are averaged; a copy."""
    if tensor.dtype == "BF16":
        upper = np.frombuffer(tensor.content, np.uint16).astype(np.uint32)
        return (upper << 16).view(np.float32)
    kind = np.dtype(ELEMENT_KINDS[tensor.dtype])
    return np.frombuffer(tensor.content, kind).astype(_COMPUTED[tensor.dtype])


ELEMENT_KINDS: Final = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def _bytes_of(tensor: TensorBytes, numbers: Array | None) -> TensorBytes:
    numbers = require_value(numbers, "every tensor is averaged or counted")
    if tensor.dtype == "BF16":  # to the nearest, ties to even
        bits = numbers.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        content = rounded.astype(np.uint16).tobytes()
    else:
        kind = ELEMENT_KINDS.get(tensor.dtype) or _COUNTED[tensor.dtype]
        content = numbers.astype(kind).tobytes()
    return replace(tensor, content=memoryview(content))
