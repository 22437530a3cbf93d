"""Tensors as bytes in the layout of safetensors, without torch.

A blob is an 8-byte little-endian length, a JSON object, and the tensors' bytes end to
end. Blobs come from processes that run a recipe, so reading is strict: known element
types, sizes that fit shapes, no gap, no overlap, no name twice, nothing behind the end.
Source: https://github.com/huggingface/safetensors (section Format).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sealift.codec import MAX_INTEGER
from sealift.errors import MalformedError

MAX_HEADER_BYTES: Final = 16 << 20
MAX_DIMENSIONS: Final = 64
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"

# Bytes of one element, and torch's name for it.
ELEMENTS: Final[Mapping[str, tuple[int, str]]] = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "I16": (2, "int16"),
    "U16": (2, "uint16"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "I32": (4, "int32"),
    "U32": (4, "uint32"),
    "F32": (4, "float32"),
    "I64": (8, "int64"),
    "U64": (8, "uint64"),
    "F64": (8, "float64"),
    "C64": (8, "complex64"),
}


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor without torch.

    Attributes:
        dtype: Name in ``ELEMENTS``.
        shape: Its sizes; none for a scalar.
        content: Its elements, little-endian, row by row.
    """

    dtype: str
    shape: tuple[int, ...]
    content: memoryview

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def form(self) -> str:
        """Element type and shape, as digests name them: ``torch.float32|3x4``."""
        sizes = "x".join(str(size) for size in self.shape)
        return f"torch.{ELEMENTS[self.dtype][1]}|{sizes}"


def pack_tensors(tensors: Mapping[str, TensorBytes]) -> bytes:
    """One blob; long elements first, so that each tensor lies on its own alignment."""
    order = sorted(tensors, key=lambda name: (-ELEMENTS[tensors[name].dtype][0], name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        tensor, start = tensors[name], end
        end += len(tensor.content)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _LENGTH_BYTES)
    length = len(head).to_bytes(_LENGTH_BYTES, "little")
    return b"".join([length, head, *(tensors[name].content for name in order)])


def parse_tensors(blob: bytes | memoryview) -> dict[str, TensorBytes]:
    """The tensors of a blob, as views of it, in the order of their bytes.

    Raises:
        MalformedError: code ``bad-tensors``, at the first thing that does not fit.
    """
    whole = memoryview(blob).cast("B")
    header, start = _read_header(whole)
    header.pop(_METADATA, None)  # a note for people, which nothing here reads
    entries = sorted(
        ((name, *_read_entry(name, each)) for name, each in header.items()),
        key=lambda entry: (entry[3], entry[4]),
    )
    found: dict[str, TensorBytes] = {}
    at = 0
    for name, dtype, shape, first, end in entries:
        if first != at or end - first != math.prod(shape) * ELEMENTS[dtype][0]:
            _refuse("a tensor's place does not fit its shape")
        found[name] = TensorBytes(dtype, shape, whole[start + first : start + end])
        at = end
    if start + at != len(whole):
        _refuse("it is longer or shorter than its tensors")
    return found


def _read_header(whole: memoryview) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(whole[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(whole) < _LENGTH_BYTES or length > MAX_HEADER_BYTES or start > len(whole):
        _refuse("it is shorter than its header")
    try:
        text = bytes(whole[_LENGTH_BYTES:start]).decode("utf-8")
        header = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        _refuse("its header is not JSON")
    if not isinstance(header, dict):
        _refuse("its header is no object")
    return header, start


def _read_entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse("a tensor has other fields than dtype, shape and data_offsets")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENTS:
        _refuse("a tensor has an unknown element type")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        _refuse("a tensor has a shape that is none")
    if not _are_sizes(place) or len(place) != 2:
        _refuse("a tensor has no place")
    return dtype, tuple(shape), place[0], place[1]


def _are_sizes(plain: Any) -> bool:
    return isinstance(plain, list) and all(
        type(size) is int and 0 <= size <= MAX_INTEGER for size in plain
    )


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(name)
        found[name] = value
    return found


def _refuse(why: str) -> NoReturn:
    raise MalformedError("not tensors", why=why, code="bad-tensors")
