"""The kernels as NVIDIA's compiler makes them, and what it says they take."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass

from sealift.channel.cuda.compilers import (
    Compiler,
    compile_module,
    installed_compilers,
    source_digest,
)
from sealift.crypto.hash import sha256
from tests.sim.gcc_kernels import ROOT, built_once

_KERNEL = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Figures:
    """What one kernel takes; ``local_bytes`` counts stack and spills."""

    name: str
    registers: int
    shared_bytes: int
    spilled_bytes: int
    local_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.registers} registers, {self.shared_bytes} B shared, "
            f"{self.spilled_bytes} B spilled, {self.local_bytes} B local"
        )


@functools.cache
def compiled(architecture: str) -> tuple[bytes, str]:
    """The module and the compiler's log; kept under ``build/`` by digest."""
    compiler: Compiler = installed_compilers()[0]
    made_of = f"{source_digest()} {compiler.version}".encode()
    name = f"{architecture}-{sha256(made_of).hex()[:32]}.cubin"
    kept = ROOT / "build/cuda-kernels" / name
    log = kept.with_suffix(".json")
    with built_once(log) as half:  # the log last: where it is, the module is
        if half:
            made = compile_module(compiler, architecture)
            kept.write_bytes(made.code)
            half.write_text(json.dumps(made.log))
    return kept.read_bytes(), json.loads(log.read_text())


def figures(log: str) -> dict[str, Figures]:
    """What ptxas says of each kernel."""
    found = {}
    starts = [*_KERNEL.finditer(log)]
    ends = [*(start.start() for start in starts[1:]), len(log)]
    for start, end in zip(starts, ends, strict=True):
        text = log[start.end() : end]
        stack = _STACK.search(text)
        used = _USED.search(text)
        assert stack, text
        assert used, text
        shared = _SHARED.search(text)
        frame, stores, loads = (int(number) for number in stack.groups())
        found[start["name"]] = Figures(
            start["name"],
            int(used[1]),
            int(shared[1]) if shared else 0,
            stores + loads,
            frame + stores + loads,
        )
    return found
