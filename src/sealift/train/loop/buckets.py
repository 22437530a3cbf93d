"""Gradients in buckets: what is added up in one go, in an order that the parameters fix.

The process that trains and its parent cut the same buckets, out of names that it announces
once for each task and the state that it was given: nothing of a batch is in their number,
sizes and order. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.errors import MalformedError
from sealift.train.loop.states import TensorBytes

Array = NDArray[Any]
ALIGNMENT: Final = 64
_SUMMED: Final = {"F32": "float32", "F64": "float64"}


@dataclass(frozen=True, slots=True)
class Trained:
    """Announces whose gradients are added up in every step of a task.

    Attributes:
        names: Parameters, the model's last ones first: so their gradients come.
        tied: Other names of the same.
    """

    names: tuple[str, ...]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that lie end to end and are added up together.

    Attributes:
        number: Its place in the order.
        start: Byte at which it begins, behind the ones before it.
        dtype: Of its elements, as numpy names it.
        names: Whose gradients.
        sizes: Elements of each.
    """

    number: int
    start: int
    dtype: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers."""
        return sum(self.sizes)

    @property
    def length(self) -> int:
        """How many bytes."""
        return self.elements * np.dtype(self.dtype).itemsize

    def first_odd(self, gradient: Array) -> str | None:
        """The first parameter whose gradient is not finite."""
        finite = np.isfinite(gradient)
        return None if finite.all() else self.name_at(int(np.argmin(finite)))

    def name_at(self, index: int) -> str:
        """Whose gradient has the element of that number."""
        pairs = zip(self.names, accumulate(self.sizes), strict=True)
        return next(name for name, end in pairs if index < end)


def cut_buckets(
    trained: Trained,
    tensors: Mapping[str, TensorBytes],
    bucket_bytes: int,
    *,
    units: bool = False,
) -> tuple[Bucket, ...]:
    """The buckets of a task.

    Args:
        trained: As announced.
        tensors: The model's, by name.
        bucket_bytes: The most that one has, unless a single parameter has more.
        units: They have whole numbers of 64 bits in place of the parameters' own type.

    Raises:
        MalformedError: if the model has no such parameters to add up.
    """
    names = (*trained.names, *trained.tied)
    if (
        not trained.names
        or len(set(names)) != len(names)
        or not set(names) <= {*tensors}
    ):
        raise MalformedError(
            "the message does not describe a model's parameters", code="bad-message"
        )
    found: list[Bucket] = []
    parts: list[str] = []
    held = 0
    for name in trained.names:
        of = tensors[name]
        if of.dtype not in _SUMMED or not of.elements:
            raise MalformedError(
                f"gradients of type {of.dtype} cannot be summed", code="bad-message"
            )
        other = parts and not units and tensors[parts[0]].dtype != of.dtype
        length = 8 * of.elements if units else len(of.content)
        if parts and (other or held + length > bucket_bytes):
            found.append(_bucket(found, parts, tensors, units))
            parts, held = [], 0
        parts.append(name)
        held += length
    return (*found, _bucket(found, parts, tensors, units))


def _bucket(
    before: Sequence[Bucket],
    names: Sequence[str],
    tensors: Mapping[str, TensorBytes],
    units: bool,
) -> Bucket:
    start = before[-1].start + before[-1].length if before else 0
    return Bucket(
        number=len(before),
        start=start + -start % ALIGNMENT,
        dtype="int64" if units else _SUMMED[tensors[names[0]].dtype],
        names=tuple(names),
        sizes=tuple(tensors[name].elements for name in names),
    )
