"""The measured event that ties GPUs to the machine whose log it stands in.

A GPU's report can be passed on by anybody, and says nothing of confidential mode or
debug tools. So boot code that is itself measured asks the driver, and extends what it
learnt into the runtime log before the GPUs accept work and before anybody else's code
runs (rule M7). Source: spec/evidence.md section Composite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sealift.attest.check import Check, check
from sealift.attest.runtimelog import (
    CODE_BUNDLE,
    GPU_BINDING,
    MAX_CONTENT_BYTES,
    MODULE,
    RuntimeEvent,
)
from sealift.codec import decode, encode
from sealift.ids import Digest

MultiGpu = Literal["none", "ppcie", "nvle"]
Environment = Literal["production", "simulation", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundDevice:
    """One GPU or switch.

    Attributes:
        kind: What it is.
        id: Its ``ueid``: serial number of its leaf certificate, decimal.
        key: SHA-256 of the leaf's SubjectPublicKeyInfo.
    """

    kind: Literal["gpu", "switch"]
    id: str
    key: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBinding:
    """What the driver said, once, about all devices.

    Attributes:
        environment: Of confidential computing.
        confidential: Whether confidential mode (CC) is on.
        devtools: Whether debug tools may look inside.
        multi_gpu: How the GPUs are joined: ``ppcie`` is protected PCIe, which stands in
            the place of CC; ``nvle`` is encrypted NVLink.
        devices: All of them, in the order of their evidence.
    """

    environment: Environment
    confidential: bool
    devtools: bool
    multi_gpu: MultiGpu
    devices: tuple[BoundDevice, ...]

    @property
    def protects(self) -> bool:
        """Whether memory of the GPUs is closed to the host."""
        closed = self.confidential or self.multi_gpu == "ppcie"
        return self.environment == "production" and closed and not self.devtools

    def to_event(self) -> RuntimeEvent:
        """The event to measure.

        Raises:
            MalformedError: for more devices than an event holds (some twenty).
        """
        return RuntimeEvent(GPU_BINDING, encode(self))

    def say_state(self) -> str:
        """For people."""
        return (
            f"{self.environment}, confidential mode {_say(self.confidential)}, "
            f"multi-GPU {self.multi_gpu}, debug tools {_say(self.devtools)}"
        )


def read_binding(
    events: Sequence[RuntimeEvent],
) -> tuple[GpuBinding | None, tuple[Check, ...]]:
    """The one binding of a log, and whether it is alone and early enough.

    Raises:
        MalformedError: if its content does not parse.
    """
    places = [at for at, event in enumerate(events) if event.kind == GPU_BINDING]
    code = [
        at for at, event in enumerate(events) if event.kind in (CODE_BUNDLE, MODULE)
    ]
    once = check(
        len(places) == 1,
        "binding of the GPUs",
        expected="measured once",
        found=f"measured {len(places)} times",
        code="gpu-binding-count",
    )
    early = check(
        not places or not code or max(places) < min(code),
        "order of the runtime log",
        expected="GPUs bound before any code that owners brought",
        found="bound first"
        if not code
        else f"bound at {places}, code from {min(code)}",
        code="gpu-binding-late",
    )
    if len(places) != 1:
        return None, (once, early)
    content = events[places[0]].content
    return decode(GpuBinding, content, max_bytes=MAX_CONTENT_BYTES), (once, early)


def check_binding(
    binding: GpuBinding, devices: Sequence[BoundDevice]
) -> tuple[Check, ...]:
    """The state that was bound, and that these very devices were, and no others."""
    present = tuple(devices)
    ids = {each.id for each in present}
    return (
        check(
            binding.devices == present and len(ids) == len(present),
            "devices of the machine",
            expected=_say_devices(binding.devices),
            found=_say_devices(present),
            code="gpu-binding-devices",
        ),
        check(
            binding.protects,
            "state of the GPUs",
            expected="production, confidential mode on or multi-GPU ppcie, "
            "debug tools off",
            found=binding.say_state(),
            code="gpu-not-protected",
        ),
    )


def _say(on: bool) -> str:
    return "on" if on else "off"


def _say_devices(devices: Sequence[BoundDevice]) -> str:
    return ", ".join(f"{each.kind} {each.id[:12]}" for each in devices) or "none"
