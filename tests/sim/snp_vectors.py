"""The SEV-SNP vectors: reports of real chips, and AMD's certificates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis, ReferenceValues, SnpReferences
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.snp.evidence import SnpBody, SnpReport, parse_report
from sealift.attest.snp.verifier import examine_snp
from sealift.attest.verifier import Claims
from tests.sim.vectors import vector

AT_S = 1_748_736_000  # 1 June 2025: every certificate of the vectors is valid
AMAZON = "CN=cc-us-east-2.amazonaws.com"


@dataclass(frozen=True)
class SnpVector:
    """A report, its key's certificate and the chain above it, by path."""

    report: str
    key: str
    chain: str


DEBUGGED = SnpVector(
    "snp/gosev_attestation.bin", "snp/gosev_vcek.testcer", "snp/gosev_milan.testcer"
)
VCEK = SnpVector(
    "snp/trustee_test-report.bin",
    "snp/trustee_test-vcek.der",
    "snp/milan_ask_ark_asvk.pem",
)
VLEK = SnpVector(
    "snp/trustee_test-vlek-report.bin",
    "snp/trustee_test-vlek.der",
    "snp/gosev_milanvlek.testcer",
)


def report_of(chosen: SnpVector) -> SnpReport:
    return parse_report(vector(chosen.report))


def certificates_of(chosen: SnpVector) -> tuple[bytes, ...]:
    """DER of key, intermediate and root."""
    issuers = parse_certificates(vector(chosen.chain))
    return (vector(chosen.key), *(each.der for each in issuers))


def references_of(report: SnpReport, **changes: object) -> ReferenceValues:
    """References that accept exactly this report; its chip's firmware is enough."""
    floor = {"Milan": {"boot_loader": 2, "snp": 5, "microcode": 0x44}}
    references = SnpReferences(
        measurement=(report.measurement,),
        host_data=(report.host_data,),
        max_vmpl=report.vmpl,
        min_tcb=floor,
        operators=(AMAZON,),
        revocation="waived",
    )
    return ReferenceValues(snp=replace(references, **changes))  # type: ignore[arg-type]


def evidence_of(report: bytes, certificates: tuple[bytes, ...]) -> Evidence:
    return SnpBody(report=report, certificates=certificates).to_evidence()


def examine(
    chosen: SnpVector = VCEK,
    *,
    report: bytes | None = None,
    certificates: tuple[bytes, ...] | None = None,
    references: ReferenceValues | None = None,
    collateral: Collateral | None = None,
    at_s: int = AT_S,
    bound: bytes | None = None,
) -> Claims:
    """Examine a vector with references that fit it, or what is given instead."""
    genuine = report_of(chosen)
    chain = certificates_of(chosen) if certificates is None else certificates
    return examine_snp(
        evidence_of(genuine.raw if report is None else report, chain),
        AppraisalBasis(
            bound=genuine.report_data if bound is None else bound,
            references=references or references_of(genuine),
            collateral=collateral or Collateral(),
            at_s=at_s,
        ),
    )
