"""What every batch of a link is: names, element types, shapes; and where they lie.

Fixed before anything crosses, and said by both ends, so that no length, shape or name
comes from the other one. Fields stand in the form's order, little-endian, row-major, each
at a multiple of 64 bytes; gaps and end are zero bytes. All calls of an end use the same
memory for a batch, so there is one at a time.
"""

from __future__ import annotations

import math
import re
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.data.schema.schema import DTYPES
from sealift.errors import MalformedError, PolicyError, UsageError

ALIGNMENT_BYTES: Final = 64
MAX_BATCH_BYTES: Final = 1 << 30
MAX_FIELDS: Final = 64
MAX_DIMENSIONS: Final = 8
Spec = Mapping[str, tuple[str, Sequence[int]]]
"""Element type and shape by name: ``{"x": ("float32", (32, 8))}``."""

LAST_WORD: Final = struct.Struct(">8sQ")  # shorter than any batch
_LAST_MAGIC: Final = b"SLTEND\0\x01"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class BatchField:
    """One array of a batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {self.shape}"

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * DTYPES[self.dtype].size_bytes


@dataclass(frozen=True, slots=True)
class BatchForm:
    """Every array of a batch, in order."""

    fields: tuple[BatchField, ...]

    @property
    def batch_bytes(self) -> int:
        """Bytes that cross for a batch; a multiple of 64."""
        return sum(_aligned(field.nbytes) for field in self.fields)

    def places(self) -> Iterator[tuple[BatchField, int]]:
        """Every field, and where it begins."""
        start = 0
        for field in self.fields:
            yield field, start
            start += _aligned(field.nbytes)

    def require_names(self, found: Mapping[str, object]) -> None:
        """Refuse a batch with other names.

        Raises:
            UsageError: code ``batch-differs``.
        """
        wanted = [field.name for field in self.fields]
        if not isinstance(found, Mapping):
            raise batch_differs(f"it is a {type(found).__name__}", ", ".join(wanted))
        if set(found) != set(wanted):
            given = ", ".join(sorted(map(str, found)))[:200] or "nothing"
            raise batch_differs(f"it has the fields {given}", ", ".join(wanted))

    def require_same(self, other: BatchForm) -> None:
        """Refuse the form that the other end sends, unless it is this one.

        Raises:
            PolicyError: code ``form-differs``; names the first field that differs.
        """
        for number in range(max(len(self.fields), len(other.fields))):
            ours, theirs = _at(self.fields, number), _at(other.fields, number)
            if ours != theirs:
                raise PolicyError(
                    "the two ends of the link expect different batches",
                    why=f"the other end has {str(theirs)[:80]}; this end has {ours}",
                    code="form-differs",
                )


def form_of(spec: Spec) -> BatchForm:
    """The form that a caller wrote.

    Raises:
        UsageError: code ``bad-batch-form``, naming the field; or ``batch-too-large``.
    """
    if not isinstance(spec, Mapping):
        raise _bad(f"it is a {type(spec).__name__}")
    if not 1 <= len(spec) <= MAX_FIELDS:
        raise _bad(f"it must have 1 to {MAX_FIELDS} fields")
    form = BatchForm(tuple(_field(name, entry) for name, entry in spec.items()))
    if form.batch_bytes > MAX_BATCH_BYTES:
        raise UsageError(
            f"a batch has {form.batch_bytes} bytes; the limit is {MAX_BATCH_BYTES}",
            code="batch-too-large",
        )
    return form


def last_word(num_batches: int) -> bytes:
    """The transfer that says that there were so many batches, and no more come."""
    return LAST_WORD.pack(_LAST_MAGIC, num_batches)


def require_last_word(found: bytes, num_batches: int) -> None:
    """Refuse another end than that after ``num_batches``.

    Raises:
        MalformedError: code ``bad-batch``.
    """
    if found != last_word(num_batches):
        raise MalformedError(
            "the end message does not match the batches that were received",
            code="bad-batch",
        )


def batch_differs(found: str, wanted: str) -> UsageError:
    """A batch that is not of the form."""
    return UsageError(
        f"the batch does not match the link's form: {found}",
        why=f"the form requires {wanted}",
        code="batch-differs",
    )


def _field(name: str, entry: tuple[str, Sequence[int]]) -> BatchField:
    try:
        dtype, lengths = entry
        shape = tuple(lengths)
    except (TypeError, ValueError):
        raise _bad(f"{name} must be a pair (dtype, shape)") from None
    if not _NAME.fullmatch(str(name)):
        raise _bad(f"{name!r} is not a valid name")
    if type(dtype) is not str or dtype not in DTYPES:
        raise _bad(
            f"{name} has the type {dtype!r}, which is not one of {', '.join(DTYPES)}"
        )
    whole = all(type(each) is int and 1 <= each <= MAX_BATCH_BYTES for each in shape)
    if not whole or len(shape) > MAX_DIMENSIONS:
        raise _bad(f"{name} has the invalid shape {shape}")
    return BatchField(name, dtype, shape)


def _at(fields: tuple[BatchField, ...], number: int) -> BatchField | str:
    return fields[number] if number < len(fields) else "no more fields"


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _bad(why: str) -> UsageError:
    return UsageError(
        "the form of the batches is not valid", why=why, code="bad-batch-form"
    )


class OneCall:
    """Entered around every call; a second one meanwhile is refused, and harms nothing.

    It is not made to wait: what feeds a link would wait for itself, if it sent, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "this end of the link is already used by another call",
                code="link-in-use",
            )

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
