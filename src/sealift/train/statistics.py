"""Sums of ``prepare`` outside the recipe's process: checked and added without torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final

from sealift.codec import MAX_INTEGER
from sealift.errors import MalformedError
from sealift.train.tensors import TensorBytes, pack_tensors, parse_tensors

MAX_SUMS: Final = 65_536
_FORMATS: Final = {"F64": "d", "I64": "q"}


def check_sums(blob: bytes) -> dict[str, TensorBytes]:
    """The sums in a blob that a recipe's process handed over.

    Raises:
        MalformedError: code ``bad-tensors``.
    """
    found = parse_tensors(blob)
    known = all(each.dtype in _FORMATS for each in found.values())
    if not known or sum(each.elements for each in found.values()) > MAX_SUMS:
        raise MalformedError("not sums", code="bad-tensors")
    return found


def add_sums(blobs: Iterable[bytes]) -> bytes:
    """Sums of several parts, added in this order.

    Raises:
        MalformedError: if names, kinds or shapes differ, or a sum left its range.
    """
    total: dict[str, TensorBytes] = {}
    for blob in blobs:
        found = check_sums(blob)
        forms = {name: each.form for name, each in found.items()}
        if total and forms != {name: each.form for name, each in total.items()}:
            raise MalformedError("sums of different things", code="bad-tensors")
        total = {
            name: _plus(total[name], each) if total else each
            for name, each in found.items()
        }
    return pack_tensors(total)


def sum_numbers(tensor: TensorBytes) -> tuple[float, ...] | tuple[int, ...]:
    """The numbers of one sum."""
    return struct.unpack(f"<{tensor.elements}{_FORMATS[tensor.dtype]}", tensor.content)


def _plus(left: TensorBytes, right: TensorBytes) -> TensorBytes:
    pairs = zip(sum_numbers(left), sum_numbers(right), strict=True)
    numbers = [a + b for a, b in pairs]
    if not all(
        math.isfinite(each) and abs(each) <= MAX_INTEGER for each in numbers
    ) and (left.dtype == "I64"):
        raise MalformedError("a sum left its range", code="bad-tensors")
    content = struct.pack(f"<{left.elements}{_FORMATS[left.dtype]}", *numbers)
    return TensorBytes(left.dtype, left.shape, memoryview(content))
