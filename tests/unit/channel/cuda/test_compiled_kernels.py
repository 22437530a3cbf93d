"""The kernels compile for GPUs without a GPU, and take what their shapes count on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.channel.cuda import geometry, kernels
from sealift.channel.cuda.compilers import (
    Compiled,
    NvccCompiler,
    NvrtcCompiler,
    installed_compilers,
)
from sealift.channel.cuda.driver import GpuFacts
from sealift.channel.cuda.plan import BatchShape
from sealift.crypto.aead import Suite
from sealift.errors import UnavailableError
from tests.sim.kernel_figures import Figures, compiled, figures

GPU = GpuFacts("an H200", (9, 0), 132, 141 << 30, 13000, 3)
REGISTERS = 64 << 10  # of a multiprocessor
SHARED_BYTES = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
RESERVED_BYTES = 1 << 10  # of shared memory, for each block


@pytest.mark.kernelcompiler
def test_they_compile_for_hopper(record_property: Callable[[str, str], None]) -> None:
    check("sm_90", record_property)


@pytest.mark.kernelcompiler
@pytest.mark.soak
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100", "sm_120"])
def test_they_compile_for_others(
    architecture: str, record_property: Callable[[str, str], None]
) -> None:
    assert architecture in installed_compilers()[0].architectures()
    check(architecture, record_property)


def check(architecture: str, record_property: Callable[[str, str], None]) -> None:
    code, log = compiled(architecture)
    assert code[:4] == b"\x7fELF"
    found = figures(log)
    for each in found.values():
        record_property("figure", f"{architecture} {each}")
        assert each.local_bytes == 0, each  # no spills, no arrays at run-time indices
    assert planned() <= found.keys()
    if shared_bytes := SHARED_BYTES.get(architecture):
        for shape in geometry.SHAPES.values():
            for operation in ("seal", "open"):
                each = found[f"sealift_{shape.name}_{operation}"]
                assert fits(each, shared_bytes, shape.resident), each


def fits(each: Figures, shared_bytes: int, resident: int) -> bool:
    """As many blocks fit on a multiprocessor as the geometry counts on."""
    registers = -(-each.registers // 8) * 8 * geometry.THREADS
    shared = each.shared_bytes + RESERVED_BYTES
    return registers * resident <= REGISTERS and shared * resident <= shared_bytes


def test_what_fits_on_a_multiprocessor() -> None:
    assert fits(Figures("a", 128, 40 << 10, 0, 0), 228 << 10, 4)
    assert not fits(Figures("a", 129, 40 << 10, 0, 0), 228 << 10, 4)
    assert not fits(Figures("a", 128, 57 << 10, 0, 0), 228 << 10, 4)


def planned() -> set[str]:
    """Every kernel that a plan names."""
    shape = BatchShape(3, 100, 300)
    plans = [geometry.scrub_plan(1, GPU), geometry.count_plan(1, GPU)]
    for suite in Suite:
        plans += [geometry.expand_plan(suite)]
        plans += [geometry.open_plan(suite, shape, GPU)]
        plans += [geometry.seal_plan(suite, shape, GPU)]
    return {launch.kernel for plan in plans for launch in plan.launches}


@pytest.mark.kernelcompiler
def test_a_broken_source_is_one_line() -> None:
    for compiler in installed_compilers():
        assert isinstance(compiler, NvrtcCompiler | NvccCompiler)
        with pytest.raises(UnavailableError) as raised:
            compiler.compile("a.cu", {"a.cu": b"__global__ void k( {}\n"}, "sm_90")
        assert raised.value.code == "kernels-not-compiled"
        assert "a.cu" in str(raised.value)


class Recording:
    """A compiler that counts."""

    version = "recording 1"

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def architectures(self) -> frozenset[str]:
        return frozenset({"sm_90"})

    def compile(self, name, sources, architecture) -> Compiled:
        assert name in sources
        self.compiled.append(architecture)
        return Compiled(b"code of " + architecture.encode(), "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "kernels"


def test_a_module_is_compiled_once(folder: Path) -> None:
    for _ in range(2):
        compiler = Recording()
        made = kernels.CudaKernels([compiler], kernels.FolderCache(folder))
        assert made.code(GPU) == made.code(GPU) == b"code of sm_90"
        assert "recording 1" in made.origin
    assert compiler.compiled == []
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len([*folder.iterdir()]) == 1


def test_another_compiler_or_gpu_compiles_again(folder: Path) -> None:
    first, second = Recording(), Recording()
    second.version = "recording 2"
    kept = kernels.FolderCache(folder)
    kernels.CudaKernels([first], kept).code(GPU)
    kernels.CudaKernels([second], kept).code(GPU)
    older = GpuFacts("an A100", (8, 0), 108, 80 << 30, 13000, 3)
    kernels.CudaKernels([second], kept).code(older)
    assert second.compiled == ["sm_90", "sm_80"]


@pytest.mark.parametrize("at", [0, 20, 50, -1])
def test_a_damaged_module_is_compiled_again(folder: Path, at: int) -> None:
    compiler = Recording()
    made = kernels.CudaKernels([compiler], kernels.FolderCache(folder))
    made.code(GPU)
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert made.code(GPU) == b"code of sm_90"
    assert len(compiler.compiled) == 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_may_enter_is_not_used(folder: Path, mode: int) -> None:
    compiler = Recording()
    made = kernels.CudaKernels([compiler], kernels.FolderCache(folder))
    made.code(GPU)
    folder.chmod(mode)
    made.code(GPU)
    assert len(compiler.compiled) == 2


def test_a_folder_that_cannot_be_made_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    compiler = Recording()
    cache = kernels.FolderCache(tmp_path / "file" / "kernels")
    assert kernels.CudaKernels([compiler], cache).code(GPU) == b"code of sm_90"


def test_without_a_compiler(folder: Path) -> None:
    with pytest.raises(UnavailableError) as raised:
        kernels.CudaKernels([], kernels.FolderCache(folder)).code(GPU)
    assert raised.value.code == "no-kernel-compiler"


def test_an_old_gpu(folder: Path) -> None:
    old = GpuFacts("a V100", (7, 0), 80, 16 << 30, 13000, 3)
    with pytest.raises(UnavailableError) as raised:
        kernels.CudaKernels([Recording()], kernels.FolderCache(folder)).code(old)
    assert raised.value.code == "gpu-too-old"


def test_the_digest_is_that_of_all_sources() -> None:
    names = set(kernels.sources())
    on_disk = Path(kernels.__file__).parent / "kernels"
    assert names == {path.name for path in on_disk.iterdir()}
    assert kernels.MODULE in names
