"""Launch shapes of the kernels: pure functions of lengths.

A record is cut into *segments* of whole tiles; a block of 128 threads hashes and ciphers
one segment, and a second kernel combines the parts of a record's hash. Small batches get
small segments, so that every multiprocessor has work; large ones get large segments,
because each costs two more multiplications a thread.
Numbers here are those of ``kernels/abi.cuh``; tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.channel.cuda.driver import GpuFacts, Grid
from sealift.channel.cuda.plan import BatchShape, Launch, Place, Plan, Word32, Word64
from sealift.crypto.aead import Suite
from sealift.errors import UsageError

THREADS: Final = 128
MAX_PLAINTEXT_BYTES: Final = 4 << 20
TAG_BYTES: Final = 16
PART_BYTES: Final = 32
CHACHA_ONE_TIME_BYTES: Final = 2704
_RECORDS_OF_MASK_BLOCK: Final = 8 * THREADS
_WAVES: Final = 3  # blocks per place on the GPU, so that the last wave wastes little
_BLOCK_BYTES: Final = 16 * THREADS  # what a block of threads scrubs at a time
_ENDS: Final[dict[str, tuple[Place, Place]]] = {
    "open": ("sealed", "plain"),
    "seal": ("plain", "sealed"),
}
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
"""By speed on a GPU, fastest first (derived, see docs/reference/cuda-kernels.md)."""


def expand_plan(suite: Suite) -> Plan:
    """``raw_key`` to ``key``."""
    kernel = f"sealift_{SHAPES[suite].name}_key_expand"
    return Plan((Launch(kernel, Grid(1, THREADS), ("raw_key", "key")),))


def open_plan(suite: Suite, shape: BatchShape, gpu: GpuFacts) -> Plan:
    """``sealed`` to ``plain`` and ``verdicts``; what failed is zero afterwards.

    Raises:
        UsageError: code ``bad-record-length``, for records above 4 MiB.
    """
    verdicts = Launch(
        "sealift_verdicts",
        Grid(shape.num_records, THREADS),
        (
            "records",
            Word32(shape.num_records),
            "scratch",
            "sealed",
            "plain",
            "verdicts",
        ),
    )
    return _plan(suite, shape, gpu, "open", verdicts)


def seal_plan(suite: Suite, shape: BatchShape, gpu: GpuFacts) -> Plan:
    """``plain`` to ``sealed``: ciphertext and tag of each record.

    Raises:
        UsageError: code ``bad-record-length``, for records above 4 MiB.
    """
    place = Launch(
        "sealift_place_tags",
        Grid(_ceil(shape.num_records, THREADS), THREADS),
        ("records", Word32(shape.num_records), "scratch", "sealed"),
    )
    return _plan(suite, shape, gpu, "seal", place)


def count_plan(nbytes: int, gpu: GpuFacts) -> Plan:
    """Add the bytes of ``target`` that are not zero to the u64 at ``count``."""
    grid = _sweep(nbytes, gpu)
    launch = Launch("sealift_count_nonzero", grid, ("target", Word64(nbytes), "count"))
    return Plan((launch,))


def segment_tiles(suite: Suite, shape: BatchShape, gpu: GpuFacts) -> int:
    """Tiles of a segment: a power of two that leaves work for every multiprocessor."""
    each = SHAPES[suite]
    tiles = shape.total_bytes // each.tile_bytes
    wanted = gpu.multiprocessors * each.resident * _WAVES
    longest = _ceil(shape.longest_bytes, each.tile_bytes)
    most = min(each.most_tiles, max(longest, 1), max(tiles // wanted, 1))
    return 1 << (most.bit_length() - 1)


def _plan(
    suite: Suite,
    shape: BatchShape,
    gpu: GpuFacts,
    operation: Literal["open", "seal"],
    last: Launch,
) -> Plan:
    _check(shape)
    each = SHAPES[suite]
    tiles = segment_tiles(suite, shape, gpu)
    segments = max(1, _ceil(shape.longest_bytes, tiles * each.tile_bytes))
    counts = (Word32(shape.num_records), Word32(segments), Word32(tiles))
    blocks = shape.num_records * segments
    name = f"sealift_{each.name}"
    launches: list[Launch] = []
    if suite is Suite.AES_256_GCM:
        blocks += _ceil(shape.num_records, _RECORDS_OF_MASK_BLOCK)
        hashed: tuple[Place, ...] = ("key", "aad", "scratch")
    else:
        launches.append(_prepare(name, shape, segments))
        hashed = ("aad", "scratch")
    launches += [
        Launch(
            f"{name}_{operation}",
            Grid(blocks, THREADS),
            ("records", *counts, "key", *_ENDS[operation], "scratch"),
        ),
        Launch(
            f"{name}_tags",
            Grid(shape.num_records, THREADS),
            ("records", *counts, *hashed),
        ),
        last,
    ]
    return Plan(tuple(launches), _scratch_bytes(each, shape.num_records, segments))


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
            why=f"kernels take at most {MAX_PLAINTEXT_BYTES}",
            code="bad-record-length",
        )


def _sweep(nbytes: int, gpu: GpuFacts) -> Grid:
    most = _COUNT_BLOCKS * gpu.multiprocessors
    return Grid(max(1, min(_ceil(nbytes, _BLOCK_BYTES), most)), THREADS)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)
