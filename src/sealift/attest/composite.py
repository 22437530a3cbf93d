"""Evidence of a machine with its devices, bound to one challenge (RFC 9334 section 3.3).

Devices answer first, each a value derived from the bound value and its place; the lead
attester (the CPU's TEE or TPM) then binds the bound value and every device's evidence.
A device cannot be left out, swapped or taken from elsewhere without the lead's evidence
failing; that GPUs' memory is closed to the host only a measured event of the lead's log
shows. Source: spec/evidence.md section Composite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sealift.attest.evidence import (
    Attester,
    Body,
    Evidence,
    measuring,
    require_bound,
)
from sealift.attest.level import Level, worst
from sealift.attest.nvidia.evidence import MEDIA_TYPE as DEVICE_MEDIA_TYPE
from sealift.attest.nvidia.evidence import Device, Mode, NvidiaBody
from sealift.attest.nvidia.verifier import examine_device
from sealift.attest.reference import AppraisalBasis
from sealift.attest.runtimelog import (
    CODE_BUNDLE,
    GPU_BINDING,
    MAX_CONTENT_BYTES,
    MODULE,
    BoundDevice,
    GpuBinding,
    MultiGpu,
    RuntimeEvent,
)
from sealift.attest.verifier import AppraisalCheck, Claims, VerifierKind, check
from sealift.codec import decode
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.errors import EvidenceError, MalformedError, UsageError

MEDIA_TYPE: Final = "application/vnd.sealift.composite-evidence+json"
MAX_DEVICES: Final = 32


def device_bound(bound: bytes, place: int) -> bytes:
    """What the device at ``place`` (from 0) must carry: 32 bytes."""
    return labelled(Label.DEVICE_EVIDENCE, bound, place.to_bytes(4, "big"))


def lead_bound(bound: bytes, devices: Sequence[Evidence]) -> bytes:
    """What the lead attester must carry; ``bound`` itself without devices."""
    if not devices:
        return bound
    parts = (each.digest.raw for each in devices)
    return labelled(Label.COMPOSITE_EVIDENCE, bound, *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeBody(Body):
    """The whole body of composite evidence.

    Attributes:
        devices: In the order of their places; at least one.
        lead: Of the CPU's TEE or TPM, over all of them.
    """

    kind = "composite"

    devices: tuple[Evidence, ...]
    lead: Evidence

    def __post_init__(self) -> None:
        if not 0 < len(self.devices) <= MAX_DEVICES:
            raise MalformedError(
                f"composite evidence must have 1 to {MAX_DEVICES} devices",
                field="devices",
            )


class CompositeAttester:
    """One answer of a machine with its devices.

    Args:
        lead: Of the CPU's TEE or TPM.
        devices: GPUs and switches, in the order in which they were bound.
    """

    def __init__(self, lead: Attester, devices: Sequence[Attester]) -> None:
        if not devices:
            raise UsageError(
                "composite evidence needs devices; use the lead's attester if there "
                "are none"
            )
        self._lead = lead
        self._devices = tuple(devices)

    def measure(self, event: RuntimeEvent) -> None:
        """Extend the lead's register, where it has one.

        Raises:
            UnavailableError: as the lead's.
        """
        measuring(self._lead)(event)

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``.

        Raises:
            UsageError: if ``bound`` has not 2 to 64 bytes.
            UnavailableError: if the lead or a device cannot answer now.
        """
        require_bound(bound)
        devices = tuple(
            device.collect(device_bound(bound, place))
            for place, device in enumerate(self._devices)
        )
        lead = self._lead.collect(lead_bound(bound, devices))
        return CompositeBody(devices=devices, lead=lead).to_evidence()


_MULTI_GPU: Final[Mapping[Mode, MultiGpu]] = {
    "spt": "none",
    "unstated": "none",
    "mpt": "nvle",
    "ppcie": "ppcie",
}


def examine_composite(
    evidence: Evidence, basis: AppraisalBasis, *, leads: Mapping[str, VerifierKind]
) -> Claims:
    """Verify lead and devices by their own verifiers, and what ties them together.

    Args:
        evidence: Of a machine.
        basis: What it is judged by.
        leads: Kinds of evidence that may lead, by media type.

    Raises:
        EvidenceError: ``composite-part``: composites and devices may not lead.
    """
    body, bound = CompositeBody.parse(evidence.body), basis.bound
    own = (NvidiaBody.kind, DEVICE_MEDIA_TYPE)
    strange = [each for each in body.devices if (each.kind, each.media_type) != own]
    kind = leads.get(body.lead.media_type)
    if strange or kind is None:
        part = strange[0] if strange else body.lead
        raise EvidenceError(
            "the parts of this composite evidence do not belong together",
            why=(
                f"{part.media_type} cannot be a {'device' if strange else 'lead'} of it"
            ),
            code="composite-part",
        )
    ours = None if bound is None else lead_bound(bound, body.devices)
    lead = kind.examine(body.lead, replace(basis, bound=ours))
    examined = [
        examine_device(
            device,
            replace(basis, bound=None if bound is None else device_bound(bound, place)),
        )
        for place, device in enumerate(body.devices)
    ]
    return _join(lead, examined)


def _join(lead: Claims, examined: Sequence[tuple[Device, Claims]]) -> Claims:
    devices = [device for device, _ in examined]
    binding, order = read_binding(lead.events)
    bound = [BoundDevice(kind=d.kind, id=d.id, key=d.key) for d in devices]
    tied = (
        *order,
        *(_check_binding(binding, bound) if binding else ()),
        _check_modes(binding, devices),
        _check_links(devices),
    )
    closed = all(each.passed for each in tied)
    gpu_tee = Level.GPU_TEE if closed else None
    ours = [_within_lead(claims, closed) for _, claims in examined]
    return replace(
        lead,
        # A TEE's memory and its GPUs'; a host or a rehearsal stays what it is.
        level=lead.level if lead.level is not Level.TEE else gpu_tee,
        trust=worst((lead.trust, *(each.trust for each in ours))),
        checks=(
            *_named("lead", lead.checks),
            *(
                each
                for place, claims in enumerate(ours)
                for each in _named(f"device {place}", claims.checks)
            ),
            *tied,
        ),
        measurements={
            **lead.measurements,
            **{
                f"device{place}.{name}": value
                for place, claims in enumerate(ours)
                for name, value in claims.measurements.items()
            },
        },
        notes=(*lead.notes, *dict.fromkeys(n for each in ours for n in each.notes)),
        devices=_by_name(devices, ours),
    )


def _by_name(devices: Sequence[Device], ours: Sequence[Claims]) -> dict[str, Claims]:
    """The devices' claims by kind and place among their kind, as EAR names parts."""
    found: dict[str, Claims] = {}
    for device, claims in zip(devices, ours, strict=True):
        place = sum(name.startswith(device.kind) for name in found)
        found[f"{device.kind}{place}"] = claims
    return found


def _within_lead(claims: Claims, closed: bool) -> Claims:
    """A device's claims, where the lead's log closed its memory to the host."""
    if not closed:
        return claims
    return replace(
        claims, trust=replace(claims.trust, runtime_opaque=2), notes=claims.notes[1:]
    )


def _check_modes(
    binding: GpuBinding | None, devices: Sequence[Device]
) -> AppraisalCheck:
    """What the driver said of the GPUs together, against what each of them signed."""
    gpus = [device for device in devices if device.kind == "gpu"]
    stated = {_MULTI_GPU[gpu.mode] for gpu in gpus}
    expected = binding.multi_gpu if binding else "no GPUs are bound"
    return check(
        stated == {expected},
        "GPUs together",
        f"all GPUs of multi-GPU mode {expected}, as the driver reported them",
        ", ".join(sorted(stated)) or "no GPU",
        "gpu-mode-differs",
    )


def _check_links(devices: Sequence[Device]) -> AppraisalCheck:
    """Protected PCIe: GPUs and switches name each other, and all of them are here."""
    gpus = frozenset(each.pdi for each in devices if each.kind == "gpu")
    switches = frozenset(each.pdi for each in devices if each.kind == "switch")
    asked = [each for each in devices if each.kind == "switch" or each.mode == "ppcie"]
    apart = [
        f"{each.kind} {each.pdi}"
        for each in asked
        if not each.neighbours
        or each.neighbours != (switches if each.kind == "gpu" else gpus)
    ]
    return check(
        not apart,
        "links between devices",
        "the evidence has all switches of every GPU, and all GPUs of every switch",
        ", ".join(apart) + " linked elsewhere" if apart else "they are",
        "gpu-links",
    )


def _named(part: str, checks: Iterable[AppraisalCheck]) -> Iterable[AppraisalCheck]:
    return (replace(each, subject=f"{part}: {each.subject}") for each in checks)


def read_binding(
    events: Sequence[RuntimeEvent],
) -> tuple[GpuBinding | None, tuple[AppraisalCheck, ...]]:
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
        "measured exactly once",
        f"measured {len(places)} times",
        "gpu-binding-count",
    )
    early = check(
        not places or not code or max(places) < min(code),
        "order of the runtime log",
        "the GPUs are bound before any code of the owners",
        "bound first" if not code else f"bound at {places}, code from {min(code)}",
        "gpu-binding-late",
    )
    if len(places) != 1:
        return None, (once, early)
    content = events[places[0]].content
    return decode(GpuBinding, content, max_bytes=MAX_CONTENT_BYTES), (once, early)


def _check_binding(
    binding: GpuBinding, devices: Sequence[BoundDevice]
) -> tuple[AppraisalCheck, ...]:
    """The state that was bound, and that these very devices were, and no others."""
    present = tuple(devices)
    ids = {each.id for each in present}
    return (
        check(
            binding.devices == present and len(ids) == len(present),
            "devices of the machine",
            _say_devices(binding.devices),
            _say_devices(present),
            "gpu-binding-devices",
        ),
        check(
            binding.protects,
            "state of the GPUs",
            "production, confidential mode on or multi-GPU ppcie, debug tools off",
            binding.say_state(),
            "gpu-not-protected",
        ),
    )


def _say_devices(devices: Sequence[BoundDevice]) -> str:
    return ", ".join(f"{each.kind} {each.id[:12]}" for each in devices) or "none"
