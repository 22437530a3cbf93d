"""Reference values for NVIDIA GPUs and NVSwitches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaReferences:
    """What a device report must show, beside the golden values of its signed RIMs.

    Attributes:
        drivers: Accepted driver versions.
        vbios: Accepted VBIOS versions, of GPUs and of switches.
        modes: Accepted feature modes (``spt``, ``mpt``, ``ppcie``; ``unstated`` for
            firmware that does not say).
        devices: Accepted device ids, or empty for any.
        revocation: Whether every certificate that names a place for its revocation
            state must be looked up (``required``), or only what the collateral has.
    """

    drivers: tuple[str, ...]
    vbios: tuple[str, ...]
    modes: tuple[str, ...] = ("spt",)
    devices: tuple[str, ...] = ()
    revocation: Literal["required", "if-known"] = "required"
