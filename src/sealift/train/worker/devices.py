"""Which GPUs a recipe's process would have, which of them a job computes on, and who else.

``[run] device``: ``cpu``; ``cuda`` or ``cuda:N``, which must be there; ``auto``, the first
GPU if there is one. What counts is what the sandbox shows, not what the machine has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealift.channel.cuda.bindings import nvml
from sealift.errors import UnavailableError, visible
from sealift.train.sandbox.inventory import NVIDIA

CPU: Final = "cpu"
MAX_WHY: Final = 200
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
            "the NVIDIA driver does not show all processes",
            why="this process is in its own PID namespace, for example in a container",
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
        f"the job asks for {wanted}, which is not usable here",
        why=f"usable GPUs of the recipe's process: {visible(has)}",
        code="no-device",
    )
