"""Which GPUs a recipe's process would have, which of them a job computes on, and who else.

``[run] device``: ``cpu``; ``cuda`` or ``cuda:N``, which must be there; ``auto``, the first
GPU if there is one. What counts is what the sandbox shows, not what the machine has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.bindings import nvml
from sealift.errors import UnavailableError

CPU: Final = "cpu"
MAX_NAMES_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Gpu:
    """One, as its driver knows it.

    Attributes:
        name: Of its kind.
        uuid: Its own, as NVML writes it.
    """

    name: str
    uuid: str


def find_devices() -> tuple[Gpu, ...]:
    """The GPUs, in torch's order.

    Asked in a process of its own: one that has asked can fork none that computes there.
    """
    import torch

    if not torch.backends.cuda.is_built():
        return ()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            count = torch.cuda.device_count()
            found = map(torch.cuda.get_device_properties, range(count))
            told = [(each.name, f"GPU-{each.uuid}") for each in found]
            os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        raw = pipe.read(MAX_NAMES_BYTES)
    os.waitpid(child, 0)
    return tuple(Gpu(*map(str, each)) for each in json.loads(raw or b"[]"))


def processes_on(open_nvml: Callable[[], Any] = nvml) -> Mapping[str, tuple[int, ...]]:
    """Who else computes on the GPUs of this machine: numbers of processes, by UUID.

    Raises:
        UnavailableError: if nobody says.
    """
    asked = open_nvml()
    found = {}
    try:
        for number in range(asked.nvmlDeviceGetCount()):
            gpu = asked.nvmlDeviceGetHandleByIndex(number)
            running = asked.nvmlDeviceGetComputeRunningProcesses(gpu)
            others = tuple(each.pid for each in running if each.pid != os.getpid())
            found[asked.nvmlDeviceGetUUID(gpu)] = others
    except asked.NVMLError as error:
        raise UnavailableError(
            "the NVIDIA driver does not answer", why=error, code="no-gpu"
        ) from None
    return found


def choose_device(wanted: str, gpus: Sequence[Gpu]) -> str:
    """The device of a job, as torch writes it: ``cpu`` or ``cuda:N``.

    Args:
        wanted: Of the job's settings.
        gpus: Those that there are.

    Raises:
        UnavailableError: ``no-device``.
    """
    if wanted == CPU or (wanted == "auto" and not gpus):
        return CPU
    number = int(wanted.partition(":")[2] or 0)
    if number < len(gpus):
        return f"cuda:{number}"
    has = ", ".join(each.name for each in gpus) or "none"
    raise UnavailableError(
        f"the job computes on {wanted}",
        why=f"GPUs that the recipe's process can use here: {has}",
        code="no-device",
    )
