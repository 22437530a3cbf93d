"""The CUDA kernels compiled by gcc: the same sources, run by an emulator of blocks.

``host_library`` is a shared library that launches kernels by name on host memory (see
``cuda_emulator/``). It is built once per state of the sources, under ``build/``.
``tracing_library`` is the same without optimisation, and notes every basic block and
every address that kernels touch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sealift.channel.cuda.plan import Launch, Plan, to_arguments

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = Path(__file__).parent / "cuda_emulator"
KERNELS = ROOT / "src/sealift/channel/cuda/kernels"
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
    digest = hashlib.sha256(repr((FLAGS, units, parts)).encode()).hexdigest()[:16]
    library = ROOT / f"build/gcc-kernels/{label}-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            objects = _compiled(compiler, units, kernels, Path(folder))
            half = library.with_suffix(f".{os.getpid()}")
            subprocess.run([compiler, "-shared", "-o", half, *objects], check=True)
            half.replace(library)
    return library


def _compiled(
    compiler: str, units: dict[str, tuple[str, ...]], kernels: Path, folder: Path
) -> list[str]:
    includes = [f"-I{EMULATOR}", f"-I{kernels}"]
    running = []
    for unit, flags in units.items():
        made = str(folder / Path(unit).with_suffix(".o").name)
        command = [compiler, *FLAGS, *flags, *includes, "-c", "-o", made]
        running.append((made, subprocess.Popen([*command, str(EMULATOR / unit)])))
    for made, process in running:
        assert process.wait() == 0, f"g++ failed on {made}"
    return [made for made, _ in running]


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


def run_plan(
    plan: Plan, places: dict[str, int], library: ctypes.CDLL | None = None
) -> None:
    """Run a plan's kernels one after the other; ``places`` are addresses."""
    for call in prepare(plan, places, library or loaded()):
        call()


def prepare(
    plan: Plan, places: dict[str, int], library: ctypes.CDLL
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
