"""Kernels that were broken on purpose are found out by what tests of the whole ones see."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from tests.sim.gcc_kernels import KERNELS, build, loaded
from tests.sim.kernel_batches import GPU, SMALL_GPU, Text, open_all, seal_all

pytestmark = pytest.mark.gcc
GCM, CHACHA = Suite.AES_256_GCM, Suite.CHACHA20_POLY1305
KEY = bytes(range(32))


def broken(folder: Path, file: str, right: str, wrong: str) -> ctypes.CDLL:
    """The kernels with one change in one file."""
    shutil.copytree(KERNELS, folder / "kernels")
    text = (KERNELS / file).read_text()
    assert text.count(right) >= 1, f"{file} no longer has: {right}"
    (folder / "kernels" / file).write_text(text.replace(right, wrong, 1))
    units = dict.fromkeys(("launch.cpp",), ("-O0",)) | {
        "emulator.cpp": ("-O2",)  # the same object as everywhere
    }
    return ctypes.CDLL(str(build(units, label="mutant", kernels=folder / "kernels")))


def refuses_a_changed_tag(library: ctypes.CDLL) -> bool:
    sealed = bytearray(Aead(GCM, SecretKey(KEY)).seal(b"n" * 12, bytes(99), b""))
    sealed[-1] ^= 1
    ((genuine, _),) = open_all(
        GCM, KEY, [Text(bytes(sealed), b"n" * 12)], library=library
    )
    return not genuine


def leaves_zeroes(library: ctypes.CDLL) -> bool:
    sealed = bytearray(Aead(GCM, SecretKey(KEY)).seal(b"n" * 12, b"p" * 99, b""))
    sealed[-1] ^= 128
    ((_, plain),) = open_all(
        GCM, KEY, [Text(bytes(sealed), b"n" * 12)], library=library
    )
    return plain == bytes(99)


def seals_like_the_oracle(library: ctypes.CDLL, suite: Suite, shape: tuple) -> bool:
    length, gpu, order = shape
    texts = [Text(os.urandom(length), os.urandom(12), os.urandom(40))]
    expected = [
        Aead(suite, SecretKey(KEY)).seal(text.nonce, text.content, text.aad)
        for text in texts
    ]
    library.sealift_host_order(order)
    try:
        return seal_all(suite, KEY, texts, gpu=gpu, library=library) == expected
    finally:
        library.sealift_host_order(0)


def gcm_in_any_order(library: ctypes.CDLL) -> bool:
    return seals_like_the_oracle(library, GCM, (40_000, GPU, 5))


def chacha_in_any_order(library: ctypes.CDLL) -> bool:
    return seals_like_the_oracle(library, CHACHA, (40_000, SMALL_GPU, 5))


MUTANTS = {
    "compares 15 bytes": (
        "verdict.cuh", "rest.z | rest.w;", "rest.z | (rest.w & 0xffffffu);",
        refuses_a_changed_tag,
    ),
    "zeroes nothing": (
        "verdict.cuh", "block < blocks_of(nbytes)", "block < 0", leaves_zeroes,
    ),
    "reads other threads' sums too early": (
        "gcm_tile.cuh", "words[4 * t + i] = mine.word[i];\n    __syncthreads();",
        "words[4 * t + i] = mine.word[i];", gcm_in_any_order,
    ),
    "reads other threads' keystream too early": (
        "chacha.cu", "make_stream(shared, tile);\n        __syncthreads();",
        "make_stream(shared, tile);", chacha_in_any_order,
    ),
}  # fmt: skip


# Each is a compilation; test_kernel_races.py finds missing barriers in any order.
SOAK = [name for name in MUTANTS if "too early" in name]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.soak] if n in SOAK else []) for n in MUTANTS],
)
def test_a_broken_kernel_shows(name: str, tmp_path: Path) -> None:
    file, right, wrong, holds = MUTANTS[name]
    assert holds(loaded())
    assert not holds(broken(tmp_path, file, right, wrong))
