"""What a tensor is to a group: an element type that all know, chunks, segments.

A rank reduces one chunk; a chunk is sent as segments, each a message. Source:
spec/collective.md sections 2 and 3.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.errors import UsageError

Array = NDArray[Any]

DTYPES: Final = tuple(
    np.dtype(name)
    for name in (
        *("float32", "float64", "float16", "int64", "int32", "int16", "int8"),
        *("uint8", "bool"),
    )
)


def flat_view(tensor: Array) -> Array:
    """All elements in one row, where they are.

    Raises:
        UsageError: code ``bad-tensor``, if they do not lie in one, or have another type.
    """
    if tensor.dtype not in DTYPES:
        raise bad_tensor(f"{tensor.dtype} is no element type of a group")
    if not tensor.flags.c_contiguous:
        raise bad_tensor("its elements do not lie in one row")
    return tensor.reshape(-1)


def bad_tensor(why: str) -> UsageError:
    """A tensor that no collective takes."""
    what = "a tensor cannot be used in a collective"
    return UsageError(what, why=why, code="bad-tensor")


def chunks_of(flat: Array, world: int) -> list[Array]:
    """One contiguous chunk a rank; they differ by one element at most."""
    bounds = [flat.size * k // world for k in range(world + 1)]
    return [flat[a:b] for a, b in pairwise(bounds)]


def segments_of(chunk: Array, segment_bytes: int) -> list[Array]:
    """In order, each a message; of an empty chunk there is none."""
    step = max(1, segment_bytes // chunk.itemsize)
    return [chunk[at : at + step] for at in range(0, chunk.size, step)]
