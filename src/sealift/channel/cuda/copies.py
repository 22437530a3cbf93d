"""How copies between host and GPU are made: what pinned memory and the GPU's mode allow.

Under confidential computing (CC), memory that was asked for as pinned may not be, and
copies that should return at once return when they are done; programs that trusted the
request read stale bytes. So pinned memory is believed only when it was proven: the driver
is asked where it lies, bytes are sent there and back, and it is measured whether calls
return before what they ask for is done.
Every copy is encrypted by the driver then, in messages of at most 1 MiB, by the thread
that asks for it, which waits for its stream meanwhile. So copies get threads of their
own, transfers are cut into few, and several contexts (a protected channel each) work at
once. The GPU's mode is asked of NVML, never guessed.
Sources: NVIDIA's open kernel modules (conf_compute, uvm_conf_computing.h); NVML API
reference, confidential compute; reports of synchronous copies under CC.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.bindings import nvml
from sealift.channel.cuda.driver import CudaError, Driver, Residence
from sealift.channel.cuda.staging import HostBlock
from sealift.errors import UnavailableError

MESSAGE_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 4 << 20
CONTEXTS: Final = 3
_ON: Final = 1
_MULTI_GPU: Final = {0: "none", 1: "ppcie", 2: "nvle"}


Clock = Callable[[], float]
PROOF_BYTES: Final = 4 << 20
_BURST: Final = 16
_TRIES: Final = 5
_ECHO: Final = 4096
_SMALLEST: Final = 64
QUEUED_TOLL_S: Final = 3.3e-6
"""What a copy costs behind another, from pinned memory: measured on an H100, 2026-11-27."""


@dataclass(frozen=True, slots=True)
class PinnedTruth:
    """What is known of pinned memory on this machine.

    Attributes:
        proven: Whether copies from it may be relied on to be asynchronous.
        why: What it was concluded from.
    """

    proven: bool
    why: str


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
class CopySettings:
    """How copies between host and GPU are made.

    Attributes:
        threads: Whether each lane has a thread of its own.
        contexts: How many contexts copy to the GPU at once.
        piece_bytes: The longest single copy through a slot.
        pinned: Whether slots are pinned memory.
        why: For events and `sealift doctor`.
        toll_s: What one more crossing costs.
    """

    threads: bool
    contexts: int
    piece_bytes: int
    pinned: bool
    why: str
    toll_s: float


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


def choose_copies(
    protection: GpuProtection, truth: PinnedTruth, toll_s: float
) -> CopySettings:
    """What fits this GPU.

    Args:
        protection: Its mode.
        truth: What is known of pinned memory.
        toll_s: What a crossing costs that is waited for (``measure_toll``).
    """
    if protection.confidential:
        why = f"CC is on: {CONTEXTS} contexts with a thread each; pinned: {truth.why}"
        return CopySettings(True, CONTEXTS, MESSAGE_BYTES, truth.proven, why, toll_s)
    if not truth.proven:
        why = f"staged copies: {truth.why}"
        return CopySettings(True, 1, PIECE_BYTES, False, why, toll_s)
    why = f"pinned slots: {truth.why}"
    return CopySettings(False, 1, PIECE_BYTES, True, why, QUEUED_TOLL_S)


def _unknown(why: str) -> GpuProtection:
    return GpuProtection(
        None, why=f"the driver does not say how GPUs are protected ({why})"
    )


def prove_pinned(driver: Driver, clock: Clock = time.perf_counter) -> PinnedTruth:
    """Allocate, ask, send and look; takes milliseconds on a GPU.

    Raises:
        CudaError: if the GPU fails at it. That pinned memory cannot be had is no error.
    """
    try:
        block = HostBlock(driver, PROOF_BYTES, pinned=True)
    except CudaError as fault:
        if fault.ends_context:
            raise
        return PinnedTruth(False, f"the driver gives none ({fault})")
    try:
        return _prove(driver, block, clock)
    finally:
        block.close()


def _prove(driver: Driver, block: HostBlock, clock: Clock) -> PinnedTruth:
    residence = driver.residence(block.address)
    if residence is not Residence.PINNED:
        return PinnedTruth(False, f"the driver calls it {residence.value} memory")
    stream, device = driver.stream(), driver.allocate(PROOF_BYTES)
    try:
        if not _comes_back(driver, block, device, stream):
            return PinnedTruth(False, "bytes that came back were not those sent")
        goes_on = any(
            _returns_early(driver, block, device, stream, clock) for _ in range(_TRIES)
        )
    finally:
        driver.free(device)
        driver.release(stream)
    if not goes_on:
        return PinnedTruth(False, "copies from it return only when they are done")
    return PinnedTruth(
        True, "the driver says so, and copies from it go on by themselves"
    )


def _comes_back(driver: Driver, block: HostBlock, device: int, stream: Any) -> bool:
    sent = secrets.token_bytes(_ECHO)
    block.view[:_ECHO] = sent
    back = PROOF_BYTES - _ECHO
    driver.copy_to_device(device, block.address, _ECHO, stream)
    driver.copy_to_host(block.address + back, device, _ECHO, stream)
    _finish(driver, stream)
    return bytes(block.view[back:]) == sent


def _returns_early(
    driver: Driver, block: HostBlock, device: int, stream: Any, clock: Clock
) -> bool:
    """Whether asking for 64 MiB takes less than half as long as having them there.

    An event alone says little: behind a copy that was waited for, it may still need a
    moment. An interruption can only make an early return look late, so one early one
    is enough.
    """
    start = clock()
    for _ in range(_BURST):
        driver.copy_to_device(device, block.address, PROOF_BYTES, stream)
    asked = clock()
    _finish(driver, stream)
    return asked - start < (clock() - start) / 2


def measure_toll(
    driver: Driver, truth: PinnedTruth, clock: Clock = time.perf_counter
) -> float:
    """Seconds of a small copy that is waited for, as all are in confidential mode."""
    block = HostBlock(driver, _SMALLEST, pinned=truth.proven)
    stream, device = driver.stream(), driver.allocate(_SMALLEST)
    took = []
    try:
        for _ in range(_TRIES):
            start = clock()
            driver.copy_to_device(device, block.address, _SMALLEST, stream)
            _finish(driver, stream)
            took.append(clock() - start)
    finally:
        driver.free(device)
        driver.release(stream)
        block.close()
    return min(took)


def _finish(driver: Driver, stream: Any) -> None:
    event = driver.event()
    driver.record(event, stream)
    driver.synchronize(event)
    driver.release(event)
