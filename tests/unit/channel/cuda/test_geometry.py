"""Launch shapes: sizes as the kernels have them, work for every multiprocessor."""

from __future__ import annotations

import ctypes

import pytest

from sealift.channel.cuda import plan as geometry
from sealift.channel.cuda.driver import GpuFacts
from sealift.channel.cuda.plan import RECORD_BYTES, BatchShape, Word32
from sealift.channel.device.device import MAX_ASSOCIATED_BYTES
from sealift.crypto.aead import Suite
from sealift.errors import UsageError
from tests.sim.gcc_kernels import loaded

GPU = GpuFacts("an H200", (9, 0), 132, 141 << 30, 13000, 3)
GCM, CHACHA = Suite.AES_256_GCM, Suite.CHACHA20_POLY1305
MIB = 1 << 20


@pytest.mark.gcc
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("record", RECORD_BYTES),
        ("part", geometry.PART_BYTES),
        ("gcm_key", geometry.SHAPES[GCM].key_bytes),
        ("chacha_key", geometry.SHAPES[CHACHA].key_bytes),
        ("poly_key", geometry.CHACHA_ONE_TIME_BYTES),
        ("gcm_tile", geometry.SHAPES[GCM].tile_bytes),
        ("poly_tile", geometry.SHAPES[CHACHA].tile_bytes),
        ("threads", geometry.THREADS),
        ("most_plaintext", geometry.MAX_PLAINTEXT_BYTES),
        ("most_associated", MAX_ASSOCIATED_BYTES),
    ],
)
def test_sizes_are_those_of_the_kernels(name: str, size: int) -> None:
    ask = loaded().sealift_host_size
    ask.restype = ctypes.c_uint
    assert ask(name.encode()) == size


def uniform(num_records: int, nbytes: int) -> BatchShape:
    return BatchShape(num_records, nbytes, num_records * nbytes)


@pytest.mark.parametrize(
    ("shape", "suite", "tiles"),
    [
        (uniform(1, MIB), GCM, 1),
        (uniform(64, MIB), GCM, 2),
        (uniform(1024, MIB), GCM, 16),
        (uniform(64, MIB), CHACHA, 4),
        (uniform(16384, 65536), GCM, 4),  # a segment is no longer than a record
        (uniform(3, 0), GCM, 1),
    ],
)
def test_segments(shape: BatchShape, suite: Suite, tiles: int) -> None:
    assert geometry.segment_tiles(suite, shape, GPU, shape.total_bytes) == tiles


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("nbytes", [0, 1, 65536, MIB, 4 * MIB])
@pytest.mark.parametrize("num_records", [1, 7, 1025])
def test_segments_cover_every_record(
    suite: Suite, nbytes: int, num_records: int
) -> None:
    shape = uniform(num_records, nbytes)
    for plan in (
        geometry.open_plan(suite, shape, GPU),
        geometry.seal_plan(suite, shape, GPU),
    ):
        crypt = next(
            each for each in plan.launches if each.kernel.endswith(("_open", "_seal"))
        )
        records, segments, tiles, first = (
            each.value for each in crypt.arguments if isinstance(each, Word32)
        )
        assert (records, first) == (num_records, 0)
        covered = segments * tiles * geometry.SHAPES[suite].tile_bytes
        assert (
            nbytes <= covered < nbytes + tiles * geometry.SHAPES[suite].tile_bytes + 1
        )
        assert crypt.grid.blocks >= num_records * segments
        assert plan.scratch_bytes >= num_records * (16 + 32 * segments)


def test_small_batches_are_spread_over_the_gpu() -> None:
    crypt = geometry.open_plan(GCM, uniform(16, MIB), GPU).launches[0]
    assert crypt.grid.blocks >= 4 * GPU.multiprocessors


@pytest.mark.parametrize("shape", [uniform(1, 4 * MIB + 1), uniform(0, 0)])
def test_what_kernels_do_not_take(shape: BatchShape) -> None:
    with pytest.raises(UsageError):
        geometry.open_plan(GCM, shape, GPU)
