"""Facts about this machine: a number without its machine is not a number."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sealift


def machine_facts() -> dict[str, str]:
    """Processor, cores, memory, system and versions."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{_memory_bytes() / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "torch": _version("torch"),
        "cryptography": _version("cryptography"),
        "Sealift": sealift.__version__,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.machine()
    names = [
        line.partition(":")[2] for line in text.splitlines() if "model name" in line
    ]
    return names[0].strip() if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
