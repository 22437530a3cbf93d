"""Choose the AEAD engine, and say why.

On the host there is one engine. For a device there is the GPU's, if there is a GPU, and
the host's stand-in. Nothing falls back silently: an engine that was asked for by name,
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
from sealift.channel.record.backend import AeadBackend
from sealift.channel.record.cpu import CpuBackend
from sealift.crypto.aead import Suite
from sealift.errors import UnavailableError
from sealift.events import Sink, discard

GPU_NODES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
DEVICES: Final = ("cuda", "host")


@dataclass(frozen=True, slots=True)
class Selection:
    """An engine and the reason it was taken."""

    backend: AeadBackend
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """A device engine and the reason it was taken."""

    engine: DeviceEngine
    reason: str


def shows_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU, working or not."""
    return any(node.exists() for node in GPU_NODES)


def select(suite: Suite = Suite.AES_256_GCM, *, prefer: str | None = None) -> Selection:
    """The engine for ``suite``.

    Args:
        suite: The suite that it must compute.
        prefer: The name of an engine, if the caller insists on one.

    Raises:
        UnavailableError: if there is no engine of that name, or none with the suite.
    """
    engines: tuple[AeadBackend, ...] = (CpuBackend(),)
    named = [e for e in engines if prefer in (None, e.name)]
    if not named:
        raise _no_engine(prefer, [e.name for e in engines])
    fitting = [e for e in named if suite in e.suites()]
    if not fitting:
        raise UnavailableError(f"no AEAD engine computes {suite.name}")
    why = "asked for by name" if prefer else "the only engine in this installation"
    return Selection(fitting[0], f"{fitting[0].name}: {why}")


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
        raise _no_engine(prefer, list(DEVICES))
    if prefer == "cuda" or (prefer is None and has_gpu()):
        chosen: DeviceEngine = cuda(ordinal=ordinal, sink=sink)
        why = "asked for by name" if prefer else "the GPU, which passed its self-test"
    else:
        chosen = host()
        why = "asked for by name" if prefer else "this machine shows no NVIDIA GPU"
    return DeviceSelection(_with_suite(chosen, suite), f"{chosen.name}: {why}")


def _with_suite(engine: DeviceEngine, suite: Suite) -> DeviceEngine:
    if suite in engine.suites():
        return engine
    engine.close()
    raise UnavailableError(
        f"engine {engine.name} does not compute {suite.name}", code="no-such-suite"
    )


def _no_engine(name: str | None, known: list[str]) -> UnavailableError:
    return UnavailableError(
        f"there is no AEAD engine named {name!r}",
        fix=f"Choose from: {', '.join(known)}",
        code="no-such-backend",
    )
