"""The kernels compile for GPUs without a GPU, and take what their shapes count on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sealift.channel.cuda import compilers as kernels
from sealift.channel.cuda import plan as geometry
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
    plans = [geometry.count_plan(1, GPU)]
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


def test_a_module_is_compiled_once_a_process() -> None:
    compiler = Recording()
    for _ in range(2):
        made = kernels.CudaKernels([compiler])
        assert made.code(GPU) == made.code(GPU) == b"code of sm_90"
        assert "recording 1" in made.origin
    assert compiler.compiled == ["sm_90"]


def test_another_compiler_or_gpu_compiles_again() -> None:
    first, second = Recording(), Recording()
    kernels.CudaKernels([first]).code(GPU)
    kernels.CudaKernels([second]).code(GPU)
    older = GpuFacts("an A100", (8, 0), 108, 80 << 30, 13000, 3)
    kernels.CudaKernels([second]).code(older)
    assert second.compiled == ["sm_90", "sm_80"]


def test_nothing_compiled_is_read_from_or_left_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "sealift" / "kernels"
    planted.mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    opened: list[str] = []
    watching = True  # a hook stays for good

    def record(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.mkdir", "os.listdir"):
            opened.append(str(arguments[0]))

    sys.addaudithook(record)
    (planted / "control").write_bytes(b"")  # the hook sees what it is to see
    kernels.CudaKernels([Recording()]).code(GPU)
    watching = False
    found = [each for each in opened if each.startswith(str(tmp_path))]
    assert found == [str(planted / "control")]


@pytest.mark.parametrize(("version", "told"), [((13, 0), True), ((12, 8), False)])
def test_nvrtc_is_told_to_keep_nothing(version: tuple[int, int], told: bool) -> None:
    options: list[bytes] = []
    calls = {
        "Version": (0, *version),
        "CreateProgram": (0, object()),
        "DestroyProgram": (0,),
    }
    library = SimpleNamespace(
        nvrtcCompileProgram=lambda _program, _count, given: options.extend(given) or (0,),
        **{f"nvrtc{name}": lambda *_, made=made: made for name, made in calls.items()},
        **{f"nvrtcGet{what}Size": lambda _: (0, 4) for what in ("ProgramLog", "CUBIN")},
        **{f"nvrtcGet{what}": lambda *_: (0,) for what in ("ProgramLog", "CUBIN")},
    )  # fmt: skip
    kernels.CudaKernels([NvrtcCompiler(library)]).code(GPU)
    assert (b"--no-cache" in options) == told  # unknown before 12.9


def test_without_a_compiler() -> None:
    with pytest.raises(UnavailableError) as raised:
        kernels.CudaKernels([]).code(GPU)
    assert raised.value.code == "no-kernel-compiler"


def test_an_old_gpu() -> None:
    old = GpuFacts("a V100", (7, 0), 80, 16 << 30, 13000, 3)
    with pytest.raises(UnavailableError) as raised:
        kernels.CudaKernels([Recording()]).code(old)
    assert raised.value.code == "gpu-too-old"


def test_the_digest_is_that_of_all_sources() -> None:
    names = set(kernels.sources())
    on_disk = Path(kernels.__file__).parent / "kernels"
    assert names == {path.name for path in on_disk.iterdir()}
    assert kernels.MODULE in names
