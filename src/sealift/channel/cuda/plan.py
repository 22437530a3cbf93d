"""What is launched for one call, and what a batch tells the kernels: pure values.

Whoever wrote a kernel knows its grid and its arguments; the engine knows where things
lie. A plan names addresses, the engine fills them in.

A batch's table is one struct ``sealift_record`` of the kernels for each record (offsets,
lengths, the nonce and the tag if it is told, 64 bytes, little endian); the associated data of all follow, each
on a multiple of 16 bytes.

A record is cut into *segments* of whole tiles; a block of 128 threads hashes and ciphers
one segment, and a second kernel combines the parts of a record's hash. Small batches get
small segments, so that every multiprocessor has work; large ones get large segments,
because each costs two more multiplications a thread.
Numbers here are those of ``kernels/abi.cuh``; tests compare the two.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from sealift.channel.cuda.driver import Argument, GpuFacts, Grid
from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.errors import UsageError

BufferName = Literal[
    "records",  # the array of records (64 bytes each)
    "aad",  # all associated data, one behind the other
    "key",  # the expanded key
    "raw_key",  # 32 bytes; the engine overwrites them after the expansion
    "sealed",
    "plain",
    "verdicts",  # one byte a record: 1 genuine, 0 not
    "scratch",  # 16-byte aligned, of any content
    "target",  # what is counted, or searched
    "total",  # what is added to, or written
    "part",  # what is added, or weighed
    "count",  # where a u64 goes
]

_RECORD: Final = struct.Struct("<QQIIQ12sI16s")
RECORD_BYTES: Final = _RECORD.size
_ALIGNED: Final = 16


@dataclass(frozen=True, slots=True)
class Word32:
    """A 32-bit argument."""

    value: int


@dataclass(frozen=True, slots=True)
class Word64:
    """A 64-bit argument."""

    value: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel.

    Attributes:
        kernel: Its name in the module.
        grid: How it is spread.
        arguments: In order; a ``BufferName`` stands for the address of it.
    """

    kernel: str
    grid: Grid
    arguments: tuple[BufferName | Word32 | Word64, ...]


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Kernels that run one after the other, and the room they share."""

    launches: tuple[Launch, ...]
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """Records of one key, opened piece by piece and judged together at the end.

    An *item* is a segment: record ``i`` has the items from ``i * segments`` on.

    Attributes:
        segments: Items of every record; those behind its end have nothing to do.
        segment_bytes: Plaintext of one.
        before: Run first, once the table is there.
        opening: Opens items from its argument ``FIRST_ITEM`` on; its grid has only the
            blocks that come before those of the first item.
        after: Run last: one verdict a record, or its tag.
        scratch_bytes: The room that all of them share.
    """

    segments: int
    segment_bytes: int
    before: tuple[Launch, ...]
    opening: Launch
    after: tuple[Launch, ...]
    scratch_bytes: int

    def blocks(self, first_item: int, end_item: int) -> int:
        """Blocks that open these items; the first one has blocks of its own."""
        more = 0 if first_item else self.opening.grid.blocks
        return more + end_item - first_item


FIRST_ITEM: Final = 4
"""Which argument of the opening kernel is its first item."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What decides the grid of a batch.

    Attributes:
        num_records: How many.
        longest_bytes: Plaintext of the longest.
        total_bytes: Plaintext of all.
    """

    num_records: int
    longest_bytes: int
    total_bytes: int


def shape_of(places: Sequence[RecordPlace]) -> BatchShape:
    """What decides the grid."""
    lengths = [place.plaintext_bytes for place in places]
    return BatchShape(len(lengths), max(lengths, default=0), sum(lengths))


def table_of(places: Sequence[RecordPlace]) -> bytes:
    """The table; associated data begin at ``RECORD_BYTES * len(places)``."""
    records, associated, at = [], [], 0
    for place in places:
        text = place.associated_data
        records.append(
            _RECORD.pack(
                place.sealed_offset, place.plain_offset, place.plaintext_bytes,
                len(text), at, place.nonce, bool(place.tag), place.tag,
            )
        )  # fmt: skip
        padded = text.ljust(-(-len(text) // _ALIGNED) * _ALIGNED, b"\0")
        associated.append(padded)
        at += len(padded)
    return b"".join((*records, *associated))


def to_arguments(launch: Launch, places: Mapping[str, int]) -> tuple[Argument, ...]:
    """The arguments of a launch, addresses filled in."""
    return tuple(_to_argument(each, places) for each in launch.arguments)


def _to_argument(
    each: BufferName | Word32 | Word64, places: Mapping[str, int]
) -> Argument:
    if isinstance(each, Word32):
        return ctypes.c_uint32(each.value)
    if isinstance(each, Word64):
        return ctypes.c_uint64(each.value)
    return ctypes.c_uint64(places[each])


THREADS: Final = 128
MAX_PLAINTEXT_BYTES: Final = 4 << 20
PART_BYTES: Final = 32
CHACHA_ONE_TIME_BYTES: Final = 2704
_RECORDS_OF_MASK_BLOCK: Final = 8 * THREADS
_WAVES: Final = 3  # blocks per place on the GPU, so that the last wave wastes little
_BLOCK_BYTES: Final = 16 * THREADS  # what a block of threads scrubs at a time
_ENDS: Final[dict[str, tuple[BufferName, BufferName]]] = {
    "open": ("sealed", "plain"),
    "seal": ("plain", "sealed"),
}
_KEPT: Final = 256  # plans; transfers of one kind have few shapes
_COUNT_BLOCKS: Final = 16  # per multiprocessor


@dataclass(frozen=True, slots=True)
class SuiteShape:
    """What differs between the suites.

    Attributes:
        name: As in the kernels' names.
        key_bytes: Size of an expanded key.
        tile_bytes: Plaintext of one step of one block.
        resident: Blocks that fit on a multiprocessor at once.
        most_tiles: The longest segment.
        record_bytes: Scratch of each record, beside tag and parts.
    """

    name: str
    key_bytes: int
    tile_bytes: int
    resident: int
    most_tiles: int
    record_bytes: int


SHAPES: Final = {
    Suite.CHACHA20_POLY1305: SuiteShape(
        "chacha", 32, 8 << 10, 5, 16, CHACHA_ONE_TIME_BYTES
    ),
    Suite.AES_256_GCM: SuiteShape("gcm", 9968, 16 << 10, 4, 16, 16),
}
"""By speed on a GPU, fastest first (derived from instruction counts)."""


def expand_plan(suite: Suite) -> KernelPlan:
    """``raw_key`` to ``key``."""
    kernel = f"sealift_{SHAPES[suite].name}_key_expand"
    return KernelPlan((Launch(kernel, Grid(1, THREADS), ("raw_key", "key")),))


@lru_cache(_KEPT)
def open_plan(suite: Suite, shape: BatchShape, gpu: GpuFacts) -> KernelPlan:
    """``sealed`` to ``plain`` and ``verdicts``; what failed is zero afterwards.

    Raises:
        UsageError: code ``bad-record-length``, for records above 4 MiB.
    """
    return _whole(piece_plan(suite, shape, gpu, shape.total_bytes), shape)


@lru_cache(_KEPT)
def piece_plan(
    suite: Suite, shape: BatchShape, gpu: GpuFacts, piece_bytes: int
) -> PiecePlan:
    """The same in pieces of about so many bytes.

    Raises:
        UsageError: as ``open_plan``.
    """
    return _plan(suite, shape, gpu, operation="open", piece_bytes=piece_bytes)


@lru_cache(_KEPT)
def seal_plan(suite: Suite, shape: BatchShape, gpu: GpuFacts) -> KernelPlan:
    """``plain`` to ``sealed``: ciphertext and tag of each record.

    Raises:
        UsageError: code ``bad-record-length``, for records above 4 MiB.
    """
    sealing = _plan(suite, shape, gpu, operation="seal", piece_bytes=shape.total_bytes)
    return _whole(sealing, shape)


def count_plan(nbytes: int, gpu: GpuFacts) -> KernelPlan:
    """Add the bytes of ``target`` that are not zero to the u64 at ``count``."""
    grid = _sweep(nbytes, gpu)
    launch = Launch("sealift_count_nonzero", grid, ("target", Word64(nbytes), "count"))
    return KernelPlan((launch,))


def segment_tiles(
    suite: Suite, shape: BatchShape, gpu: GpuFacts, piece_bytes: int
) -> int:
    """Tiles of a segment: a power of two that leaves work for every multiprocessor."""
    each = SHAPES[suite]
    tiles = min(shape.total_bytes, piece_bytes) // each.tile_bytes
    wanted = gpu.multiprocessors * each.resident * _WAVES
    longest = _ceil(shape.longest_bytes, each.tile_bytes)
    most = min(each.most_tiles, max(longest, 1), max(tiles // wanted, 1))
    return 1 << (most.bit_length() - 1)


def _plan(
    suite: Suite,
    shape: BatchShape,
    gpu: GpuFacts,
    *,
    operation: Literal["open", "seal"],
    piece_bytes: int,
) -> PiecePlan:
    _check(shape)
    each = SHAPES[suite]
    tiles = segment_tiles(suite, shape, gpu, piece_bytes)
    segments = max(1, _ceil(shape.longest_bytes, tiles * each.tile_bytes))
    counts = (Word32(shape.num_records), Word32(segments), Word32(tiles))
    name = f"sealift_{each.name}"
    if suite is Suite.AES_256_GCM:
        masking = _ceil(shape.num_records, _RECORDS_OF_MASK_BLOCK)
        hashed: tuple[BufferName, ...] = ("key", "aad", "scratch")
        before: tuple[Launch, ...] = ()
    else:
        masking, hashed = 0, ("aad", "scratch")
        before = (_prepare(name, shape, segments),)
    opening = Launch(
        f"{name}_{operation}",
        Grid(masking, THREADS),
        ("records", *counts, Word32(0), "key", *_ENDS[operation], "scratch"),
    )
    after = _judging(name, shape, (*counts, *hashed))
    if operation == "seal":
        after = _placing(name, shape, (*counts, *hashed))
    scratch_bytes = _scratch_bytes(each, shape.num_records, segments)
    segment_bytes = tiles * each.tile_bytes
    return PiecePlan(segments, segment_bytes, before, opening, after, scratch_bytes)


def _judging(
    name: str, shape: BatchShape, hashed: tuple[BufferName | Word32, ...]
) -> tuple[Launch, ...]:
    grid = Grid(shape.num_records, THREADS)
    ends: tuple[BufferName, ...] = ("sealed", "plain", "verdicts")
    return (Launch(f"{name}_judge", grid, ("records", *hashed, *ends)),)


def _placing(
    name: str, shape: BatchShape, hashed: tuple[BufferName | Word32, ...]
) -> tuple[Launch, ...]:
    grid = Grid(shape.num_records, THREADS)
    place = Launch(
        "sealift_place_tags",
        Grid(_ceil(shape.num_records, THREADS), THREADS),
        ("records", Word32(shape.num_records), "scratch", "sealed"),
    )
    return Launch(f"{name}_tags", grid, ("records", *hashed)), place


def _whole(pieces: PiecePlan, shape: BatchShape) -> KernelPlan:
    """All items in one launch."""
    opening = pieces.opening
    blocks = pieces.blocks(0, shape.num_records * pieces.segments)
    whole = replace(opening, grid=Grid(blocks, opening.grid.threads))
    launches = (*pieces.before, whole, *pieces.after)
    return KernelPlan(launches, pieces.scratch_bytes)


def _prepare(name: str, shape: BatchShape, segments: int) -> Launch:
    return Launch(
        f"{name}_prepare",
        Grid(shape.num_records, THREADS),
        ("records", Word32(shape.num_records), Word32(segments), "key", "scratch"),
    )


def _scratch_bytes(each: SuiteShape, num_records: int, segments: int) -> int:
    return num_records * (TAG_BYTES + PART_BYTES * segments + each.record_bytes)


def _check(shape: BatchShape) -> None:
    if not 0 < shape.num_records < 1 << 20:
        raise UsageError(f"a batch of {shape.num_records} records")
    if shape.longest_bytes > MAX_PLAINTEXT_BYTES:
        raise UsageError(
            f"a record of {shape.longest_bytes} bytes cannot be opened or sealed at once",
            why=f"kernels accept at most {MAX_PLAINTEXT_BYTES:,} bytes",
            code="bad-record-length",
        )


def _sweep(nbytes: int, gpu: GpuFacts) -> Grid:
    most = _COUNT_BLOCKS * gpu.multiprocessors
    return Grid(max(1, min(_ceil(nbytes, _BLOCK_BYTES), most)), THREADS)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)
