"""Which GPUs a recipe's process would have, and which of them a job computes on.

``[run] device``: ``cpu``; ``cuda`` or ``cuda:N``, which must be there; ``auto``, the first
GPU if there is one. What counts is what the sandbox shows, not what the machine has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sealift.errors import UnavailableError

CPU: Final = "cpu"
MAX_NAMES_BYTES: Final = 1 << 16


def find_devices() -> tuple[str, ...]:
    """What the driver calls each GPU, in torch's order.

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
            names = [torch.cuda.get_device_name(number) for number in range(count)]
            os.write(writer, json.dumps(names).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        raw = pipe.read(MAX_NAMES_BYTES)
    os.waitpid(child, 0)
    return tuple(map(str, json.loads(raw or b"[]")))


def choose_device(wanted: str, names: Sequence[str]) -> str:
    """The device of a job, as torch writes it: ``cpu`` or ``cuda:N``.

    Args:
        wanted: Of the job's settings.
        names: Of the GPUs that there are.

    Raises:
        UnavailableError: ``no-device``.
    """
    if wanted == CPU or (wanted == "auto" and not names):
        return CPU
    number = int(wanted.partition(":")[2] or 0)
    if number < len(names):
        return f"cuda:{number}"
    has = ", ".join(names) or "none"
    raise UnavailableError(
        f"the job computes on {wanted}",
        why=f"GPUs that the recipe's process can use here: {has}",
        code="no-device",
    )
