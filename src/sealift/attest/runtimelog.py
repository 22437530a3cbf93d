"""What a process measures about itself after boot, into a register that only grows.

Each event extends one register (RTMR3, or a PCR that locality 0 cannot reset: rule M7),
so a quote over the register proves the whole list. Kinds in use: ``code-bundle`` (once,
before any key), ``module`` (each module that is imported), ``gpu-binding`` (once, from
measured boot code, before any owner's code). A GPU's report can be passed on by anybody,
and says nothing of confidential mode or debug tools: so boot code that is itself measured
asks the driver, and binds the GPUs by that event before they accept work.
Source: spec/evidence.md sections Runtime log and Composite.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from sealift import codec
from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import DIGEST_BYTES, Digest

LABEL: Final = b"sealift v1 runtime event\0"
MAX_EVENTS: Final = 65_536
MAX_CONTENT_BYTES: Final = 4096
CODE_BUNDLE: Final = "code-bundle"
MODULE: Final = "module"
GPU_BINDING: Final = "gpu-binding"


@dataclass(frozen=True, slots=True)
class RuntimeEvent:
    """One measured fact.

    Attributes:
        kind: Selects how ``content`` is read.
        content: Canonical bytes of the fact.
    """

    kind: str
    content: bytes

    def __post_init__(self) -> None:
        if len(self.content) > MAX_CONTENT_BYTES or not 0 < len(self.kind) <= 64:
            raise MalformedError("a runtime event is too large", field="events")


def event_digest(event: RuntimeEvent, name: HashName) -> bytes:
    """What the register is extended with."""
    return digest(name, LABEL, codec.encode(event))


def replay(events: Iterable[RuntimeEvent], name: HashName, start: bytes) -> bytes:
    """The register after all ``events``, from its value ``start`` after boot."""
    register = start
    if len(register) != digest_bytes(name):
        raise MalformedError(f"a register has {len(register)} bytes")
    for event in events:
        register = digest(name, register, event_digest(event, name))
    return register


@dataclass(frozen=True, slots=True)
class MeasuredModule:
    """Content of a ``module`` event.

    Attributes:
        path: In the code bundle.
        digest: Of the file.
    """

    path: str
    digest: Digest


def module_event(path: str, digest: Digest) -> RuntimeEvent:
    """The event of a module of the code bundle, before it runs."""
    return RuntimeEvent(MODULE, codec.encode(MeasuredModule(path, digest)))


def measured_modules(events: Iterable[RuntimeEvent]) -> tuple[MeasuredModule, ...]:
    """Every module that the log names, in order.

    Raises:
        MalformedError: if such an event does not parse.
    """
    return tuple(
        codec.decode(MeasuredModule, each.content, max_bytes=MAX_CONTENT_BYTES)
        for each in events
        if each.kind == MODULE
    )


def measured_bundle(events: Iterable[RuntimeEvent]) -> Digest | None:
    """The code bundle that the log names, or None if it names none.

    The event's content is the digest's 32 bytes.

    Raises:
        EvidenceError: ``code-bundle-twice``: what runs now would be a guess.
    """
    found = [each.content for each in events if each.kind == CODE_BUNDLE]
    if len(found) > 1 or any(len(each) != DIGEST_BYTES for each in found):
        raise EvidenceError(
            "the runtime log does not name exactly one code bundle",
            why=f"it has {len(found)} such events; it must have one event of 32 bytes",
            code="code-bundle-twice",
        )
    return Digest(found[0]) if found else None


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
        return RuntimeEvent(GPU_BINDING, codec.encode(self))

    def say_state(self) -> str:
        """For people."""
        return (
            f"{self.environment}, confidential mode {_say(self.confidential)}, "
            f"multi-GPU {self.multi_gpu}, debug tools {_say(self.devtools)}"
        )


def _say(on: bool) -> str:
    return "on" if on else "off"
