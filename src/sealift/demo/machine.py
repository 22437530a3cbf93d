"""The machine that a number was measured on: without it, it is not a number."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def this_machine() -> dict[str, str | int | float]:
    """What every report says of it."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = (line for line in text.splitlines() if "model name" in line)
    return next(found, f":{platform.machine()}").partition(":")[2].strip()
