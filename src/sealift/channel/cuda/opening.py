"""Make the CUDA engine of this machine ready, or say in one line why there is none."""

from __future__ import annotations

from collections.abc import Callable

from sealift.channel.cuda.bindings import open_driver
from sealift.channel.cuda.compilers import CudaKernels
from sealift.channel.cuda.confidential import (
    GpuProtection,
    choose_crossings,
    read_protection,
)
from sealift.channel.cuda.driver import Driver, told
from sealift.channel.cuda.engine import SLOTS, CudaEngine
from sealift.channel.cuda.pinned import prove_pinned
from sealift.channel.cuda.plan import Kernels
from sealift.channel.cuda.selftest import self_test
from sealift.errors import UnavailableError
from sealift.events import Sink, discard, emit

LEAST_CAPABILITY = (8, 0)  # asynchronous copies into shared memory


def open_cuda(
    ordinal: int = 0,
    *,
    kernels: Kernels | None = None,
    driver: Callable[[int], Driver] = open_driver,
    protection: Callable[[], GpuProtection] = read_protection,
    test: Callable[[CudaEngine], None] = self_test,
    slots: int = SLOTS,
    sink: Sink = discard,
) -> CudaEngine:
    """The engine on GPU ``ordinal``, compared with the CPU's.

    Args:
        ordinal: Which GPU, in CUDA's order.
        kernels: What runs on it; Sealift's own if None.
        driver: Opens the GPU.
        protection: Asks for the state of confidential computing.
        test: Compares the engine before it is given out.
        slots: Slots of each ring.
        sink: Told how copies are made, and why.

    Raises:
        UnavailableError: no package, driver, GPU or compiler, a driver that is too old,
            a GPU that is not supported, or an engine that fails its self-test.
    """
    opened = driver(ordinal)
    try:
        _require_supported(opened)
        engine = _build(opened, kernels or CudaKernels(), protection, slots, sink)
    except BaseException:
        opened.close()
        raise
    try:
        test(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _build(
    driver: Driver,
    kernels: Kernels,
    protection: Callable[[], GpuProtection],
    slots: int,
    sink: Sink,
) -> CudaEngine:
    with told():
        truth = prove_pinned(driver)
        state = protection()
        crossings = choose_crossings(state, truth)
        engine = CudaEngine(driver, kernels, crossings, slots=slots)
    emit(
        sink,
        "cuda.opened",
        gpu=driver.facts.name,
        confidential=state.confidential,
        pinned=truth.proven,
        threads=crossings.threads,
        contexts=crossings.contexts,
        copies=crossings.why,
        kernels=kernels.origin,
    )
    return engine


def _require_supported(driver: Driver) -> None:
    found = driver.facts.capability
    if found < LEAST_CAPABILITY:
        raise UnavailableError(
            f"{driver.facts.name} is not supported",
            why=f"it has compute capability {_say(found)}, needed is "
            f"{_say(LEAST_CAPABILITY)}",
            code="gpu-unsupported",
        )


def _say(capability: tuple[int, int]) -> str:
    return ".".join(str(part) for part in capability)
