"""Who compiles kernels: NVRTC, a library that needs no toolkit, or nvcc.

Neither needs a GPU or a driver.
Source: NVRTC's and nvcc's manuals.

The kernels as the engine wants them: sources found, compiled once, kept.

Compiled at first use in each process for the GPU at hand by NVRTC (a wheel; no toolkit
needed) or, where that is missing, by nvcc. Nothing compiled is kept on a disk: whoever can
write to a cache of the same user would write what opens the records.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Protocol

from sealift.channel.cuda import plan as geometry
from sealift.channel.cuda.bindings import nvrtc_bindings
from sealift.channel.cuda.driver import GpuFacts
from sealift.crypto.aead import Suite
from sealift.crypto.hash import sha256
from sealift.errors import UnavailableError

_OPTIONS: Final = ("--std=c++17",)
_CACHING: Final = (12, 9)  # NVRTC's first version with a cache on disk
_SECONDS: Final = 300
_TOOLKIT_NVCC: Final = "/usr/local/cuda/bin/nvcc"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made.

    Attributes:
        code: A module for ``cuModuleLoadData``.
        log: What the compiler said: registers, shared memory and spills of each kernel.
    """

    code: bytes
    log: str


class Compiler(Protocol):
    """Compiles one source with headers beside it."""

    version: str
    """Name and version."""

    def __hash__(self) -> int:
        """What it made is kept for the process."""

    def architectures(self) -> frozenset[str]:
        """The architectures it knows."""

    def compile(
        self, name: str, sources: Mapping[str, bytes], architecture: str
    ) -> Compiled:
        """Compile ``sources[name]``, which may include the others.

        Raises:
            UnavailableError: code ``kernels-not-compiled``.
        """


def installed_compilers() -> list[Compiler]:
    """Those of this machine, the preferred first."""
    return [*_nvrtc(), *_nvcc()]


class NvrtcCompiler:
    """NVIDIA's run-time compiler library, which the extra ``cuda`` brings."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc = nvrtc
        major, minor = self._ask("nvrtcVersion")
        self.version = f"NVRTC {major}.{minor}"
        self._keeps = (major, minor) >= _CACHING

    def architectures(self) -> frozenset[str]:
        """The architectures it knows."""
        return frozenset(f"sm_{each}" for each in self._ask("nvrtcGetSupportedArchs"))

    def compile(
        self, name: str, sources: Mapping[str, bytes], architecture: str
    ) -> Compiled:
        """Compile in this process; nothing is read from or written to disk.

        Since 12.9 the library keeps what it made in a folder of the user, unasked.
        """
        headers = [other for other in sources if other != name]
        program = self._ask(
            "nvrtcCreateProgram", sources[name], name.encode(), len(headers),
            [sources[header] for header in headers],
            [header.encode() for header in headers],
        )  # fmt: skip
        try:
            return self._compile(program, architecture)
        finally:
            self._nvrtc.nvrtcDestroyProgram(program)

    def _compile(self, program: Any, architecture: str) -> Compiled:
        options = [*_OPTIONS, f"--gpu-architecture={architecture}", "-Xptxas", "-v"]
        options += ["--no-cache"] if self._keeps else []
        encoded = [option.encode() for option in options]
        (code,) = self._nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = self._bytes_of("nvrtcGetProgramLog", program).decode("utf-8", "replace")
        if int(code):
            raise _not_compiled(self.version, log)
        return Compiled(self._bytes_of("nvrtcGetCUBIN", program), log.rstrip("\0"))

    def _bytes_of(self, what: str, program: Any) -> bytes:
        room = bytearray(self._ask(f"{what}Size", program))
        self._ask(what, program, room)
        return bytes(room)

    def _ask(self, call: str, *arguments: Any) -> Any:
        code, *values = getattr(self._nvrtc, call)(*arguments)
        if int(code):
            raise _not_compiled("NVRTC", f"{call}: {code}")
        return values[0] if len(values) == 1 else values


class NvccCompiler:
    """The toolkit's compiler."""

    def __init__(self, program: str) -> None:
        self._program = program
        self.version = _run([program, "--version"]).strip().splitlines()[-1]

    def architectures(self) -> frozenset[str]:
        """The architectures it knows."""
        return frozenset(_run([self._program, "--list-gpu-code"]).split())

    def compile(
        self, name: str, sources: Mapping[str, bytes], architecture: str
    ) -> Compiled:
        """Compile in a private temporary folder."""
        with tempfile.TemporaryDirectory(prefix="sealift-kernels-") as folder:
            for each, text in sources.items():
                (Path(folder) / each).write_bytes(text)
            made = Path(folder) / "module.cubin"
            options = [
                *_OPTIONS,
                f"-arch={architecture}",
                "--ptxas-options=-v",
                "-cubin",
            ]
            log = _run([self._program, *options, "-o", str(made), f"{folder}/{name}"])
            return Compiled(made.read_bytes(), log)


def _nvrtc() -> Iterator[Compiler]:
    # The bindings load the library at the first call, and raise if it is not there.
    with suppress(UnavailableError, RuntimeError, OSError):
        yield NvrtcCompiler(nvrtc_bindings())


def _nvcc() -> Iterator[Compiler]:
    program = shutil.which("nvcc") or shutil.which(_TOOLKIT_NVCC)
    if program:
        with suppress(UnavailableError):
            yield NvccCompiler(program)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a compiler that was looked up, our sources
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_compiled(command[0], str(error)) from None
    if done.returncode:
        raise _not_compiled(command[0], done.stderr or done.stdout)
    return done.stdout + done.stderr


def _not_compiled(compiler: str, log: str) -> UnavailableError:
    first = next((line for line in log.splitlines() if "error" in line), log[:200])
    return UnavailableError(
        "the GPU's kernels could not be compiled",
        why=f"{compiler}: {first.strip()}",
        code="kernels-not-compiled",
    )


MODULE: Final = "module.cu"
OLDEST: Final = (8, 0)  # of those that tests compile for


class CudaKernels:
    """The kernels' code, and their plans (``plan.py``), which need no compiler.

    Args:
        compilers: Tried in this order; those of this machine by default.
    """

    expand = staticmethod(geometry.expand_plan)
    open = staticmethod(geometry.open_plan)
    pieces = staticmethod(geometry.piece_plan)
    seal = staticmethod(geometry.seal_plan)
    count_nonzero = staticmethod(geometry.count_plan)

    def __init__(self, compilers: Sequence[Compiler] | None = None) -> None:
        self._compilers = compilers
        self.origin = f"sources {source_digest()[:16]}"

    def code(self, gpu: GpuFacts) -> bytes:
        """What the driver loads for this GPU; a process compiles it once, for seconds.

        Raises:
            UnavailableError: code ``no-kernel-compiler`` without a compiler, code
                ``gpu-too-old`` for a GPU before compute capability 8.0.
        """
        compiler, architecture = self._compiler(), _architecture_of(gpu)
        self.origin = f"sources {source_digest()[:16]}, {compiler.version}"
        return compile_module(compiler, architecture).code

    def suites(self) -> tuple[Suite, ...]:
        """Both; ChaCha20-Poly1305 first, for GPUs have no AES instructions."""
        return tuple(geometry.SHAPES)

    def key_bytes(self, suite: Suite) -> int:
        """Size of an expanded key."""
        return geometry.SHAPES[suite].key_bytes

    def _compiler(self) -> Compiler:
        if self._compilers is None:
            self._compilers = _of_this_machine()
        if not self._compilers:
            raise UnavailableError(
                "the GPU's kernels cannot be compiled here",
                why="there is neither NVRTC nor nvcc",
                code="no-kernel-compiler",
            )
        return self._compilers[0]


def _architecture_of(gpu: GpuFacts) -> str:
    """The compiler's name for a GPU: ``sm_90`` for compute capability 9.0.

    Raises:
        UnavailableError: code ``gpu-too-old``.
    """
    major, minor = gpu.capability
    if gpu.capability < OLDEST:
        raise UnavailableError(
            f"the kernels do not run on {gpu.name}",
            why=f"its compute capability is {major}.{minor}; 8.0 is needed",
            code="gpu-too-old",
        )
    return f"sm_{major}{minor}"


@cache
def sources() -> dict[str, bytes]:
    """All kernel sources by name."""
    folder = resources.files("sealift.channel.cuda") / "kernels"
    return {
        each.name: each.read_bytes()
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
        if each.name.endswith((".cu", ".cuh"))
    }


@cache
def source_digest() -> str:
    """SHA-256 over names and contents of all sources, in hexadecimal."""
    parts = [
        f"{name} {len(text)}\n".encode() + text for name, text in sources().items()
    ]
    return sha256(*parts).hex()


@cache
def _of_this_machine() -> tuple[Compiler, ...]:
    return tuple(installed_compilers())


@cache
def compile_module(compiler: Compiler, architecture: str) -> Compiled:
    """Compile all kernels for one architecture.

    Raises:
        UnavailableError: code ``kernels-not-compiled``, with the compiler's first line.
    """
    return compiler.compile(MODULE, sources(), architecture)
