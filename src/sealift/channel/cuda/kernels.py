"""The kernels as the engine wants them: sources found, compiled once, kept.

Compiled at first use for the GPU at hand by NVRTC (a wheel; no toolkit needed) or, where
that is missing, by nvcc. What was compiled is kept in the user's cache folder under the
digest of sources, architecture and compiler. A kept module is used only if its own digest
fits and nobody else may write to the folder; otherwise it is compiled again.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, Protocol

from sealift.channel.cuda import geometry
from sealift.channel.cuda.compilers import Compiled, Compiler, installed_compilers
from sealift.channel.cuda.driver import GpuFacts
from sealift.channel.cuda.plan import BatchShape, Plan
from sealift.crypto.aead import Suite
from sealift.crypto.hash import HASH_BYTES, sha256
from sealift.errors import UnavailableError

MODULE: Final = "module.cu"
OLDEST: Final = (8, 0)  # of those that tests compile for
_MAGIC: Final = b"SEALIFT cubin 1\n"


class ModuleCache(Protocol):
    """Where modules are kept."""

    def load(self, name: str) -> bytes | None:
        """The module, if it is there and whole."""

    def store(self, name: str, code: bytes) -> None:
        """Keep it, if that is possible."""


class CudaKernels:
    """Satisfies ``plan.Kernels``.

    Args:
        compilers: Tried in this order; those of this machine by default.
        cached: Where modules are kept; the user's cache folder by default.
    """

    def __init__(
        self,
        compilers: Sequence[Compiler] | None = None,
        cached: ModuleCache | None = None,
    ) -> None:
        self._compilers = compilers
        self._cache = cached or FolderCache(user_cache())
        self.origin = f"sources {source_digest()[:16]}"

    def code(self, gpu: GpuFacts) -> bytes:
        """What the driver loads for this GPU; compiles for some seconds at first use.

        Raises:
            UnavailableError: code ``no-kernel-compiler`` without a compiler, code
                ``gpu-too-old`` for a GPU before compute capability 8.0.
        """
        compiler, architecture = self._compiler(), architecture_of(gpu)
        self.origin = f"sources {source_digest()[:16]}, {compiler.version}"
        name = cache_name(architecture, compiler.version)
        code = self._cache.load(name)
        if code is None:
            code = compile_module(compiler, architecture).code
            self._cache.store(name, code)
        return code

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
            self._compilers = installed_compilers()
        if not self._compilers:
            raise UnavailableError(
                "the GPU's kernels cannot be compiled here",
                why="there is neither NVRTC nor nvcc",
                fix="pip install 'sealift[cuda]'",
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
            fix="Use the CPU engine, or a newer GPU",
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


def compile_module(compiler: Compiler, architecture: str) -> Compiled:
    """Compile all kernels for one architecture.

    Raises:
        UnavailableError: code ``kernels-not-compiled``, with the compiler's first line.
    """
    return compiler.compile(MODULE, sources(), architecture)


def cache_name(architecture: str, version: str) -> str:
    """The file of a module: what it was made of and by, hashed."""
    made_of = f"{source_digest()} {architecture} {version}".encode()
    return f"{architecture}-{sha256(made_of).hex()[:32]}.cubin"


def user_cache() -> Path:
    """Where this user's modules are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "sealift" / "kernels"


class FolderCache:
    """Modules in a folder that only this user may enter.

    The digest in each file tells damaged files from whole ones. It is no protection from
    someone who may write there: the folder's owner and mode are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, name: str) -> bytes | None:
        """The module, if it is there, whole, and of nobody else."""
        try:
            self._folder_is_ours()
            kept = (self._folder / name).read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + HASH_BYTES
        code = kept[start:]
        return code if kept[:start] == _MAGIC + sha256(code) else None

    def store(self, name: str, code: bytes) -> None:
        """Keep it; a folder that cannot be written only costs time later."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder_is_ours()
            self._write(name, _MAGIC + sha256(code) + code)

    def _write(self, name: str, content: bytes) -> None:
        descriptor, half = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(half, self._folder / name)
        except BaseException:
            with suppress(OSError):
                os.unlink(half)
            raise

    def _folder_is_ours(self) -> None:
        found = os.stat(self._folder)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{self._folder} is open to others")
