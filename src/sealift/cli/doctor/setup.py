"""Probes of what an installation needs: packages, room on the disk, clock, port and proxy."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from sealift.cli.doctor.probe import Finding
from sealift.errors import UsageError
from sealift.session.relay.proxy import proxy_for

PORT: Final = 7420  # where `sealift host` listens unless it is told otherwise
OLDEST_TORCH: Final = (2, 11)
_LEAST_BYTES: Final = 2 << 30  # a vault, a log, and some checkpoints of a small model
_UNSYNCHRONIZED: Final = 0x40  # STA_UNSYNC (man 2 adjtimex)
# What an extra of pyproject.toml brings, and for what.
_EXTRAS: Final = {
    "pillow": ("images", "image folders"),
    "numba": ("outsource", "training modules on servers that nobody trusts"),
    "lxml": ("nvidia", "verifying evidence of NVIDIA GPUs"),
}


class _Timex(ctypes.Structure):
    """``struct timex``, as far as it is read; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def look_at_packages() -> Iterator[Finding]:
    """PyTorch and its build, and what extras bring; nothing of it is imported."""
    yield _look_at_torch()
    for package, (extra, use) in _EXTRAS.items():
        version = _version_of(package)
        yield Finding(
            package,
            version or "not installed",
            f"needed for {use}",
            "" if version else f"pip install 'sealift[{extra}]'",
            "good" if version else "missing",
        )


def look_at_space(folder: Path) -> Iterator[Finding]:
    """Room for vaults, logs, checkpoints and models."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        found = f"{folder} cannot be read: {error.strerror}"
        yield Finding(
            "disk space", found, "", "Name another folder with --folder", "missing"
        )
        return
    little = free < _LEAST_BYTES
    yield Finding(
        "disk space",
        f"{free / 2**30:.1f} GiB free in {folder.absolute()}",
        "a sealed copy takes as much room as its table, a checkpoint as the model and "
        "its optimizer's state",
        "Free some space, or name another folder with --folder" if little else "",
        "limits" if little else "good",
        {"free_bytes": free},
    )


def look_at_clock() -> Iterator[Finding]:
    """Whether something keeps this machine's clock right, as its kernel says."""
    now = _Timex()
    library = ctypes.CDLL(None, use_errno=True)
    if library.adjtimex(ctypes.byref(now)) < 0:
        why = os.strerror(ctypes.get_errno())
        yield Finding("clock", f"the kernel does not say if the clock is right: {why}")
        return
    kept = not now.status & _UNSYNCHRONIZED
    yield Finding(
        "clock",
        f"synchronized, at most {now.maxerror / 1e3:.0f} ms off"
        if kept
        else "not synchronized, as far as the kernel knows",
        "invitations, certificates, leases and evidence have dates",
        ""
        if kept
        else "apt-get install chrony (on the machine itself, if this is a container)",
        "good" if kept else "limits",
        {"synchronized": kept, "maxerror_us": now.maxerror},
    )


def look_at_network(
    environment: Mapping[str, str] = os.environ, port: int = PORT
) -> Iterator[Finding]:
    """The port that others reach a host by, and the way out."""
    yield _look_at_port(port)
    try:
        # A name that stands for any machine elsewhere (RFC 2606).
        proxy = proxy_for("host.example", environment)
    except UsageError as error:
        yield Finding(
            "proxy",
            error.what,
            "no meeting can be reached",
            "Set HTTPS_PROXY to http://HOST:PORT, or unset it",
            "limits",
        )
        return
    yield Finding(
        "proxy",
        f"{proxy.place}, named by HTTPS_PROXY" if proxy else "none",
        "meetings are reached through it" if proxy else "meetings are reached directly",
        state="good" if proxy else "fact",
    )


def _look_at_port(port: int) -> Finding:
    name = f"port {port}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("0.0.0.0", port))  # noqa: S104 - nobody is listened to
        except OSError as error:
            return Finding(
                name,
                f"not free: {error.strerror}",
                "sealift host cannot listen there",
                "Stop what uses it, or name another port with --listen and --address",
                "limits",
            )
    meaning = "a firewall may keep others from reaching it: open this port only"
    return Finding(name, "free", meaning, state="good")


def _look_at_torch() -> Finding:
    advice = "pip install 'sealift[train]'"
    version = _version_of("torch")
    if version is None:
        meaning = (
            "tables can be sealed and keys released here, but nothing can be trained"
        )
        return Finding("torch", "not installed", meaning, advice, "missing")
    cuda = _cuda_of_torch()
    said = f"{version}, built for {f'CUDA {cuda}' if cuda else 'CPUs only'}"
    parts = re.findall(r"\d+", version)
    if tuple(int(part) for part in parts[:2]) < OLDEST_TORCH:
        oldest = ".".join(str(part) for part in OLDEST_TORCH)
        meaning = f"older than {oldest}, the oldest that is supported"
        return Finding("torch", said, meaning, advice, "limits")
    return Finding("torch", said, state="good", figures={"cuda": cuda})


def _version_of(package: str) -> str | None:
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return None


def _cuda_of_torch() -> str | None:
    """Which CUDA torch was built for, from its file ``version.py``: importing it takes seconds."""
    text = Path(str(distribution("torch").locate_file("torch/version.py"))).read_text()
    named = re.search(r"^cuda\b[^=]*= *'([\d.]+)'", text, re.MULTILINE)
    return named.group(1) if named else None
