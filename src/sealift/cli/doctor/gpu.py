"""Probes of NVIDIA GPUs: driver, protection, pinned memory, rates, the compiler.

They use the engine's own driver and its test of pinned memory, so that they report what
the engine does.
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
from sealift.channel.cuda.driver import Driver, faults_as_errors
from sealift.channel.cuda.staging import (
    GpuProtection,
    HostBlock,
    PinnedTruth,
    prove_pinned,
    read_protection,
)
from sealift.channel.select import select_device, shows_gpu
from sealift.cli.doctor.probe import Figure, Finding, say_rate, say_time
from sealift.errors import SealiftError, UnavailableError
from sealift.train.sandbox.confine import NONE
from sealift.train.sandbox.inventory import GPU_FILES, NVIDIA, UVM
from sealift.train.worker.devices import other_processes

# SECURITY and docs/explanation/what-ran-where.md say the same.
RAN: Final = (
    "run on one GPU (an H100, confidential mode off): the kernels that open and seal "
    "records, loaders that open there, training behind each part of the sandbox and behind "
    "all of it, prediction, share servers, sums of two and four ranks on that GPU, the search "
    "for bytes left after overwriting (that driver clears memory by itself, so the search "
    "proves nothing); not run on a GPU: evaluation, several GPUs, confidential mode"
)
# By use: what has to work for it, and what that is.
USES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "loader": (("engine",), "opens records on the GPU"),
    "feed": (
        ("engine", "torch"),
        "sends sealed records to the GPU and opens them there, for torch",
    ),
    "train": (("recipes",), "a recipe's process computes on the GPU, in its sandbox"),
    "ranks": (
        ("recipes", "engine"),
        "each rank computes on the GPU and seals its sums there",
    ),
    "share server": (("torch",), "multiplies secret shares on the GPU"),
}
_NBYTES: Final = 64 << 20
_REPEATS: Final = 5
_SMALL: Final = 64
_CROSSINGS: Final = 200


def look_at_gpu(open_gpu: Callable[[], Driver] = open_driver) -> Iterator[Finding]:
    """The GPU, if it can be opened: its name, pinned memory, rates, cost of a transfer."""
    yield from _look_at_files()  # before the driver creates what is missing
    try:
        driver = open_gpu()
    except UnavailableError as error:
        there = shows_gpu()
        yield Finding(
            "GPU",
            f"no usable GPU: {error.why or error.what}",
            "records are opened on this machine's processor",
            error.fix if there else "",
            "limits" if there else "missing",
            {"there": there, "error": error.code},
        )
        return
    try:
        with faults_as_errors():
            truth = prove_pinned(driver)
            findings = [_named(driver), _pinned(truth)]
            findings += [_rates(driver, truth.proven), _toll(driver, truth.proven)]
        yield from findings
    except SealiftError as error:
        state = f"a measurement failed ({error})"
        yield Finding("GPU", state, state="limits", figures={"error": error.code})
    finally:
        driver.close()


def _look_at_files() -> Iterator[Finding]:
    """Whether the GPU's device files are there: a recipe's process cannot create them."""
    for path in filter(os.path.exists, GPU_FILES):
        if not os.access(path, os.R_OK | os.W_OK):
            yield Finding(
                "GPU files",
                f"this user may not open {path}",
                "this user's recipes compute on the processor",
                f"As root, run: chmod 666 {path}; or start Sealift as a user who may "
                "open it",
                "limits",
            )
    if Path(NVIDIA).exists() and not Path(UVM).exists():
        yield Finding(
            "GPU files",
            f"{UVM} is missing",
            "recipes compute on the processor: a sandboxed process cannot create this "
            "file",
            "As root, run at each start: nvidia-modprobe -u -c=0; and run "
            "nvidia-persistenced",
            "limits",
        )


def look_at_protection(
    read: Callable[[], GpuProtection] = read_protection,
) -> Iterator[Finding]:
    """What NVML says of confidential computing."""
    protection, name = read(), "GPU protection"
    figures: dict[str, Figure] = {
        "confidential": protection.confidential,
        "devtools": protection.devtools,
        "multi_gpu": protection.multi_gpu,
        "accepts_work": protection.accepts_work,
    }
    mode = f"multi-GPU mode {protection.multi_gpu}"
    if protection.confidential is None:
        said = f"unknown: {protection.why}"
        yield Finding(name, said, state="missing", figures=figures)
    elif not protection.confidential:
        meaning = (
            "keys cross the bus in plaintext, and the host's administrator can read "
            "the GPU's memory"
        )
        yield Finding(
            name,
            f"confidential computing (CC) is off, {mode}",
            meaning,
            figures=figures,
        )
    else:
        weak = protection.devtools or not protection.accepts_work
        said = (
            "confidential computing (CC) is "
            f"on{', debug tools are allowed' if protection.devtools else ''}, {mode}"
        )
        if protection.accepts_work is False:
            said += ", the GPU does not accept work yet"
        advice = (
            "Turn debug tools off, attest the GPU, then run `nvidia-smi conf-compute "
            "-srs 1`"
        )
        yield Finding(
            name,
            said,
            "the host cannot read the GPU's memory; each transfer is encrypted, which "
            "costs time",
            advice if weak else "",
            "limits" if weak else "good",
            figures,
        )


def look_at_company(
    find: Callable[[], Mapping[str, tuple[int, ...]]] = other_processes,
) -> Iterator[Finding]:
    """Which other processes use each GPU; and which parts of Sealift ran on a GPU so far."""
    try:
        processes = find()
    except UnavailableError as error:
        said = f"unknown: {error.why or error.what}"
        yield Finding("others on the GPU", said, state="missing")
        processes = {}
    for uuid, others in processes.items():
        said = (
            f"{uuid}: "
            f"{'processes ' + ', '.join(map(str, others)) if others else 'no other process'}"
        )
        meaning = (
            (
                "other processes share the GPU's memory and can observe how busy the GPU "
                "is"
            )
            if others
            else ""
        )
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
    """Try each use of a GPU on this machine; say what is missing.

    Args:
        shown: Whether this machine shows one.
        engine: What the engine that opens and seals lacks; empty for nothing.
        recipes: The same of a recipe's process, in its sandbox or without one.
    """
    if not shown():
        yield Finding(
            "uses of a GPU", "none: this machine has no visible GPU", state="missing"
        )
        return
    lacks = {"engine": engine(), "recipes": recipes(True)}
    # Where recipes work, torch works outside of the sandbox too; else it is tried alone.
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
        meaning = "each process compiles the kernels when it first uses them"
        yield Finding(name, said, meaning, state="good", figures={"compilers": said})
    else:
        advice = "In Sealift's folder, run: pip install '.[cuda]' (it installs NVRTC)"
        meaning = "the GPU kernels cannot be compiled on this machine"
        yield Finding(name, "none", meaning, advice, "missing")


def _named(driver: Driver) -> Finding:
    facts = driver.facts
    major, minor = facts.capability
    return Finding(
        "GPU",
        f"{facts.name}, {facts.memory_bytes / 2**30:.0f} GiB, compute capability "
        f"{major}.{minor}, CUDA {facts.driver // 1000}.{facts.driver % 1000 // 10}",
        "" if facts.real else "not a GPU: a simulation that the tests use",
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
        "copies and kernels run at the same time"
        if truth.proven
        else "each copy waits for the one before",
        ""
        if truth.proven
        else "This is normal in confidential mode; otherwise check `ulimit -l`",
        "good" if truth.proven else "limits",
        {"proven": truth.proven, "why": truth.why},
    )


def _rates(driver: Driver, pinned: bool) -> Finding:
    """Rates in both directions, with pinned memory if it is proven."""
    with _crossing(driver, _NBYTES, pinned) as cross:
        up_s, down_s = (_best_s(cross, up, 1, _REPEATS) for up in (True, False))
    up, down = (round(_NBYTES / spent_s) for spent_s in (up_s, down_s))
    return Finding(
        "to and from the GPU",
        f"{say_rate(up)} to the GPU, {say_rate(down)} back",
        "the upper limit for transfers to this GPU",
        figures={"h2d_bytes_per_s": up, "d2h_bytes_per_s": down, "pinned": pinned},
    )


def _toll(driver: Driver, pinned: bool) -> Finding:
    """What a transfer costs before its first byte."""
    with _crossing(driver, _SMALL, pinned) as cross:
        each_s = _best_s(cross, True, _CROSSINGS, 1) / _CROSSINGS
    return Finding(
        "cost of one transfer",
        say_time(each_s),
        "the time for 64 bytes, waited for; Sealift packs small tensors into one "
        "transfer",
        figures={"toll_s": round(each_s, 9)},
    )


@contextmanager
def _crossing(
    driver: Driver, nbytes: int, pinned: bool
) -> Iterator[Callable[[bool], None]]:
    """Allocate memory at both ends; yield a copy to the GPU (true) or back, which waits."""
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
    """Return the seconds that ``times`` transfers take, the best of ``repeats`` tries."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(times):
            cross(up)
        took.append(time.perf_counter() - start)
    return min(took)
