"""The hardware part of Azure evidence: an SNP report or a TD quote over given data.

What stands in report data here is the digest of the paravisor's claims, not the bound
value: the virtual TPM's quote carries that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.azure.evidence import AzureBody
from sealift.attest.azure.hcl import HclReport
from sealift.attest.check import Check, check
from sealift.attest.collateral import Collateral
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.snp import checks as snpchecks
from sealift.attest.snp.genuine import SnpTrust, verify_report
from sealift.attest.snp.verifier import attester_of
from sealift.attest.tdx import checks as tdchecks
from sealift.attest.tdx.intelquote import QuoteVerdict, verify_quote
from sealift.attest.tdx.quote import TdReport, parse_quote
from sealift.attest.tdx.verifier import hardware_claim
from sealift.attest.tdx.verifier import measurements as td_measurements
from sealift.attest.trust import TrustVector
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import Digest

REPORT_DATA_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureTrust:
    """What genuineness depends on, beside the evidence."""

    references: ReferenceValues
    collateral: Collateral
    amd_roots: Mapping[str, Digest]
    intel_roots: tuple[Digest, ...]
    at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Genuine hardware under a paravisor; ``trust`` is before the guest's checks."""

    attester: str
    checks: tuple[Check, ...]
    trust: TrustVector
    measurements: dict[str, bytes]
    notes: tuple[str, ...]


def examine_hardware(body: AzureBody, hcl: HclReport, trust: AzureTrust) -> Hardware:
    """Verify the hardware's report over the paravisor's claims, and compare it.

    Raises:
        PolicyError: ``references-missing``.
        EvidenceError: if it is not genuine, or not over these claims.
        MalformedError: if a part does not parse.
    """
    if hcl.kind == "snp":
        return _examine_snp(body, hcl, trust)
    return _examine_tdx(body, hcl, trust)


def _examine_snp(body: AzureBody, hcl: HclReport, trust: AzureTrust) -> Hardware:
    references = trust.references.snp
    if references is None:
        raise no_references("SEV-SNP")
    _require_no_other("td_quote", bool(body.td_quote))
    chain = SnpTrust(
        collateral=trust.collateral,
        roots=trust.amd_roots,
        at_s=trust.at_s,
        revocation=references.revocation == "required",
    )
    verdict = verify_report(hcl.hardware, body.certificates, chain)
    report = verdict.report
    _require_over(report.report_data, hcl.digest)
    if report.vmpl != 0:
        raise EvidenceError(
            "the report was not made by the paravisor",
            why=f"privilege level (VMPL) {report.vmpl} asked for it, the paravisor has 0",
            code="azure-vmpl",
        )
    checks = (
        *snpchecks.check_guest(report, hcl.digest, references),
        snpchecks.check_host_data(report, references, trust.references.code_bundle),
        *snpchecks.check_chip(
            verdict, trust.references, trust.collateral, at_s=trust.at_s
        ),
    )
    return Hardware(
        attester=attester_of(verdict),
        checks=checks,
        trust=snpchecks.trust_of(verdict, references, checks),
        measurements=snpchecks.measurements(report),
        notes=tuple(snpchecks.notes_of(verdict, references)),
    )


def _examine_tdx(body: AzureBody, hcl: HclReport, trust: AzureTrust) -> Hardware:
    references = trust.references.tdx
    if references is None:
        raise no_references("TDX")
    _require_no_other("certificates", bool(body.certificates))
    quote = parse_quote(body.td_quote)
    report = quote.body
    if not isinstance(report, TdReport):
        raise EvidenceError(
            "a quote of an SGX enclave, not of a TDX guest", code="quote-not-tdx"
        )
    verdict = verify_quote(
        quote, trust.collateral, at_s=trust.at_s, roots=trust.intel_roots
    )
    _require_over(report.report_data, hcl.digest)
    checks = (
        *tdchecks.check_report(report, hcl.digest, references),
        _check_untouched(report),
        *tdchecks.check_platform(
            verdict, trust.references, trust.collateral, at_s=trust.at_s
        ),
    )
    return Hardware(
        attester=f"ppid:{verdict.platform.ppid.hex()}",
        checks=checks,
        trust=_td_trust(report, verdict, bool(references.platforms)),
        measurements=td_measurements(report),
        notes=(f"platform TCB {verdict.status}",),
    )


def _require_no_other(field: str, present: bool) -> None:
    if present:
        raise MalformedError("a part of another kind of hardware", field=field)


def _require_over(report_data: bytes, digest: bytes) -> None:
    """The hardware vouches for these claims, so for the keys that they name."""
    if report_data != digest.ljust(REPORT_DATA_BYTES, b"\0"):
        raise EvidenceError(
            "the hardware's report is not over the paravisor's claims",
            why="its report data is not their digest",
            code="azure-claims",
        )


def _check_untouched(report: TdReport) -> Check:
    """The paravisor extends no register: the virtual TPM has those of the guest."""
    return check(
        not any(report.rtmr[3]),
        "RTMR 3",
        expected="untouched",
        found=report.rtmr[3].hex(),
        code="tdx-rtmr",
    )


def _td_trust(report: TdReport, verdict: QuoteVerdict, pinned: bool) -> TrustVector:
    visible = bool(report.attributes & tdchecks.DEBUG)
    return TrustVector(
        instance_identity=2 if pinned else 0,
        hardware=96 if visible else hardware_claim(verdict.status),
        runtime_opaque=96 if visible else 2,
    )
