"""The CUDA kernels compiled by gcc: the same sources, run by an emulator of blocks.

``host_library`` is a shared library that launches kernels by name on host memory (see
``cuda_emulator/``). It is built once per state of the sources, under ``build/``.
``tracing_library`` is the same without optimisation, and notes every basic block and
every address that kernels touch.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from sealift.channel.cuda.plan import KernelPlan, Launch, to_arguments

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = Path(__file__).parent / "cuda_emulator"
KERNELS = ROOT / "src/sealift/channel/cuda/kernels"
KEPT = ROOT / "build/gcc-kernels"
# These include nothing of the kernels but portable.cuh.
WITHOUT_KERNELS = ("emulator.cpp", "racing/races.cpp", "tracing/trace.cpp")
FLAGS = ("-std=c++17", "-fPIC", "-Wall", "-Wno-unknown-pragmas")
# The compiler calls us for each access and each block: names of its sanitizers.
TRACED = (
    "-O0", "-fsanitize=kernel-address", "-fsanitize-coverage=trace-pc",
    "--param", "asan-instrumentation-with-call-threshold=0",
    "--param", "asan-stack=0", "--param", "asan-globals=0",
)  # fmt: skip


def _sources(kernels: Path) -> list[Path]:
    files = [*EMULATOR.rglob("*"), *kernels.iterdir()]
    return sorted(path for path in files if path.is_file())


def build(
    units: dict[str, tuple[str, ...]], *, label: str, kernels: Path = KERNELS
) -> Path:
    """A library of ``units`` (file under the emulator's folder -> flags), kept."""
    compiler = shutil.which("g++")
    assert compiler, "this machine lacks g++ (apt-get install g++)"
    parts = [(path.name, path.read_bytes()) for path in _sources(kernels)]
    library = KEPT / f"{label}-{_digest(units, parts)}.so"
    with built_once(library) as half:
        if half:
            with ThreadPoolExecutor() as together:
                objects = together.map(
                    lambda unit: _object(compiler, unit, units[unit], kernels), units
                )
                command = [compiler, "-shared", "-o", str(half), *map(str, objects)]
            subprocess.run(command, check=True)
    return library


@contextmanager
def built_once(made: Path) -> Iterator[Path | None]:
    """Where to make it, or None if it is there; other test processes wait meanwhile."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with open(made.parent / f".{made.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            yield None
        else:
            half = made.with_name(f".{made.name}.half")
            yield half
            half.replace(made)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr((FLAGS, *parts)).encode()).hexdigest()[:16]


def _object(compiler: str, unit: str, flags: tuple[str, ...], kernels: Path) -> Path:
    """One unit compiled: libraries with the same sources and flags share it."""
    texts = [(EMULATOR / name).read_bytes() for name in ("emulator.h", unit)]
    headers = sorted(kernels.iterdir())
    if unit in WITHOUT_KERNELS:
        headers = [kernels / "portable.cuh"]
    texts += [path.read_bytes() for path in headers]
    target = KEPT / f"{Path(unit).stem}-{_digest(flags, texts)}.o"
    with built_once(target) as half:
        if half:
            subprocess.run(_command(compiler, unit, flags, kernels, half), check=True)
    return target


def _command(
    compiler: str, unit: str, flags: tuple[str, ...], kernels: Path, target: Path
) -> list[str]:
    includes = [f"-I{EMULATOR}", f"-I{kernels}"]
    source = str(EMULATOR / unit)
    return [compiler, *FLAGS, *flags, *includes, "-c", "-o", str(target), source]


@functools.cache
def host_library() -> Path:
    """The library; built if sources or flags changed."""
    units = ("emulator.cpp", "launch.cpp", "probes.cpp")
    return build(dict.fromkeys(units, ("-O2",)), label="kernels")


@functools.cache
def loaded() -> ctypes.CDLL:
    """The library, loaded."""
    return ctypes.CDLL(str(host_library()))


@functools.cache
def tracing_library() -> ctypes.CDLL:
    """The library that notes where kernels go, loaded."""
    traced = dict.fromkeys(("launch.cpp", "tracing/leaks.cpp"), TRACED)
    plain = dict.fromkeys(("emulator.cpp", "tracing/trace.cpp"), ("-O2",))
    return ctypes.CDLL(str(build(traced | plain, label="traced")))


def racing_library(kernels: Path = KERNELS) -> ctypes.CDLL:
    """The library that finds data races, loaded; in any order of threads and blocks."""
    traced = dict.fromkeys(("launch.cpp",), TRACED)
    plain = dict.fromkeys(("emulator.cpp", "racing/races.cpp"), ("-O2",))
    return ctypes.CDLL(str(build(traced | plain, label="races", kernels=kernels)))


def run_plan(
    plan: KernelPlan, places: dict[str, int], library: ctypes.CDLL | None = None
) -> None:
    """Run a plan's kernels one after the other; ``places`` are addresses."""
    for call in prepare(plan, places, library or loaded()):
        call()


def prepare(
    plan: KernelPlan, places: dict[str, int], library: ctypes.CDLL
) -> Sequence[Prepared]:
    """The launches of a plan, to run once or again."""
    return [Prepared(launch, places, library) for launch in plan.launches]


class Prepared:
    """One launch with its arguments, which keep their addresses."""

    def __init__(
        self, launch: Launch, places: dict[str, int], library: ctypes.CDLL
    ) -> None:
        self._launch, self._library = launch, library
        self._arguments = to_arguments(launch, places)
        self._pointers = (ctypes.c_void_p * len(self._arguments))(
            *(ctypes.addressof(each) for each in self._arguments)
        )

    def __call__(self) -> None:
        name, grid = self._launch.kernel, self._launch.grid
        missing = self._library.sealift_host_launch(
            name.encode(), grid.blocks, grid.threads, 0, self._pointers
        )
        assert not missing, name
