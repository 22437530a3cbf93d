"""Builds the libcuda without a GPU (`hostcuda/libcuda.c`), once per state of its source."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "hostcuda/libcuda.c"


@functools.cache
def library() -> Path:
    """A `libcuda.so.1`; whoever loads it before the bindings do gets it as theirs."""
    compiler = shutil.which("gcc")
    assert compiler, "this machine lacks gcc (apt-get install gcc)"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = ROOT / f"build/hostcuda/{digest}/libcuda.so.1"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        half = built.with_suffix(f".{os.getpid()}")
        flags = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        command = [compiler, *flags, "-o", str(half), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        half.replace(built)
    return built
