"""CUDA engines on stand-ins, in every way that copies are made."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from sealift.channel.cuda.compilers import CudaKernels
from sealift.channel.cuda.driver import Argument, CudaError, GpuFacts, Grid
from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.cuda.staging import CopySettings, GpuProtection
from tests.sim.cuda_standin import StandInDriver, StandInGpu
from tests.sim.gcc_kernels import loaded
from tests.sim.model_kernels import ModelKernels, ModelRunner

PIECE = 16 << 10  # small, so that a test's few bytes take several slots
TOLL_S = 1e-9
WAYS: dict[str, CopySettings] = {
    "pinned": CopySettings(False, 1, PIECE, True, "as a test says", TOLL_S),
    "staged": CopySettings(True, 1, PIECE, False, "as a test says", TOLL_S),
    "confidential": CopySettings(True, 3, PIECE, True, "as a test says", TOLL_S),
}


def model_gpu(**faults: object) -> StandInGpu:
    """A stand-in that runs the models of the kernels."""
    return StandInGpu(ModelRunner(), **faults)  # type: ignore[arg-type]


class GccRunner:
    """Runs the real kernels, compiled by gcc (`cuda_standin.KernelRunner`)."""

    def has(self, name: str) -> bool:
        return name.startswith("sealift_")

    def run(self, name: str, grid: Grid, arguments: Sequence[Argument]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.addressof(each) for each in arguments)
        )
        missing = loaded().sealift_host_launch(
            name.encode(), grid.blocks, grid.threads, grid.shared_bytes, pointers
        )
        if missing:
            raise CudaError("cuLaunchKernel", 500, "CUDA_ERROR_NOT_FOUND")


class GccKernels(CudaKernels):
    """The real plans; there is nothing to compile."""

    def code(self, gpu: GpuFacts) -> bytes:
        return b"gcc"


def gcc_engine(way: str = "pinned") -> CudaEngine:
    """An engine that runs the real kernels on a stand-in."""
    return engine_on(StandInGpu(GccRunner()), way, GccKernels())


def engine_on(
    gpu: StandInGpu, way: str = "pinned", kernels: CudaKernels | None = None
) -> CudaEngine:
    """An engine without self-test."""
    return CudaEngine(StandInDriver(gpu), kernels or ModelKernels(), WAYS[way])


def opened_on(gpu: StandInGpu, *, confidential: bool | None = False, **options):
    """An engine as users get it: pinned memory proven or not, self-test and all."""
    return open_cuda(
        kernels=ModelKernels(),
        driver=lambda _: StandInDriver(gpu),
        protection=lambda: GpuProtection(confidential),
        **options,
    )
