"""A machine with GPUs of our own making, led by a stand-in for a TEE.

The stand-in's evidence says its bound value, its runtime log and its level; how real
leads prove those is the matter of their own tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from sealift import codec
from sealift.attest import Appraiser, Claims, Evidence, Level, ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.composite import (
    MEDIA_TYPE,
    CompositeAttester,
)
from sealift.attest.level import TrustVector
from sealift.attest.policy import AttestationResult
from sealift.attest.reference import AppraisalBasis, NvidiaReferences
from sealift.attest.runtimelog import (
    CODE_BUNDLE,
    MODULE,
    BoundDevice,
    GpuBinding,
    MultiGpu,
    RuntimeEvent,
    measured_bundle,
)
from sealift.attest.verifier import VerifierKind, check_bound
from sealift.errors import MalformedError, RefusedError
from sealift.ids import Digest
from tests.sim import nvidia_device as sim
from tests.sim.kinds import with_roots
from tests.sim.nvidia_device import AT_S, SoftDevice

BOUND = bytes(range(32))
BUNDLE = Digest.of(b"code")
LEAD_MEDIA_TYPE = "application/vnd.example.lead"
CODE = (RuntimeEvent(CODE_BUNDLE, BUNDLE.raw), RuntimeEvent(MODULE, b"torch"))


@dataclass(frozen=True)
class LeadBody:
    bound: bytes
    events: tuple[RuntimeEvent, ...]
    level: str
    rehearsing: str


def examine_lead(evidence: Evidence, basis: AppraisalBasis) -> Claims:
    """Believes what the stand-in says."""
    body = codec.decode(LeadBody, evidence.body)
    rehearsing = Level(body.rehearsing) if body.rehearsing else None
    return Claims(
        level=Level(body.level),
        rehearsing=rehearsing,
        attester="host-1",
        code_bundle=measured_bundle(body.events),
        trust=TrustVector(hardware=97 if rehearsing else 2, runtime_opaque=2),
        checks=(check_bound(body.bound, basis.bound, "bound value"),),
        events=body.events,
    )


LEAD = VerifierKind(
    frozenset({Level.TEE, Level.ATTESTED_HOST, Level.DEVELOPMENT}), lambda: examine_lead
)


@dataclass
class DeviceAttester:
    device: SoftDevice
    media_type: str = "application/vnd.sealift.nvidia-evidence+json"

    def collect(self, bound: bytes) -> Evidence:
        return self.device.body(bound).to_evidence()


@dataclass
class LeadAttester:
    events: tuple[RuntimeEvent, ...]
    level: Level = Level.TEE
    rehearsing: Level | None = None
    media_type: str = LEAD_MEDIA_TYPE

    def collect(self, bound: bytes) -> Evidence:
        body = LeadBody(bound, self.events, self.level, self.rehearsing or "")
        return Evidence("lead", self.media_type, codec.encode(body))


def bound_device(device: SoftDevice) -> BoundDevice:
    return BoundDevice(kind=device.kind, id=device.id, key=device.leaf.spki_digest)


@dataclass
class Machine:
    """One host; attributes are what a test spoils.

    Attributes:
        devices: That answer, in order.
        bound: That the binding names; those that answer, if None.
        binding: Replaces fields of the binding.
        before: Events ahead of the binding.
        after: Events behind it.
    """

    devices: Sequence[SoftDevice]
    bound: Sequence[SoftDevice] | None = None
    binding: dict[str, object] = field(default_factory=dict)
    before: tuple[RuntimeEvent, ...] = ()
    after: tuple[RuntimeEvent, ...] = CODE
    bindings: int = 1
    multi_gpu: MultiGpu = "none"
    level: Level = Level.TEE
    rehearsing: Level | None = None

    @property
    def events(self) -> tuple[RuntimeEvent, ...]:
        named = self.devices if self.bound is None else self.bound
        made = GpuBinding(
            environment="production",
            confidential=True,
            devtools=False,
            multi_gpu=self.multi_gpu,
            devices=tuple(bound_device(each) for each in named),
        )
        event = replace(made, **self.binding).to_event()  # type: ignore[arg-type]
        return (*self.before, *(event,) * self.bindings, *self.after)

    @property
    def lead(self) -> LeadAttester:
        return LeadAttester(self.events, self.level, self.rehearsing)

    def collect(self, bound: bytes) -> Evidence:
        devices = [DeviceAttester(each) for each in self.devices]
        return CompositeAttester(self.lead, devices).collect(bound)


VERIFIERS = {MEDIA_TYPE: with_roots(MEDIA_TYPE, leads={LEAD_MEDIA_TYPE: LEAD})}


def appraise(
    evidence: Evidence,
    bound: bytes,
    *,
    accept: tuple[Level, ...] = (Level.GPU_TEE,),
    modes: tuple[str, ...] = ("spt", "mpt", "ppcie"),
) -> AttestationResult:
    """Judged by our appraiser, with the manifests of our devices."""
    nvidia = NvidiaReferences(
        drivers=("545.00",),
        vbios=("96.00.5E.00.01", "96.10.55.00.01"),
        modes=modes,
        revocation="if-known",
    )
    appraiser = Appraiser(
        accept=accept,
        references=ReferenceValues(nvidia=nvidia, code_bundle=BUNDLE),
        collateral=Collateral(as_of_s=AT_S, items=sim.rims()),
        clock=lambda: AT_S,
        verifiers=VERIFIERS,
    )
    return appraiser.appraise(evidence, bound)


def refusal(evidence: Evidence, bound: bytes = BOUND) -> tuple[str, str]:
    """Code and subject of the refusal."""
    with pytest.raises((RefusedError, MalformedError)) as caught:
        appraise(evidence, bound)
    return caught.value.code, re.sub("^evidence refused: ", "", caught.value.what)


def protected_pcie(gpus: int = 2, switches: int = 2) -> list[SoftDevice]:
    """GPUs and switches that are all linked with each other."""
    gpu_pdis = tuple(f"{n:02x}" * 8 for n in range(1, gpus + 1))
    switch_pdis = tuple(f"{n:02x}" * 8 for n in range(0x51, 0x51 + switches))
    return [
        *(SoftDevice(pdi=pdi, mode=2, links=switch_pdis) for pdi in gpu_pdis),
        *(SoftDevice("switch", "LS10", pdi, links=gpu_pdis) for pdi in switch_pdis),
    ]
