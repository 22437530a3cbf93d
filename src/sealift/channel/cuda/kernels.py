"""The kernels as the engine wants them: sources found, compiled once, kept.

Compiled at first use in each process for the GPU at hand by NVRTC (a wheel; no toolkit
needed) or, where that is missing, by nvcc. Nothing compiled is kept on a disk: whoever can
write to a cache of the same user would write what opens the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final

from sealift.channel.cuda import geometry
from sealift.channel.cuda.compilers import Compiled, Compiler, installed_compilers
from sealift.channel.cuda.driver import GpuFacts
from sealift.channel.cuda.plan import BatchShape, Plan
from sealift.crypto.aead import Suite
from sealift.crypto.hash import sha256
from sealift.errors import UnavailableError

MODULE: Final = "module.cu"
OLDEST: Final = (8, 0)  # of those that tests compile for


class CudaKernels:
    """Satisfies ``plan.Kernels``.

    Args:
        compilers: Tried in this order; those of this machine by default.
    """

    def __init__(self, compilers: Sequence[Compiler] | None = None) -> None:
        self._compilers = compilers
        self.origin = f"sources {source_digest()[:16]}"

    def code(self, gpu: GpuFacts) -> bytes:
        """What the driver loads for this GPU; a process compiles it once, for seconds.

        Raises:
            UnavailableError: code ``no-kernel-compiler`` without a compiler, code
                ``gpu-too-old`` for a GPU before compute capability 8.0.
        """
        compiler, architecture = self._compiler(), architecture_of(gpu)
        self.origin = f"sources {source_digest()[:16]}, {compiler.version}"
        return compile_module(compiler, architecture).code

    def suites(self) -> tuple[Suite, ...]:
        """Both; ChaCha20-Poly1305 first, for GPUs have no AES instructions."""
        return tuple(geometry.SHAPES)

    def key_bytes(self, suite: Suite) -> int:
        """Size of an expanded key."""
        return geometry.SHAPES[suite].key_bytes

    def expand(self, suite: Suite) -> Plan:
        """``raw_key`` to ``key``."""
        return geometry.expand_plan(suite)

    def open(self, suite: Suite, shape: BatchShape, gpu: GpuFacts) -> Plan:
        """``sealed`` to ``plain`` and ``verdicts``."""
        return geometry.open_plan(suite, shape, gpu)

    def seal(self, suite: Suite, shape: BatchShape, gpu: GpuFacts) -> Plan:
        """``plain`` to ``sealed``."""
        return geometry.seal_plan(suite, shape, gpu)

    def count_nonzero(self, nbytes: int, gpu: GpuFacts) -> Plan:
        """Add the bytes of ``target`` that are not zero to the u64 at ``count``."""
        return geometry.count_plan(nbytes, gpu)

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


def architecture_of(gpu: GpuFacts) -> str:
    """The compiler's name for a GPU: ``sm_90`` for compute capability 9.0.

    Raises:
        UnavailableError: code ``gpu-too-old``.
    """
    major, minor = gpu.capability
    if gpu.capability < OLDEST:
        raise UnavailableError(
            f"the kernels do not run on {gpu.name}",
            why=f"its compute capability is {major}.{minor}, 8.0 is the least",
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
