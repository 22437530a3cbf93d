"""Recorded reports of real devices, with the chains that came with them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia.evidence import NvidiaBody
from sealift.attest.reference import NvidiaReferences, ReferenceValues
from sealift.crypto.certificate import certificates_from_pem
from tests.sim.vectors import vector

JUNE_2025 = 1_748_736_000
NOVEMBER_2026 = 1_795_312_000
LISTS = ("hopper_evidence", "multi_switch_ls10", "ppcie_gpu_evidence",
         "ppcie_switch_evidence")  # fmt: skip
PAIRS = {
    "gonvtrust_attestationReport": "gonvtrust_gpuAkCertChain",
    "hopper_coco_report1": "hopper_coco_certs1",
    "nvtrust_hopperAttestationReport": "nvtrust_hopperCertChain",
    "sample_blackwellAttestationReport": "sample_blackwellCertChain",
    "sample_hopperAttestationReport": "sample_hopperCertChain",
    "sample_hopperAttestationReportExpired": "sample_hopperCertChainExpired",
    "sample_switchAttestationReport": "sample_switchCertChain",
    "sdk_hopperAttestationReport": "sdk_hopperCertChain",
    "sdk_switchAttestationReport": "sdk_switchCertChain",
    "trustee_blackwellAttestationReport": "trustee_blackwell_cert_chain_case1",
}
TRIPLE = "gonvtrust_attestationReport"
DRIVER_RIM = "nvidia/rim/NV_GPU_DRIVER_GH100_545.00"
VBIOS_RIM = "nvidia/rim/NV_GPU_VBIOS_1010_0200_882_96005E0001"
SWITCH_RIM = "nvidia/rim/NV_SWITCH_BIOS_5612_0002_890_9610550001"


@dataclass(frozen=True)
class Recorded:
    """One device's answer, as it was published."""

    name: str
    report: bytes
    pem: bytes

    @property
    def nonce(self) -> bytes:
        return self.report[4:36]

    @property
    def certificates(self) -> tuple[bytes, ...]:
        return tuple(each.der for each in certificates_from_pem(self.pem))

    @property
    def body(self) -> NvidiaBody:
        return NvidiaBody(report=self.report, certificates=self.certificates)

    @property
    def evidence(self) -> Evidence:
        return self.body.to_evidence()


def recorded(name: str) -> Recorded:
    """The pair of that name."""
    report = bytes.fromhex(vector(f"nvidia/{name}.txt").decode())
    return Recorded(name, report, vector(f"nvidia/{PAIRS[name]}.txt"))


def recorded_list(name: str) -> list[Recorded]:
    """Every pair of a list."""
    entries = json.loads(vector(f"nvidia/{name}.json"))
    return [
        Recorded(
            f"{name}[{place}]",
            base64.b64decode(entry["evidence"]),
            base64.b64decode(entry["certificate"]),
        )
        for place, entry in enumerate(entries)
    ]


def everything() -> Iterator[Recorded]:
    """All of them."""
    for name in LISTS:
        yield from recorded_list(name)
    for name in PAIRS:
        yield recorded(name)


def rim(name: str) -> bytes:
    """A manifest's text."""
    raw = vector(f"nvidia/{name}")
    return base64.b64decode(raw) if name.endswith(".b64") else raw


def triple_collateral(
    *,
    driver: str = "nvtrust_Driver_RIM_test_no_gpu.swidtag",
    vbios: str = "nvtrust_1010_0200_882_96005E0001_test_no_gpu.swidtag",
    at_s: int = JUNE_2025,
) -> Collateral:
    """The manifests that fit the complete triple, or others in their place."""
    items = {DRIVER_RIM: rim(driver), VBIOS_RIM: rim(vbios)}
    return Collateral(as_of_s=at_s, items=items)


def references(**changes: object) -> ReferenceValues:
    """What the complete triple shows."""
    values: dict[str, object] = {
        "drivers": ("545.00",),
        "vbios": ("96.00.5E.00.01", "96.10.55.00.01"),
        "modes": ("unstated",),
        "revocation": "if-known",
        **changes,
    }
    return ReferenceValues(nvidia=NvidiaReferences(**values))  # type: ignore[arg-type]
