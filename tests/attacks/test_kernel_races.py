"""No thread of a kernel touches what another is using.

Every access of the kernels' gcc build is noted with the block, the thread and the barriers
around it; two that may run at once and of which one writes are a race, whatever order the
emulator ran them in. A GPU runs them at once.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.channel.cuda import plan as geometry
from sealift.channel.cuda.driver import Grid
from sealift.channel.cuda.plan import BatchShape, KernelPlan, Word32
from sealift.channel.cuda.transfer import refusal
from sealift.crypto.aead import Suite
from tests.sim.gcc_kernels import KERNELS, prepare, racing_library
from tests.sim.kernel_batches import RECORD, SMALL_GPU, Memory

pytestmark = pytest.mark.gcc
LENGTHS = [0, 5, 40_003, 4096, 16_384]
AAD_BYTES = 73


SHORT, LONG = sum(LENGTHS), 4 << 20  # as if so much were in the batch
SEGMENTS = {"one tile": SHORT, "several tiles": LONG}


def plans(suite: Suite, total_bytes: int) -> list[KernelPlan]:
    """All kernels, in an order in which they could be launched."""
    count = len(LENGTHS)
    shape = BatchShape(count, max(LENGTHS), total_bytes)
    tiles = geometry.segment_tiles(suite, shape, SMALL_GPU, total_bytes)
    assert (tiles > 1) == (total_bytes == LONG)
    return [
        geometry.expand_plan(suite),
        geometry.seal_plan(suite, shape, SMALL_GPU),
        geometry.open_plan(suite, shape, SMALL_GPU),
        in_pieces(suite, shape, total_bytes),
        KernelPlan((refusal(count),)),
        geometry.count_plan(32_768, SMALL_GPU),
    ]


def in_pieces(suite: Suite, shape: BatchShape, total_bytes: int) -> KernelPlan:
    """What opens the records in two launches, as transfers do."""
    pieces = geometry.piece_plan(suite, shape, SMALL_GPU, total_bytes)
    opening, end = pieces.opening, shape.num_records * pieces.segments
    launches = []
    for first, last in ((0, end // 2), (end // 2, end)):
        arguments = list(opening.arguments)
        arguments[geometry.FIRST_ITEM] = Word32(first)
        grid = Grid(pieces.blocks(first, last), opening.grid.threads)
        launches.append(replace(opening, grid=grid, arguments=tuple(arguments)))
    launches = (*pieces.before, *launches, *pieces.after)
    return KernelPlan(launches, pieces.scratch_bytes)


def memories(scratch_bytes: int) -> dict[str, Memory]:
    at, records = 0, b""
    for number, length in enumerate(LENGTHS):
        records += RECORD.pack(
            at, at, length, AAD_BYTES, AAD_BYTES * number, os.urandom(12), 0, b""
        )
        at += (length + 47) // 16 * 16
    made = {
        "records": Memory(len(records)), "aad": Memory(AAD_BYTES * len(LENGTHS)),
        "raw_key": Memory(32), "key": Memory(9968), "sealed": Memory(at),
        "plain": Memory(at), "verdicts": Memory(len(LENGTHS)), "target": Memory(32_768),
        "count": Memory(8),
        "scratch": Memory(scratch_bytes),
    }  # fmt: skip
    made["records"].write(records)
    return made


def found(library: ctypes.CDLL, suite: Suite, total_bytes: int) -> tuple[int, int]:
    """Races and divergent barriers of all kernels."""
    todo = plans(suite, total_bytes)
    room = memories(max(plan.scratch_bytes for plan in todo))
    places = {name: each.address for name, each in room.items()}
    library.sealift_host_races()
    library.sealift_host_divergences()
    for plan in todo:
        for call in prepare(plan, places, library):
            call()
    return library.sealift_host_races(), library.sealift_host_divergences()


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("suite", list(Suite), ids=lambda suite: suite.name)
def test_threads_and_blocks_keep_apart(suite: Suite, segments: str) -> None:
    assert found(racing_library(), suite, SEGMENTS[segments]) == (0, 0)


# A barrier too few, and what the emulator's order would not always show.
RACES = {
    "sums are read too early": (
        Suite.AES_256_GCM, "gcm_tile.cuh",
        "words[4 * t + i] = mine.word[i];\n    __syncthreads();",
        "words[4 * t + i] = mine.word[i];",
    ),
    "sums are written over what is being read": (
        Suite.CHACHA20_POLY1305, "chacha_tile.cuh",
        "__syncthreads();\n    if (group < 8) shared.sums[t] = sum;",
        "if (group < 8) shared.sums[t] = sum;",
    ),
    "one buffer of keystream for two tiles": (
        Suite.CHACHA20_POLY1305, "chacha_tile.cuh chacha.cu",
        "shared.stream[tile & 1]", "shared.stream[0]",
    ),
    "two blocks write one part": (
        Suite.AES_256_GCM, "gcm.cu", "scratch.parts + item);", "scratch.parts);",
    ),
    "a barrier for some": (
        Suite.CHACHA20_POLY1305, "chacha.cu",
        "__syncthreads();\n        if (rows == 0) continue;",
        "if (rows == 0) continue;\n        __syncthreads();",
    ),
}  # fmt: skip


# Each is a compilation.
DEFAULT = ("one buffer of keystream for two tiles", "a barrier for some")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.soak] if n not in DEFAULT else [])
        for n in RACES
    ],
)
def test_a_race_is_found(name: str, tmp_path: Path) -> None:
    suite, files, right, wrong = RACES[name]
    shutil.copytree(KERNELS, tmp_path / "kernels")
    for file in files.split():
        text = (KERNELS / file).read_text()
        assert right in text, f"{file} no longer has: {right}"
        (tmp_path / "kernels" / file).write_text(text.replace(right, wrong, 1))
    assert found(racing_library(tmp_path / "kernels"), suite, LONG) != (0, 0)
