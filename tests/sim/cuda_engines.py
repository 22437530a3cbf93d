"""CUDA engines on stand-ins, in every way that copies are made."""

from __future__ import annotations

from sealift.channel.cuda.confidential import Crossings, GpuProtection
from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.cuda.plan import Kernels
from tests.sim.cuda_standin import KernelRunner, StandInDriver, StandInGpu
from tests.sim.model_kernels import ModelKernels, ModelRunner

PIECE = 16 << 10  # small, so that a test's few bytes take several slots
WAYS: dict[str, Crossings] = {
    "pinned": Crossings(False, 1, PIECE, True, "as a test says"),
    "staged": Crossings(True, 1, PIECE, False, "as a test says"),
    "confidential": Crossings(True, 3, PIECE, True, "as a test says"),
}


def model_gpu(**faults: object) -> StandInGpu:
    """A stand-in that runs the models of the kernels."""
    return StandInGpu(ModelRunner(), **faults)  # type: ignore[arg-type]


def engine_on(
    gpu: StandInGpu, way: str = "pinned", kernels: Kernels | None = None
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


__all__ = ["KernelRunner", "engine_on", "model_gpu", "opened_on"]
