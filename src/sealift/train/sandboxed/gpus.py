"""Which GPUs a recipe's process would have: what the sandbox shows, not what the machine has."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from sealift.train.sandbox.inventory import GPU_FILES, NVIDIA, UVM
from sealift.train.worker.devices import MAX_WHY, Gpu

MAX_NAMES_BYTES: Final = 1 << 16
ANSWER_S: Final = 60.0
_DIVIDED: Final = "MIG"  # a word of such a part's name
# What torch and CUDA say where no GPU can be used, and what that means; people read both.
_MEANS: Final[Mapping[str, str]] = {
    "Found no NVIDIA driver": "no NVIDIA driver is loaded",
    "driver on your system is too old": "the driver is too old for this torch",
    "driver version is insufficient": "the driver is too old for this torch",
    "No CUDA GPUs are available": "CUDA shows no whole GPU (the GPUs may be divided, or hidden)",
    "out of memory": "other processes use all of the GPU's memory",
    "no kernel image is available": "this torch was built for other GPUs",
    "PTX was compiled with an unsupported toolchain": "the driver is too old for this torch",
    "OS call failed": "the system refused something that CUDA needs",
}


def find_gpus(
    confine: Callable[[], None] = lambda: None,
) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, in torch's order; and why there are none.

    Where there is one that only ``confine`` keeps from working, that is said.

    Args:
        confine: Called there first, so that what is found is what is left to a worker.
    """
    if not torch.backends.cuda.is_built():
        return (), "this torch was built without CUDA"
    found, why = _ask_apart(confine)
    if not found and os.path.exists(NVIDIA) and _ask_apart(lambda: None)[0]:
        why = f"it works outside of the sandbox, but not inside: {why}"
    return found, why


def _ask_apart(confine: Callable[[], None]) -> tuple[tuple[Gpu, ...], str]:
    """Ask in a process of its own: one that has asked can fork none that computes there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(_asked(confine)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = select.select([pipe], [], [], ANSWER_S)[0]
        raw = pipe.read(MAX_NAMES_BYTES) if told else b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    silent = "its driver ended the process" if told else "its driver does not answer"
    found, why = json.loads(raw) if raw else ([], silent)
    return tuple(Gpu(*each) for each in found), why


def _asked(confine: Callable[[], None]) -> tuple[list[tuple[str, str]], str]:
    try:
        confine()
        torch.cuda.init()
        numbers = range(torch.cuda.device_count())
        found = [torch.cuda.get_device_properties(number) for number in numbers]
        if any(_DIVIDED in each.name.split() for each in found):
            return [], "a GPU is divided (MIG), which Sealift does not support"
        _compute_somewhere(numbers)
        return [(each.name, f"GPU-{each.uuid}") for each in found], ""
    except Exception as error:  # no driver, one too old, or whatever it says
        return [], _explained(f"{error}")


def _explained(said: str) -> str:
    """Why there is no GPU, as far as this machine's files and CUDA's words tell."""
    first = said.partition("\n")[0]
    closed = [
        path
        for path in GPU_FILES
        if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)
    ]
    if not os.path.exists(NVIDIA):
        means = f"no NVIDIA driver is loaded (no {NVIDIA})"
    elif not os.path.exists(UVM):
        means = f"{UVM} is missing"
    elif closed:
        means = f"this user may not open {', '.join(closed)}"
    else:
        means = next((_MEANS[each] for each in _MEANS if each in said), "")
    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    told = "; ".join(filter(None, (means, built if "torch" in means else "", first)))
    return told[:MAX_WHY]


def _compute_somewhere(numbers: Sequence[int]) -> None:
    """A kernel on the first GPU that takes one: another may be somebody else's alone."""
    for number in numbers:
        try:
            torch.ones(1, device=f"cuda:{number}").add_(1).cpu()
        except RuntimeError:
            if number == numbers[-1]:
                raise
        else:
            return
