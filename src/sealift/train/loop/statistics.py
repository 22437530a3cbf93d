"""Sums of ``prepare`` outside the recipe's process: checked and added without torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from sealift.codec import MAX_INTEGER
from sealift.errors import MalformedError
from sealift.train.loop.tensors import TensorBytes, pack_tensors, parse_tensors

MAX_SUMS: Final = 65_536
_FORMATS: Final = {"F64": "d", "I64": "q"}


def check_sums(blob: bytes) -> dict[str, TensorBytes]:
    """The sums in a blob that a recipe's process handed over.

    Raises:
        MalformedError: code ``bad-tensors``, if they are none, too many, or one of them
            is not finite or a whole number above 2^53 - 1.
    """
    found = parse_tensors(blob)
    # A sum of no numbers tells nothing but its shape, which may be as large as it likes.
    known = all(each.dtype in _FORMATS and each.elements for each in found.values())
    if not known or sum(each.elements for each in found.values()) > MAX_SUMS:
        raise MalformedError("not sums", code="bad-tensors")
    for each in found.values():
        for number in sum_numbers(each):
            _checked(number)
    return found


def add_sums(blobs: Iterable[bytes]) -> bytes:
    """Sums of several parts, added in this order.

    Raises:
        MalformedError: if names, kinds or shapes differ, or a sum left its range.
    """
    total: dict[str, TensorBytes] | None = None
    for blob in blobs:
        found = check_sums(blob)
        if total is None:
            total = found
            continue
        if _forms(found) != _forms(total):
            raise MalformedError("sums of different things", code="bad-tensors")
        total = {name: _plus(total[name], each) for name, each in found.items()}
    return pack_tensors(total or {})


def sum_numbers(tensor: TensorBytes) -> tuple[float, ...] | tuple[int, ...]:
    """The numbers of one sum."""
    return struct.unpack(f"<{tensor.elements}{_FORMATS[tensor.dtype]}", tensor.content)


def _forms(sums: Mapping[str, TensorBytes]) -> dict[str, str]:
    return {name: each.form for name, each in sums.items()}


def _plus(left: TensorBytes, right: TensorBytes) -> TensorBytes:
    pairs = zip(sum_numbers(left), sum_numbers(right), strict=True)
    content = struct.pack(
        f"<{left.elements}{_FORMATS[left.dtype]}", *[_checked(a + b) for a, b in pairs]
    )
    return TensorBytes(left.dtype, left.shape, memoryview(content))


def _checked(number: float) -> float:
    """Finite, and exact where it is whole."""
    if isinstance(number, int) and abs(number) > MAX_INTEGER:
        raise MalformedError("a sum left its range", code="bad-tensors")
    if not math.isfinite(number):
        raise MalformedError("a sum is no number", code="bad-tensors")
    return number
