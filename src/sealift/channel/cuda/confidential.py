"""How a confidential GPU wants to be fed, and whether this one is confidential.

Under CC every crossing is encrypted by the driver, in messages of at most 1 MiB, by the
thread that asks for it, which waits for its stream meanwhile. So crossings get threads
of their own, small ones are packed into one, and several contexts (a protected channel
each) work at once. The GPU's state is asked of NVML, never guessed.
Sources: NVIDIA's open kernel modules (conf_compute, uvm_conf_computing.h); NVML API
reference, confidential compute; reports of synchronous copies under CC.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.door import nvml
from sealift.channel.cuda.pinned import PinnedTruth
from sealift.errors import UnavailableError

MESSAGE_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 4 << 20
SMALL_BYTES: Final = 256 << 10
CONTEXTS: Final = 3
_ON: Final = 1
_MULTI_GPU: Final = {0: "none", 1: "ppcie", 2: "nvle"}


@dataclass(frozen=True, slots=True)
class GpuProtection:
    """What NVML says of confidential computing.

    Attributes:
        confidential: Whether it is on; None if NVML could not be asked.
        devtools: Whether debug tools are let in, which protects nothing.
        multi_gpu: How several GPUs are joined: none, ppcie, nvle, or unknown.
        accepts_work: Whether the GPUs were told to accept work.
        why: Where this is from, or why nothing is known.
    """

    confidential: bool | None
    devtools: bool = False
    multi_gpu: str = "unknown"
    accepts_work: bool | None = None
    why: str = "NVML"


@dataclass(frozen=True, slots=True)
class Crossings:
    """How copies between host and GPU are made.

    Attributes:
        threads: Whether each lane has a thread of its own.
        contexts: How many contexts copy to the GPU at once.
        piece_bytes: The longest single copy through a slot.
        pinned: Whether slots are pinned memory.
        why: For events and `sealift doctor`.
    """

    threads: bool
    contexts: int
    piece_bytes: int
    pinned: bool
    why: str


def read_protection(open_nvml: Callable[[], Any] = nvml) -> GpuProtection:
    """The state of the machine's GPUs. That it cannot be read is an answer."""
    try:
        asked = open_nvml()
    except UnavailableError as error:
        return GpuProtection(None, why=str(error))
    settings = asked.c_nvmlSystemConfComputeSettings_v1_t()
    try:
        # The binding hands its argument to C as it is, and returns an error's code.
        refused = asked.nvmlSystemGetConfComputeSettings(ctypes.byref(settings))
        ready = None if refused else asked.nvmlSystemGetConfComputeGpusReadyState()
    except asked.NVMLError as error:
        return _unknown(str(error))
    if refused:
        return _unknown(f"NVML error {refused}")
    return GpuProtection(
        confidential=settings.ccFeature == _ON,
        devtools=settings.devToolsMode == _ON,
        multi_gpu=_MULTI_GPU.get(settings.multiGpuMode, "unknown"),
        accepts_work=ready == _ON,
    )


def choose_crossings(protection: GpuProtection, truth: PinnedTruth) -> Crossings:
    """What fits this GPU."""
    if protection.confidential:
        why = f"CC is on: {CONTEXTS} contexts with a thread each; pinned: {truth.why}"
        return Crossings(True, CONTEXTS, MESSAGE_BYTES, truth.proven, why)
    if not truth.proven:
        return Crossings(True, 1, PIECE_BYTES, False, f"staged copies: {truth.why}")
    return Crossings(False, 1, PIECE_BYTES, True, f"pinned slots: {truth.why}")


def _unknown(why: str) -> GpuProtection:
    return GpuProtection(
        None, why=f"the driver does not say how GPUs are protected ({why})"
    )
