"""What a tensor is to a group: an element type that all know, chunks, segments.

A rank reduces one chunk; a chunk is sent as segments, each a message. Source:
spec/collective.md sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sealift.channel.device.device import DeviceTensor
from sealift.collective.announcement import Reduction
from sealift.errors import UsageError
from sealift.ids import Buffer

Array = NDArray[Any]
Numbers = TypeVar("Numbers", Array, DeviceTensor)
_COMBINE: Final[Mapping[Reduction, Any]] = {
    Reduction.SUM: np.add,
    Reduction.MAX: np.maximum,
    Reduction.MIN: np.minimum,
    Reduction.PRODUCT: np.multiply,
    Reduction.BITS_AND: np.bitwise_and,
    Reduction.BITS_OR: np.bitwise_or,
    Reduction.BITS_XOR: np.bitwise_xor,
}
_OF_BITS: Final = {Reduction.BITS_AND, Reduction.BITS_OR, Reduction.BITS_XOR}

DTYPES: Final = tuple(
    np.dtype(name)
    for name in (
        *("float32", "float64", "float16", "int64", "int32", "int16", "int8"),
        *("uint8", "bool", "complex64", "complex128", "uint16", "uint32", "uint64"),
    )
)


def flat_view(tensor: Numbers) -> Numbers:
    """All elements in one row, where they are.

    Raises:
        UsageError: code ``bad-tensor``, if they do not lie in one, or have another type.
    """
    if isinstance(tensor, DeviceTensor):  # is nothing else
        return tensor
    if tensor.dtype not in DTYPES:
        raise bad_tensor(f"collectives do not support elements of type {tensor.dtype}")
    if not tensor.flags.c_contiguous:
        raise bad_tensor("its elements are not contiguous")
    return tensor.reshape(-1)


def demand_reducible(dtype: np.dtype[Any], reduction: Reduction) -> None:
    """Whether elements of this type can be combined so.

    Raises:
        UsageError: code ``bad-tensor``.
    """
    ordered = reduction in (Reduction.MAX, Reduction.MIN)
    if (dtype.kind == "c" and ordered) or (
        dtype.kind in "fc" and reduction in _OF_BITS
    ):
        raise bad_tensor(f"there is no {reduction.name.lower()} of {dtype} elements")


def bad_tensor(why: str) -> UsageError:
    """A tensor that no collective takes."""
    what = "a tensor cannot be used in a collective"
    return UsageError(what, why=why, code="bad-tensor")


def chunks_of(flat: Numbers, world: int) -> list[Numbers]:
    """One contiguous chunk a rank; they differ by one element at most."""
    bounds = [flat.size * k // world for k in range(world + 1)]
    return [flat[a:b] for a, b in pairwise(bounds)]


def segments_of(chunk: Numbers, segment_bytes: int) -> list[Numbers]:
    """In order, each a message; of an empty chunk there is none."""
    step = max(1, segment_bytes // chunk.itemsize)
    return [chunk[at : at + step] for at in range(0, chunk.size, step)]


class Store(Protocol[Numbers]):
    """Where tensors lie: what is sent of them, and how they are combined."""

    def message(self, piece: Numbers) -> Any:
        """What a peer is sent, or sends."""

    def room(self, second: bool, like: Numbers) -> Numbers:
        """Private memory for a segment: rank 0's, which totals grow in, or another's."""

    def beside(self, flat: Numbers) -> Numbers:
        """Memory for a sum that is not to lie where its tensor does."""

    def combine(
        self, reduction: Reduction, a: Numbers, b: Numbers, out: Numbers
    ) -> Numbers:
        """``out = a + b``, or what the reduction is; ``out`` may be either."""

    def assign(self, out: Numbers, value: Numbers) -> None:
        """``out = value``."""


class HostStore:
    """Tensors in the host's memory; see ``Store``."""

    def __init__(self) -> None:
        self._scratch = bytearray()

    def message(self, piece: Array) -> Buffer:
        """What a peer is sent, or sends."""
        return piece.data

    def room(self, second: bool, like: Array) -> Array:
        """Private memory for a segment: rank 0's, which totals grow in, or another's."""
        if len(self._scratch) < 2 * like.nbytes:
            self._scratch = bytearray(2 * like.nbytes)
        return np.frombuffer(self._scratch, like.dtype, like.size, second * like.nbytes)

    def beside(self, flat: Array) -> Array:
        """Memory for a sum that is not to lie where its tensor does."""
        return np.empty_like(flat)

    def combine(self, reduction: Reduction, a: Array, b: Array, out: Array) -> Array:
        """``out = a + b``, or what the reduction is; ``out`` may be either."""
        found: Array = _COMBINE[reduction](a, b, out=out)
        return found

    def assign(self, out: Array, value: Array) -> None:
        """``out = value``."""
        out[...] = value
