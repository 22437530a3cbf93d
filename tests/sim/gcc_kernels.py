"""The CUDA kernels compiled by gcc: the same sources, run by an emulator of blocks.

``host_library`` is a shared library that launches kernels by name on host memory (see
``cuda_emulator/``). It is built once per state of the sources, under ``build/``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from sealift.channel.cuda.plan import Plan, to_arguments

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = Path(__file__).parent / "cuda_emulator"
KERNELS = ROOT / "src/sealift/channel/cuda/kernels"
FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas")


def _sources() -> list[Path]:
    return sorted([*EMULATOR.iterdir(), *KERNELS.iterdir()])


@functools.cache
def host_library() -> Path:
    """The library; built if sources or flags changed."""
    compiler = shutil.which("g++")
    assert compiler, "this machine lacks g++ (apt-get install g++)"
    parts = [path.name.encode() + b"\0" + path.read_bytes() for path in _sources()]
    digest = hashlib.sha256(repr((FLAGS, parts)).encode()).hexdigest()[:16]
    library = ROOT / f"build/gcc-kernels/{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        half = library.with_suffix(f".{os.getpid()}")
        units = [str(path) for path in sorted(EMULATOR.glob("*.cpp"))]
        includes = [f"-I{EMULATOR}", f"-I{KERNELS}"]
        subprocess.run([compiler, *FLAGS, *includes, "-o", half, *units], check=True)
        half.replace(library)
    return library


@functools.cache
def loaded() -> ctypes.CDLL:
    """The library, loaded."""
    return ctypes.CDLL(str(host_library()))


def run_plan(plan: Plan, places: dict[str, int]) -> None:
    """Run a plan's kernels one after the other; ``places`` are addresses."""
    for launch in plan.launches:
        arguments = to_arguments(launch, places)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.addressof(each) for each in arguments)
        )
        grid = launch.grid
        missing = loaded().sealift_host_launch(
            launch.kernel.encode(), grid.blocks, grid.threads, 0, pointers
        )
        assert not missing, launch.kernel
