"""Reference values for NVIDIA GPUs and NVSwitches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaReferences:
    """What a device report must show, beside the golden values of its signed RIMs.

    Attributes:
        drivers: Accepted driver versions.
        vbios: Accepted VBIOS versions.
        modes: Accepted feature modes (``spt``, ``mpt``, ``ppcie``).
        devices: Accepted device ids, or empty for any.
    """

    drivers: tuple[str, ...]
    vbios: tuple[str, ...]
    modes: tuple[str, ...] = ("spt",)
    devices: tuple[str, ...] = ()
