"""Where the batches of a link come to: an engine, and its memory for one of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from sealift.channel.device.device import DeviceEngine, DeviceMemory
from sealift.channel.device.host import HostMemory
from sealift.channel.select import DeviceSelection, select_device
from sealift.errors import UsageError

HOST_SLOTS: Final = 8
APART_SLOTS: Final = 32  # half of them are taken by one call there


@dataclass(frozen=True, slots=True)
class ReceivingDevice:
    """Where batches come to.

    Attributes:
        engine: Opens records.
        memory: Room for one batch.
        opened_by: Which engine it is, and why.
        ordinal: Which GPU, if it is one.
    """

    engine: DeviceEngine
    memory: DeviceMemory
    opened_by: str
    ordinal: int

    @property
    def slots(self) -> int:
        """Records that should wait in the link's memory."""
        return HOST_SLOTS if isinstance(self.memory, HostMemory) else APART_SLOTS


def open_device(
    device: str | DeviceEngine, nbytes: int, parts: ExitStack
) -> ReceivingDevice:
    """A device by its name, or the engine that was given, with memory for a batch.

    Args:
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``; or an engine, which ``parts``
            does not close.
        nbytes: Of a batch.
        parts: Closes what was made here.

    Raises:
        UsageError: if there is no such device.
        UnavailableError: if this machine lacks it, or its memory.
    """
    ordinal = 0
    if isinstance(device, str):
        chosen, ordinal = _select(device)
        parts.callback(chosen.engine.close)
    else:
        chosen = DeviceSelection(device, f"{device.name}: given by the caller")
    memory = chosen.engine.allocate(nbytes)
    parts.callback(memory.close)
    return ReceivingDevice(chosen.engine, memory, chosen.reason, ordinal)


def _select(device: str) -> tuple[DeviceSelection, int]:
    kind, _, number = device.partition(":")
    known = {"auto": None, "cpu": "host", "cuda": "cuda"}
    numbered = not number or (kind == "cuda" and number.isdecimal())
    if kind not in known or not numbered:
        raise UsageError(
            f"the device {device!r} is unknown",
            fix="Use one of: auto, cpu, cuda, cuda:1",
        )
    ordinal = int(number or 0)
    return select_device(prefer=known[kind], ordinal=ordinal), ordinal
