"""Probes of NVIDIA GPUs: driver, protection, pinned-memory truth, rates, the compiler.

They go through the engine's own driver and the same test of pinned memory, so what is
said here is what the engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from sealift.channel.cuda.bindings import open_driver
from sealift.channel.cuda.compilers import installed_compilers
from sealift.channel.cuda.confidential import GpuProtection, read_protection
from sealift.channel.cuda.driver import Driver, told
from sealift.channel.cuda.pinned import PinnedBlock, PinnedTruth, prove_pinned
from sealift.channel.cuda.staging import HostBlock, host_block
from sealift.channel.select import shows_gpu
from sealift.cli.doctor.probe import Finding, Probe, say_rate, say_time
from sealift.errors import SealiftError, UnavailableError

TOPIC: Final = "GPU"
_NBYTES: Final = 64 << 20
_REPEATS: Final = 5
_SMALL: Final = 64
_CROSSINGS: Final = 200


def gpu_probes(open_gpu: Callable[[], Driver] = open_driver) -> list[Probe]:
    """In the order they are looked at."""
    return [
        Probe(TOPIC, "the GPU", lambda: look_at_gpu(open_gpu)),
        Probe(TOPIC, "confidential computing", look_at_protection),
        Probe(TOPIC, "the kernel compiler", look_at_compilers),
    ]


def look_at_gpu(open_gpu: Callable[[], Driver] = open_driver) -> list[Finding]:
    """The GPU, if it can be opened: what it is, pinned memory, rates, toll."""
    try:
        driver = open_gpu()
    except UnavailableError as error:
        return [_no_gpu(error)]
    try:
        with told():
            return _measured(driver)
    except SealiftError as error:
        state = f"it failed while it was measured ({error})"
        return [Finding("GPU", state, state="limits", figures={"error": error.code})]
    finally:
        driver.close()


def look_at_protection(
    read: Callable[[], GpuProtection] = read_protection,
) -> list[Finding]:
    """What NVML says of confidential computing."""
    found = read()
    figures = {
        "confidential": found.confidential,
        "devtools": found.devtools,
        "multi_gpu": found.multi_gpu,
        "accepts_work": found.accepts_work,
    }
    if found.confidential is None:
        said = f"unknown: {found.why}"
        return [Finding("GPU protection", said, state="missing", figures=dict(figures))]
    return [_protection(found, dict(figures))]


def look_at_compilers(find: Callable[[], Any] = installed_compilers) -> list[Finding]:
    """What compiles the kernels at first use."""
    versions = [each.version for each in find()]
    if not versions:
        advice = "pip install 'sealift[cuda]' brings NVRTC"
        meaning = "the kernels of the GPU engine cannot be made here"
        return [Finding("kernel compiler", "none", meaning, advice, "missing")]
    said = ", ".join(versions)
    meaning = "the kernels are compiled at first use, and kept"
    return [Finding("kernel compiler", said, meaning, "", "good", {"compilers": said})]


def _no_gpu(error: UnavailableError) -> Finding:
    there = shows_gpu()
    return Finding(
        "GPU",
        f"none that can be used: {error.why or error.what}",
        "records are opened by this host's cores",
        error.fix if there else "",
        "limits" if there else "missing",
        {"there": there, "error": error.code},
    )


def _protection(found: GpuProtection, figures: dict[str, Any]) -> Finding:
    mode = f"multi-GPU mode {found.multi_gpu}"
    if not found.confidential:
        meaning = "the bus carries keys as they are; who administers the host sees all"
        return Finding("GPU protection", f"CC off, {mode}", meaning, figures=figures)
    weak = found.devtools or not found.accepts_work
    said = f"CC on{', debug tools let in' if found.devtools else ''}, {mode}"
    if found.accepts_work is False:
        said += ", accepts no work yet"
    advice = "Debug tools off; attest, then `nvidia-smi conf-compute -srs 1`"
    return Finding(
        "GPU protection",
        said,
        "the host is kept out; every crossing is encrypted and costs",
        advice if weak else "",
        "limits" if weak else "good",
        figures,
    )


def _measured(driver: Driver) -> list[Finding]:
    facts = driver.facts
    what = Finding(
        "GPU",
        f"{facts.name}, {facts.memory_bytes / 2**30:.0f} GiB, compute capability "
        f"{facts.capability[0]}.{facts.capability[1]}, CUDA {facts.driver // 1000}."
        f"{facts.driver % 1000 // 10}",
        "" if facts.real else "no GPU: a stand-in of the tests",
        state="good",
        figures={
            "name": facts.name,
            "memory_bytes": facts.memory_bytes,
            "free_bytes": driver.free_bytes(),
            "multiprocessors": facts.multiprocessors,
        },
    )
    truth = prove_pinned(driver)
    return [what, _pinned(truth), *_rates(driver, truth), _toll(driver, truth)]


def _pinned(truth: PinnedTruth) -> Finding:
    return Finding(
        "pinned memory",
        f"{'proven' if truth.proven else 'not proven'}: {truth.why}",
        "copies run beside kernels" if truth.proven else "every copy is waited for",
        "" if truth.proven else "Under CC this is normal; else look at `ulimit -l`",
        "good" if truth.proven else "limits",
        {"proven": truth.proven, "why": truth.why},
    )


def _rates(driver: Driver, truth: PinnedTruth) -> list[Finding]:
    """Both ways, from memory as it is proven."""
    block = host_block(driver, _NBYTES, pinned=truth.proven)
    device, stream = driver.allocate(_NBYTES), driver.stream()
    try:
        up = _best(lambda: _crossing(driver, block, device, stream, _NBYTES, up=True))
        down = _best(
            lambda: _crossing(driver, block, device, stream, _NBYTES, up=False)
        )
    finally:
        driver.free(device)
        driver.release(stream)
        block.close()
    return [
        Finding(
            "to and from the GPU",
            f"{say_rate(_NBYTES / up)} there, {say_rate(_NBYTES / down)} back",
            "no transfer to this GPU is faster",
            figures={
                "h2d_bytes_per_s": round(_NBYTES / up),
                "d2h_bytes_per_s": round(_NBYTES / down),
                "pinned": isinstance(block, PinnedBlock),
            },
        )
    ]


def _toll(driver: Driver, truth: PinnedTruth) -> Finding:
    """What a crossing costs before its first byte."""
    block = host_block(driver, _SMALL, pinned=truth.proven)
    device, stream = driver.allocate(_SMALL), driver.stream()
    try:
        start = time.perf_counter()
        for _ in range(_CROSSINGS):
            _crossing(driver, block, device, stream, _SMALL, up=True)
        each = (time.perf_counter() - start) / _CROSSINGS
    finally:
        driver.free(device)
        driver.release(stream)
        block.close()
    return Finding(
        "toll of a crossing",
        say_time(each),
        "what 64 bytes cost, waited for; small tensors are packed into one crossing",
        figures={"toll_s": round(each, 9)},
    )


def _crossing(
    driver: Driver, block: HostBlock, device: int, stream: Any, nbytes: int, *, up: bool
) -> None:
    event = driver.event()
    if up:
        driver.copy_to_device(device, block.address, nbytes, stream)
    else:
        driver.copy_to_host(block.address, device, nbytes, stream)
    driver.record(event, stream)
    driver.synchronize(event)
    driver.release(event)


def _best(step: Callable[[], None]) -> float:
    took = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return min(took)
