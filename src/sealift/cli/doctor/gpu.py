"""Probes of NVIDIA GPUs: driver, protection, pinned-memory truth, rates, the compiler.

They go through the engine's own driver and the same test of pinned memory, so what is
said here is what the engine does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sealift.channel.cuda.bindings import open_driver
from sealift.channel.cuda.compilers import installed_compilers
from sealift.channel.cuda.copies import (
    GpuProtection,
    PinnedTruth,
    prove_pinned,
    read_protection,
)
from sealift.channel.cuda.driver import Driver, faults_as_errors
from sealift.channel.cuda.staging import HostBlock
from sealift.channel.select import select_device, shows_gpu
from sealift.cli.doctor.probe import Figure, Finding, say_rate, say_time
from sealift.errors import SealiftError, UnavailableError
from sealift.train.sandbox.confine import NONE
from sealift.train.sandbox.inventory import GPU_FILES, NVIDIA, UVM
from sealift.train.worker.devices import other_processes

# README and SECURITY say the same.
RAN: Final = (
    "run on one GPU (an H100, confidential mode off): the kernels that open and seal "
    "records, loaders that open there, training behind each part of the sandbox and behind "
    "all of it, answers, servers of shares, two and four ranks' sums on that GPU; not run "
    "on a GPU: evaluation, the search for what a scrub left, several GPUs, confidential mode"
)
# By use: what has to work for it, and what that is.
USES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "loader": (("engine",), "records are opened there"),
    "feed": (("engine", "torch"), "records cross sealed, and torch finds them opened"),
    "train": (("recipes",), "a recipe's process computes there, in its sandbox"),
    "ranks": (
        ("recipes", "engine"),
        "each computes there, and its sums are sealed there",
    ),
    "share server": (("torch",), "products of shares are computed there"),
}
_NBYTES: Final = 64 << 20
_REPEATS: Final = 5
_SMALL: Final = 64
_CROSSINGS: Final = 200


def look_at_gpu(open_gpu: Callable[[], Driver] = open_driver) -> Iterator[Finding]:
    """The GPU, if it can be opened: what it is, pinned memory, rates, toll."""
    yield from _look_at_files()  # before opening it makes what is missing
    try:
        driver = open_gpu()
    except UnavailableError as error:
        there = shows_gpu()
        yield Finding(
            "GPU",
            f"none that can be used: {error.why or error.what}",
            "records are opened by this host's cores",
            error.fix if there else "",
            "limits" if there else "missing",
            {"there": there, "error": error.code},
        )
        return
    try:
        with faults_as_errors():
            truth = prove_pinned(driver)
            found = [_named(driver), _pinned(truth)]
            found += [_rates(driver, truth.proven), _toll(driver, truth.proven)]
        yield from found
    except SealiftError as error:
        state = f"it failed while it was measured ({error})"
        yield Finding("GPU", state, state="limits", figures={"error": error.code})
    finally:
        driver.close()


def _look_at_files() -> Iterator[Finding]:
    """Whether a recipe's process, which can make no device file, finds and opens all of them."""
    for path in filter(os.path.exists, GPU_FILES):
        if not os.access(path, os.R_OK | os.W_OK):
            yield Finding(
                "GPU files",
                f"this user may not open {path}",
                "recipes of this user compute on the CPU",
                f"As root: chmod 666 {path}, or start as a user who may",
                "limits",
            )
    if Path(NVIDIA).exists() and not Path(UVM).exists():
        yield Finding(
            "GPU files",
            f"{UVM} is missing",
            "recipes compute on the CPU: in their sandbox nothing can make it",
            "As root: nvidia-modprobe -u -c=0, at each start; and run nvidia-persistenced",
            "limits",
        )


def look_at_protection(
    read: Callable[[], GpuProtection] = read_protection,
) -> Iterator[Finding]:
    """What NVML says of confidential computing."""
    found, name = read(), "GPU protection"
    figures: dict[str, Figure] = {
        "confidential": found.confidential,
        "devtools": found.devtools,
        "multi_gpu": found.multi_gpu,
        "accepts_work": found.accepts_work,
    }
    mode = f"multi-GPU mode {found.multi_gpu}"
    if found.confidential is None:
        said = f"unknown: {found.why}"
        yield Finding(name, said, state="missing", figures=figures)
    elif not found.confidential:
        meaning = "the bus carries keys as they are; who administers the host sees all"
        yield Finding(name, f"CC off, {mode}", meaning, figures=figures)
    else:
        weak = found.devtools or not found.accepts_work
        said = f"CC on{', debug tools let in' if found.devtools else ''}, {mode}"
        if found.accepts_work is False:
            said += ", accepts no work yet"
        advice = "Debug tools off; attest, then `nvidia-smi conf-compute -srs 1`"
        yield Finding(
            name,
            said,
            "the host is kept out; every crossing is encrypted and costs",
            advice if weak else "",
            "limits" if weak else "good",
            figures,
        )


def look_at_company(
    find: Callable[[], Mapping[str, tuple[int, ...]]] = other_processes,
) -> Iterator[Finding]:
    """Who else computes on each GPU; and what of Sealift has, and has not."""
    try:
        found = find()
    except UnavailableError as error:
        said = f"unknown: {error.why or error.what}"
        yield Finding("others on the GPU", said, state="missing")
        found = {}
    for uuid, others in found.items():
        said = f"{uuid}: {', '.join(map(str, others)) or 'nobody'}"
        meaning = "they share its memory, and see how busy it is" if others else ""
        advice = "End those processes, or give the accelerator a GPU of its own"
        yield Finding(
            "others on the GPU",
            said,
            meaning,
            advice if others else "",
            "limits" if others else "good",
            {"gpu": uuid, "processes": len(others)},
        )
    yield Finding("Sealift on a GPU", RAN, state="limits")


def _engine_lacks() -> str:
    """Why records are not opened on a GPU here; its kernels are compiled and tested."""
    try:
        select_device(prefer="cuda").engine.close()
    except SealiftError as error:
        return f"{error.why or error.what}"
    return ""


def _recipes_lack(confined: bool) -> str:
    """Why a recipe's process, in its sandbox or without one, has no GPU."""
    if find_spec("torch") is None:
        return "torch is not installed"
    from sealift.train.worker.executor import BEST, RecipeExecutor

    wanted = BEST if confined else NONE
    try:
        with RecipeExecutor({"recipe.py": b""}, "recipe.py", wanted=wanted) as executor:
            executor.compute_on("cuda")
    except SealiftError as error:
        return f"{error.why or error.what}"
    return ""


def look_at_uses(
    shown: Callable[[], bool] = shows_gpu,
    engine: Callable[[], str] = _engine_lacks,
    recipes: Callable[[bool], str] = _recipes_lack,
) -> Iterator[Finding]:
    """For each use of a GPU whether it can be had here, and what is missing; each is tried.

    Args:
        shown: Whether this machine shows one.
        engine: What the engine that opens and seals lacks; empty for nothing.
        recipes: The same of a recipe's process, in its sandbox or without one.
    """
    if not shown():
        yield Finding("uses of a GPU", "none: this machine shows none", state="missing")
        return
    lacks = {"engine": engine(), "recipes": recipes(True)}
    # What computes outside of a sandbox has what recipes have, or is asked for by itself.
    lacks["torch"] = lacks["recipes"] and recipes(False)
    for use, (needs, what) in USES.items():
        missing = "; ".join(filter(None, (lacks[each] for each in needs)))
        yield Finding(
            f"GPU for {use}",
            f"no: {missing}" if missing else "yes",
            what,
            state="limits" if missing else "good",
            figures={"missing": missing},
        )


def look_at_compilers(
    find: Callable[[], Any] = installed_compilers,
) -> Iterator[Finding]:
    """What compiles the kernels at first use."""
    said, name = ", ".join(each.version for each in find()), "kernel compiler"
    if said:
        meaning = "the kernels are compiled at first use, in each process"
        yield Finding(name, said, meaning, state="good", figures={"compilers": said})
    else:
        advice = "pip install '.[cuda]', in Sealift's folder, brings NVRTC"
        meaning = "the kernels of the GPU engine cannot be made here"
        yield Finding(name, "none", meaning, advice, "missing")


def _named(driver: Driver) -> Finding:
    facts = driver.facts
    major, minor = facts.capability
    return Finding(
        "GPU",
        f"{facts.name}, {facts.memory_bytes / 2**30:.0f} GiB, compute capability "
        f"{major}.{minor}, CUDA {facts.driver // 1000}.{facts.driver % 1000 // 10}",
        "" if facts.real else "no GPU: a stand-in of the tests",
        state="good",
        figures={
            "name": facts.name,
            "memory_bytes": facts.memory_bytes,
            "free_bytes": driver.free_bytes(),
            "multiprocessors": facts.multiprocessors,
        },
    )


def _pinned(truth: PinnedTruth) -> Finding:
    return Finding(
        "pinned memory",
        f"{'proven' if truth.proven else 'not proven'}: {truth.why}",
        "copies run beside kernels" if truth.proven else "every copy is waited for",
        "" if truth.proven else "Under CC this is normal; else look at `ulimit -l`",
        "good" if truth.proven else "limits",
        {"proven": truth.proven, "why": truth.why},
    )


def _rates(driver: Driver, pinned: bool) -> Finding:
    """Both ways, from memory as it is proven."""
    with _crossing(driver, _NBYTES, pinned) as cross:
        up_s, down_s = (_best_s(cross, up, 1, _REPEATS) for up in (True, False))
    up, down = (round(_NBYTES / spent_s) for spent_s in (up_s, down_s))
    return Finding(
        "to and from the GPU",
        f"{say_rate(up)} there, {say_rate(down)} back",
        "no transfer to this GPU is faster",
        figures={"h2d_bytes_per_s": up, "d2h_bytes_per_s": down, "pinned": pinned},
    )


def _toll(driver: Driver, pinned: bool) -> Finding:
    """What a crossing costs before its first byte."""
    with _crossing(driver, _SMALL, pinned) as cross:
        each_s = _best_s(cross, True, _CROSSINGS, 1) / _CROSSINGS
    return Finding(
        "toll of a crossing",
        say_time(each_s),
        "what 64 bytes cost, waited for; small tensors are packed into one crossing",
        figures={"toll_s": round(each_s, 9)},
    )


@contextmanager
def _crossing(
    driver: Driver, nbytes: int, pinned: bool
) -> Iterator[Callable[[bool], None]]:
    """Memory at both ends, and a copy there (true) or back that is waited for."""
    block = HostBlock(driver, nbytes, pinned=pinned)
    device, stream = driver.allocate(nbytes), driver.stream()

    def cross(up: bool) -> None:
        event = driver.event()
        if up:
            driver.copy_to_device(device, block.address, nbytes, stream)
        else:
            driver.copy_to_host(block.address, device, nbytes, stream)
        driver.record(event, stream)
        driver.synchronize(event)
        driver.release(event)

    try:
        yield cross
    finally:
        driver.free(device)
        driver.release(stream)
        block.close()


def _best_s(cross: Callable[[bool], None], up: bool, times: int, repeats: int) -> float:
    """Seconds of so many crossings, the best of some repeats."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(times):
            cross(up)
        took.append(time.perf_counter() - start)
    return min(took)
