"""What a rank is about to do in a group: said to every peer before any of its data.

All ranks must be about to do the same. Each sends its announcement and its data without
waiting for an answer; each compares what it hears with its own before it takes data, so
ranks that drifted apart find out, all of them, and nothing is summed (rule N4).
Not here: who said it; the pipe that it came through is one peer's alone.
Source: spec/collective.md section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final, Self

from sealift.errors import JobError, MalformedError

_LAYOUT: Final = struct.Struct(">8sQBBBBQQ32sI")
_MAGIC: Final = b"SEALCOL\x02"
ANNOUNCEMENT_BYTES: Final = _LAYOUT.size


class Operation(IntEnum):
    """What is computed; the names are those of torch.distributed."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    BARRIER = 5
    AGREE = 6
    SEND = 7  # from one rank to one other: the sender alone announces it
    GATHER = 8
    SCATTER = 9
    ALL_TO_ALL = 10
    REDUCE = 11


class Reduction(IntEnum):
    """How contributions become one; none for what only moves data."""

    NONE = 0
    SUM = 1
    MAX = 2
    MIN = 3
    PRODUCT = 4
    BITS_AND = 5
    BITS_OR = 6
    BITS_XOR = 7


class Algorithm(IntEnum):
    """Who sends what to whom; the letters are those of spec/collective.md section 3."""

    TWO_PHASE = 1  # C: each rank reduces a chunk, then everybody gathers them
    ONE_PHASE = 2  # D: everybody sends everything to everybody


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAnnouncement:
    """One collective, as every rank must be about to do it.

    Attributes:
        number: Collectives of this group before this one; of ``SEND``, messages from
            this sender to this receiver before this one.
        dtype: Number of the element type (``group.DTYPES``).
        root: The rank that data comes from, or is collected by; else 0.
        elements: Of the whole tensor.
        segment_bytes: How long a message of its data is, the last of a chunk aside.
        plan: Digest of the choices that the ranks made together; zeroes before.
        tag: Of ``SEND``, as both sides call the message; else 0.
    """

    number: int
    operation: Operation
    reduction: Reduction = Reduction.NONE
    dtype: int = 0
    algorithm: Algorithm = Algorithm.TWO_PHASE
    root: int = 0
    elements: int = 0
    segment_bytes: int = 0
    plan: bytes = bytes(32)
    tag: int = 0

    def encode(self) -> bytes:
        """As it is sent, ``ANNOUNCEMENT_BYTES`` long."""
        return _LAYOUT.pack(
            _MAGIC,
            self.number,
            self.operation,
            self.reduction,
            self.dtype,
            self.algorithm << 4 | self.root,
            self.elements,
            self.segment_bytes,
            self.plan,
            self.tag,
        )

    @classmethod
    def parse(cls, raw: bytes | bytearray) -> Self:
        """Read what ``encode`` wrote.

        Raises:
            MalformedError: code ``bad-announcement``.
        """
        magic, number, operation, reduction, dtype, how, *rest = _LAYOUT.unpack(raw)
        try:
            if magic != _MAGIC:
                raise ValueError("not an announcement of this version")
            return cls(
                number=number,
                operation=Operation(operation),
                reduction=Reduction(reduction),
                dtype=dtype,
                algorithm=Algorithm(how >> 4),
                root=how & 15,
                elements=rest[0],
                segment_bytes=rest[1],
                plan=rest[2],
                tag=rest[3],
            )
        except ValueError as error:
            raise MalformedError(
                "a rank sent an invalid announcement",
                why=error,
                code="bad-announcement",
            ) from None

    def demand_same(self, raw: bytes | bytearray, rank: int) -> None:
        """Compare with what ``rank`` announced.

        Raises:
            JobError: code ``ranks-drifted``, with what differs.
            MalformedError: code ``bad-announcement``.
        """
        if raw == self.encode():
            return
        theirs = self.parse(raw)
        raise JobError(
            f"rank {rank} began another collective operation than this rank",
            why="; ".join(self._differences(theirs)),
            code="ranks-drifted",
            ranks=(rank,),
        )

    def _differences(self, theirs: CollectiveAnnouncement) -> Iterator[str]:
        for field in fields(self):
            here, there = (getattr(each, field.name) for each in (self, theirs))
            if here != there:
                yield (
                    f"{field.name}: {_shown(there)} on the other rank, {_shown(here)} here"
                )


def _shown(value: object) -> str:
    if isinstance(value, IntEnum):
        return value.name.lower()
    return value.hex()[:16] if isinstance(value, bytes) else str(value)
