"""Probes of the host: memory, its copies, a private memory file, the disk, the sandbox."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final

from sealift.cli.doctor.probe import Figure, Finding, measure_rate, say_rate, say_time

_BULK: Final = 32 << 20
_SLOT: Final = 1 << 20
_SYNCS: Final = 12
_SLOW_SYNC_S: Final = 0.010
_PARTS: Final = ("namespaces", "landlock", "seccomp")
_TRY: Final = """
import os, sys
from sealift.train.sandbox import landlock, namespaces, seccomp
part = sys.argv[1]
if part == "namespaces":
    namespaces.leave_world()
elif part == "landlock":
    sys.exit(0 if landlock.version() > 0 else 1)
else:
    from sealift.train.sandbox.kernel import forbid_new_privileges
    forbid_new_privileges()
    seccomp.install(os.getpid())
"""
_DEVICES: Final = {
    "TPM 2.0": (
        "/dev/tpmrm0",
        "this machine can prove its measured boot (level attested-host)",
    ),
    "Intel TDX": (
        "/dev/tdx_guest",
        "this is a TDX guest: its evidence reaches level tee",
    ),
    "AMD SEV-SNP": (
        "/dev/sev-guest",
        "this is an SNP guest: its evidence reaches level tee",
    ),
    "TSM reports": ("/sys/kernel/config/tsm/report", "the kernel provides quotes"),
}


def look_at_machine() -> Iterator[Finding]:
    """Cores this process may use, and memory."""
    cores = len(os.sched_getaffinity(0))
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES")
    busy = os.getloadavg()[0]
    crowded = busy > cores
    yield Finding(
        "cores",
        f"{cores}, load {busy:.1f}",
        "other programs use the cores now: the rates below are too low"
        if crowded
        else "",
        "Run this again when the machine is idle" if crowded else "",
        "limits" if crowded else "fact",
        {"cores": cores, "load_1min": round(busy, 2)},
    )
    yield Finding(
        "memory",
        f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB unused",
        figures={"memory_bytes": total, "unused_bytes": free},
    )


def look_at_copies() -> Iterator[Finding]:
    """Copies within memory, large and in a cache."""
    source, target = bytearray(os.urandom(_SLOT) * 32), bytearray(_BULK)
    bulk = measure_rate(_copying(source, target, _BULK), _BULK)
    slot = measure_rate(_copying(source, target, _SLOT), _SLOT)
    yield Finding(
        "memcpy",
        f"{say_rate(bulk)} over 32 MiB, {say_rate(slot)} over the same 1 MiB "
        "repeatedly",
        "the first figure is the upper limit for transfers through this machine's "
        "memory",
        figures={"bulk_bytes_per_s": round(bulk), "slot_bytes_per_s": round(slot)},
    )


def look_at_memfd() -> Iterator[Finding]:
    """Slots of an anonymous memory file, as two processes of one host use them."""
    try:
        descriptor = os.memfd_create("sealift-doctor")
    except (AttributeError, OSError) as error:
        why = f"none ({error})"
        yield Finding(
            "memory file",
            why,
            "processes on this machine exchange data over TCP",
            state="missing",
        )
        return
    try:
        os.ftruncate(descriptor, 8 * _SLOT)
        with mmap.mmap(descriptor, 8 * _SLOT, flags=mmap.MAP_SHARED) as shared:
            rate = _slot_rate(shared)
    finally:
        os.close(descriptor)
    yield Finding(
        "memory file",
        f"{say_rate(rate)} to write and read 8 slots of 1 MiB",
        "the upper limit for transfers between two processes on this machine",
        figures={"bytes_per_s": round(rate)},
    )


def look_at_disk(folder: Path) -> Iterator[Finding]:
    """How long a broker's log entry takes to be safe."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            took = [_synced(file.fileno()) for _ in range(_SYNCS)]
    except OSError as error:
        why = f"it is not possible to write in {folder}: {error.strerror}"
        advice = "Name another folder with --folder"
        yield Finding("fsync", why, advice=advice, state="missing")
        return
    typical, worst = median(took), max(took)
    slow = typical > _SLOW_SYNC_S
    yield Finding(
        "fsync",
        f"{say_time(typical)}, slowest {say_time(worst)}",
        "each key release waits for one such write",
        "Put the vaults and logs on a faster disk" if slow else "",
        "limits" if slow else "good",
        {"median_s": round(typical, 6), "worst_s": round(worst, 6)},
    )


def look_at_sandbox(works: Callable[[str], bool] | None = None) -> Iterator[Finding]:
    """What a recipe's process can be confined with."""
    works = works or _works
    working = [part for part in _PARTS if works(part)]
    enough = "seccomp" in working and len(working) > 1
    yield Finding(
        "sandbox",
        "+".join(working) or "none",
        "recipes run in a sandbox"
        if enough
        else "recipes cannot run in a sandbox on this machine",
        "" if enough else "Allow user namespaces, or use a kernel with Landlock",
        "good" if enough else "limits",
        {part: part in working for part in _PARTS},
    )


def look_at_devices() -> Iterator[Finding]:
    """Devices that can make evidence on this machine."""
    for name, (path, meaning) in _DEVICES.items():
        if not Path(path).exists():
            absent: dict[str, Figure] = {"there": False}
            yield Finding(name, f"no {path}", state="missing", figures=absent)
            continue
        usable = os.access(path, os.R_OK | os.W_OK)
        yield Finding(
            name,
            path if usable else f"{path}, but this user may not open it",
            meaning,
            "" if usable else f"Allow this user to open {path}",
            "good" if usable else "limits",
            {"there": True, "usable": usable},
        )


def _works(part: str) -> bool:
    """Try one part of the sandbox in a process of its own."""
    command = [sys.executable, "-c", _TRY, part]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 - fixed program
            command, capture_output=True, check=False, timeout=10
        )
        return done.returncode == 0
    return False


def _copying(source: bytearray, target: bytearray, nbytes: int) -> Callable[[], object]:
    a, b = ((ctypes.c_char * len(each)).from_buffer(each) for each in (target, source))
    if nbytes > min(len(a), len(b)):
        raise ValueError("both ends hold fewer bytes")
    return lambda: ctypes.memmove(a, b, nbytes)


def _slot_rate(shared: mmap.mmap) -> float:
    private = bytearray(_SLOT)
    own = (ctypes.c_char * _SLOT).from_buffer(private)
    slots = (ctypes.c_char * len(shared)).from_buffer(shared)
    base, turn = ctypes.addressof(slots), iter(range(1 << 60))

    def through() -> None:
        at = base + next(turn) % 8 * _SLOT
        ctypes.memmove(at, own, _SLOT)
        ctypes.memmove(own, at, _SLOT)

    rate = measure_rate(through, _SLOT)
    del slots
    return rate


def _synced(descriptor: int) -> float:
    start = time.perf_counter()
    os.pwrite(descriptor, os.urandom(4096), 0)
    os.fsync(descriptor)
    return time.perf_counter() - start
