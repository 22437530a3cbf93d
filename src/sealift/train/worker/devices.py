"""Which GPUs a recipe's process would have, which of them a job computes on, and who else.

``[run] device``: ``cpu``; ``cuda`` or ``cuda:N``, which must be there; ``auto``, the first
GPU if there is one. What counts is what the sandbox shows, not what the machine has.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealift.channel.cuda.bindings import nvml
from sealift.errors import UnavailableError, visible
from sealift.train.sandbox.inventory import GPU_FILES, NVIDIA, UVM

CPU: Final = "cpu"
MAX_NAMES_BYTES: Final = 1 << 16
MAX_WHY: Final = 200
ANSWER_S: Final = 60.0
_DIVIDED: Final = "MIG"  # a word of such a part's name
# What torch and CUDA say where none can be used, and what that is; both are told.
_MEANS: Final[Mapping[str, str]] = {
    "Found no NVIDIA driver": "no NVIDIA driver is loaded",
    "driver on your system is too old": "the driver is too old for this torch",
    "driver version is insufficient": "the driver is too old for this torch",
    "No CUDA GPUs are available": "CUDA shows no whole GPU (one may be divided, or hidden)",
    "out of memory": "others hold all of the GPU's memory",
    "no kernel image is available": "this torch was built for other GPUs",
    "PTX was compiled with an unsupported toolchain": "the driver is too old for this torch",
    "OS call failed": "something that CUDA asks of the machine was refused",
}
_NAMESPACE: Final = "/proc/self/ns/pid"
_FIRST_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of proc_ns.h


@dataclass(frozen=True, slots=True)
class Gpu:
    """One, as its driver knows it.

    Attributes:
        name: Of its kind.
        uuid: Its own, as NVML writes it.
    """

    name: str
    uuid: str


def find_gpus(
    confine: Callable[[], None] = lambda: None,
) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, in torch's order; and why there are none.

    Where there is one that only ``confine`` keeps from working, that is said.

    Args:
        confine: Called there first, so that what is found is what is left to a worker.
    """
    import torch

    if not torch.backends.cuda.is_built():
        return (), "this torch is built without CUDA"
    found, why = _ask_apart(confine)
    if not found and os.path.exists(NVIDIA) and _ask_apart(lambda: None)[0]:
        why = f"it works outside of the sandbox, and not in it: {why}"
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
    import torch

    try:
        confine()
        torch.cuda.init()
        numbers = range(torch.cuda.device_count())
        found = [torch.cuda.get_device_properties(number) for number in numbers]
        if any(_DIVIDED in each.name.split() for each in found):
            return [], "a GPU here is divided (MIG), which is not supported"
        _compute_somewhere(numbers)
        return [(each.name, f"GPU-{each.uuid}") for each in found], ""
    except Exception as error:  # no driver, one too old, or whatever it says
        return [], _explained(f"{error}")


def _explained(said: str) -> str:
    """Why there is no GPU, as far as this machine's files and CUDA's words tell."""
    import torch

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
    import torch

    for number in numbers:
        try:
            torch.ones(1, device=f"cuda:{number}").add_(1).cpu()
        except RuntimeError:
            if number == numbers[-1]:
                raise
        else:
            return


def other_processes(
    open_nvml: Callable[[], Any] = nvml,
) -> Mapping[str, tuple[int, ...]]:
    """Who else is on the GPUs of this machine: numbers of processes, by UUID.

    The driver names those alone that the asking process's PID namespace shows.

    Raises:
        UnavailableError: if nobody says.
    """
    if os.readlink(_NAMESPACE) != _FIRST_NAMESPACE:
        raise UnavailableError(
            "the NVIDIA driver does not name everybody",
            why="this process is in a PID namespace of its own, as in a container",
            code="no-gpu",
        )
    asked = open_nvml()
    found = {}
    try:
        for number in range(asked.nvmlDeviceGetCount()):
            gpu = asked.nvmlDeviceGetHandleByIndex(number)
            running = {
                each.pid
                for ask in (
                    asked.nvmlDeviceGetComputeRunningProcesses,
                    asked.nvmlDeviceGetMPSComputeRunningProcesses,
                    asked.nvmlDeviceGetGraphicsRunningProcesses,
                )
                for each in ask(gpu)
            }
            others = (each for each in running if not _is_ours(each))
            found[asked.nvmlDeviceGetUUID(gpu)] = tuple(sorted(others))
    except asked.NVMLError as error:
        raise UnavailableError(
            "the NVIDIA driver does not answer", why=error, code="no-gpu"
        ) from None
    return found


def _is_ours(process: int) -> bool:
    """Whether it is this process or comes from it, as a worker that stands by does."""
    while process > 1 and process != os.getpid():
        try:
            text = Path(f"/proc/{process}/stat").read_text("ascii", errors="replace")
        except OSError:  # gone, or hidden: then not ours
            return False
        process = int(text.rpartition(")")[2].split()[1])  # its parent
    return process == os.getpid()


def say_cpu(wanted: str, gpus: Sequence[Gpu], why: str) -> str:
    """The CPU as a job's device: why, where one on a GPU would have been chosen."""
    if wanted == "auto" and not gpus and os.path.exists(NVIDIA):
        return f"{CPU} (GPU not usable: {visible(why)[:MAX_WHY]})"
    return CPU


def choose_device(
    wanted: str, gpus: Sequence[Gpu], why: str = "", *, rank: int = 0
) -> str:
    """The device of a job, as torch writes it: ``cpu`` or ``cuda:N``.

    Args:
        wanted: Of the job's settings.
        gpus: Those that there are.
        why: There are none.
        rank: Of the accelerator, where several may share a machine: each takes the next GPU,
            unless the job names one.

    Raises:
        UnavailableError: ``no-device``.
    """
    if wanted == CPU or (wanted == "auto" and not gpus):
        return CPU
    named = wanted.partition(":")[2]
    number = int(named) if named else rank % max(1, len(gpus))
    if number < len(gpus):
        return f"cuda:{number}"
    has = ", ".join(each.name for each in gpus) or f"none{why and f': {why}'}"
    raise UnavailableError(
        f"the job computes on {wanted}",
        why=f"GPUs that the recipe's process can use here: {visible(has)}",
        code="no-device",
    )
