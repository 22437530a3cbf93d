"""Choose a device's AEAD engine, and say why.

There is the GPU's, if there is a GPU, and the host's stand-in. Nothing falls back silently: an engine that was asked for by name,
and a GPU that is there but cannot be used, is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device.device import DeviceEngine
from sealift.channel.device.host import HostDevice
from sealift.crypto.aead import Suite
from sealift.errors import UnavailableError
from sealift.events import Sink, discard

GPU_NODES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
DEVICES: Final = ("cuda", "host")


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """A device engine and the reason it was taken."""

    engine: DeviceEngine
    reason: str


def shows_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU, working or not."""
    return any(node.exists() for node in GPU_NODES)


def select_device(
    suite: Suite = Suite.AES_256_GCM,
    *,
    prefer: str | None = None,
    has_gpu: Callable[[], bool] = shows_gpu,
    cuda: Callable[..., DeviceEngine] = open_cuda,
    host: Callable[[], DeviceEngine] = HostDevice,
    ordinal: int = 0,
    sink: Sink = discard,
) -> DeviceSelection:
    """The device engine for ``suite``; the caller closes it.

    Args:
        suite: The suite that it must compute.
        prefer: ``cuda`` or ``host``, if the caller insists on one.
        has_gpu: Whether this machine shows an NVIDIA GPU.
        cuda: Opens the GPU's engine, self-test included.
        host: Makes the host's stand-in.
        ordinal: Which GPU, in CUDA's order.
        sink: Told how the GPU's engine copies.

    Raises:
        UnavailableError: if there is no engine of that name or with the suite, or if
            there is a GPU whose engine cannot be used; the line says why.
    """
    if prefer not in (None, *DEVICES):
        raise UnavailableError(
            f"there is no AEAD engine named {prefer!r}",
            fix=f"Choose from: {', '.join(DEVICES)}",
            code="no-such-backend",
        )
    if prefer == "cuda" or (prefer is None and has_gpu()):
        chosen: DeviceEngine = cuda(ordinal=ordinal, sink=sink)
        why = "asked for by name" if prefer else "the GPU, which passed its self-test"
    else:
        chosen = host()
        why = "asked for by name" if prefer else "this machine has no NVIDIA GPU"
    return DeviceSelection(_with_suite(chosen, suite), f"{chosen.name}: {why}")


def _with_suite(engine: DeviceEngine, suite: Suite) -> DeviceEngine:
    if suite in engine.suites():
        return engine
    engine.close()
    raise UnavailableError(
        f"engine {engine.name} does not support {suite.name}", code="no-such-suite"
    )
